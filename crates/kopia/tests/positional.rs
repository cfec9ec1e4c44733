//! Objects that are written at offsets by several threads.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{create, noise, worker};
use lifeboat_blobs::MemoryStore;
use lifeboat_kopia::object::{PositionalOptions, WriterOptions};
use std::ops::Range;
use std::sync::{Arc, Barrier};

#[tokio::test(flavor = "multi_thread")]
async fn whole_chunks_are_not_lost_to_somebody_who_writes_a_byte_of_them() {
    const CHUNK: usize = 64;
    const CHUNKS: usize = 1 << 18;
    /// So many chunks are written at once: only noting them is to take time.
    const PIECE: usize = 256;
    let repository = create(Arc::new(MemoryStore::new())).await;
    let objects = repository.objects();
    let options = PositionalOptions {
        writer: WriterOptions::default(),
        chunk_size: CHUNK,
        parent: None,
        length: Some((CHUNK * CHUNKS) as u64),
    };
    let writer = objects.positional_writer(options).await.unwrap();
    let id = worker(move || {
        let at = |chunk: usize| (chunk * CHUNK) as u64;
        // All chunks are the same, so that storing them is next to nothing.
        let whole = vec![b'a'; CHUNK * PIECE];
        let turn = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for first in (0..CHUNKS).step_by(PIECE) {
                    turn.wait();
                    writer.write_at(at(first), &whole).unwrap();
                }
            });
            for first in (0..CHUNKS).step_by(PIECE) {
                turn.wait();
                for chunk in first..first + PIECE {
                    writer.write_at(at(chunk) + 7, b"b").unwrap();
                }
            }
        });
        writer.finish().unwrap()
    })
    .await;
    let data = objects.read_all(id, (CHUNK * CHUNKS) as u64).await.unwrap();
    let mut later = 0;
    for (number, chunk) in data.chunks(CHUNK).enumerate() {
        let others = chunk[..7].iter().chain(&chunk[8..]);
        assert!(others.clone().all(|byte| *byte == b'a'), "chunk {number} has lost what was written");
        assert!(matches!(chunk[7], b'a' | b'b'));
        later += usize::from(chunk[7] == b'b');
    }
    println!("{later} of {CHUNKS} bytes came after their chunk");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_has_what_is_stored_and_else_what_the_parent_has_or_zeros() {
    const CHUNK: usize = 4096;
    const CHUNKS: usize = 10;
    let repository = create(Arc::new(MemoryStore::new())).await;
    let objects = repository.objects();
    let options = |parent, length| PositionalOptions {
        writer: WriterOptions::default(),
        chunk_size: CHUNK,
        parent,
        length,
    };
    let mut parent = None;
    for round in 0..2 {
        let mut expected = match parent {
            Some(parent) => objects.read_all(parent, 1 << 20).await.unwrap().to_vec(),
            None => vec![0; CHUNK * CHUNKS],
        };
        let writer = objects.positional_writer(options(parent, Some((CHUNK * CHUNKS) as u64))).await.unwrap();
        let data = noise(round + 1, CHUNK * CHUNKS);
        let whole = data.clone();
        let (checkpoint, length, id) = worker(move || {
            assert_eq!(writer.checkpoint().unwrap(), None);
            let write = |range: Range<usize>| writer.write_at(range.start as u64, &whole[range]).unwrap();
            // A piece of one that is not whole is no part of it yet.
            write(5..10);
            write(2 * CHUNK..4 * CHUNK);
            write(9 * CHUNK..10 * CHUNK);
            let (checkpoint, length) = writer.checkpoint().unwrap().unwrap();
            write(0..10 * CHUNK);
            assert_ne!(writer.checkpoint().unwrap(), Some((checkpoint, length)));
            (checkpoint, length, writer.finish().unwrap())
        })
        .await;
        for range in [2 * CHUNK..4 * CHUNK, 9 * CHUNK..10 * CHUNK] {
            expected[range.clone()].copy_from_slice(&data[range]);
        }
        assert_eq!(length, expected.len() as u64);
        assert!(objects.read_all(checkpoint, 1 << 20).await.unwrap() == expected, "round {round}");
        assert!(objects.read_all(id, 1 << 20).await.unwrap() == data, "round {round}");
        parent = Some(id);
    }
    // As long as what was written so far.
    let writer = objects.positional_writer(options(None, None)).await.unwrap();
    let (checkpoint, id) = worker(move || {
        writer.write_at(CHUNK as u64, &[1; CHUNK]).unwrap();
        writer.write_at(2 * CHUNK as u64, &[2; 7]).unwrap();
        (writer.checkpoint().unwrap().unwrap(), writer.finish().unwrap())
    })
    .await;
    let mut expected = [vec![0; CHUNK], vec![1; CHUNK], vec![0; 7]].concat();
    assert_eq!(checkpoint.1, expected.len() as u64);
    assert!(objects.read_all(checkpoint.0, 1 << 20).await.unwrap() == expected);
    expected[2 * CHUNK..].fill(2);
    assert!(objects.read_all(id, 1 << 20).await.unwrap() == expected);
}
