//! Objects: what goes in comes out, by whatever way it was written, and equal bytes have equal ids.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{create_with, noise, options, worker};
use futures::TryStreamExt;
use lifeboat_blobs::{BlobMetadata, BlobStore, MemoryStore};
use lifeboat_budget::{Budget, Buffer};
use lifeboat_index::Prefix;
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::object::{
    ObjectId, ObjectLayout, Objects, Pieces, PositionalOptions, RegionWriter, WriterOptions,
};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::{Error, content::ContentToWrite};
use lifeboat_primitives::compress::Compressor;
use std::io::SeekFrom;
use std::ops::Range;
use std::sync::Arc;

async fn repository(splitter: &str, version: u8) -> Repository {
    let create = CreateOptions { splitter: splitter.into(), version, ..CreateOptions::default() };
    create_with(options(Arc::new(MemoryStore::new())), &create).await
}

/// Bytes as files have them: noise, text and runs of zeros.
fn mixed(len: usize) -> Vec<u8> {
    let mut data = noise(len as u64, len);
    for at in (0..len).step_by(700_000) {
        let end = len.min(at + (at / 700_000 % 3) * 250_000);
        data[at..end].fill(if at % 2 == 0 { 0 } else { b'x' });
    }
    data
}

async fn write(objects: &Objects, data: Vec<u8>, step: usize, options: WriterOptions) -> ObjectId {
    let objects = objects.clone();
    worker(move || {
        let mut writer = objects.writer(options);
        data.chunks(step.max(1)).for_each(|part| writer.write(part).unwrap());
        assert_eq!(writer.len(), data.len() as u64);
        writer.finish().unwrap()
    })
    .await
}

async fn assert_reads(objects: &Objects, id: ObjectId, data: &[u8]) {
    let mut reader = objects.open(id).await.unwrap();
    assert_eq!(reader.len(), data.len() as u64);
    let mut read = Vec::new();
    loop {
        let chunk = reader.next_chunk().await.unwrap();
        if chunk.is_empty() {
            break;
        }
        read.extend_from_slice(&chunk);
    }
    assert!(read == data, "{id} differs");
    for (offset, len) in
        [(0, 1), (data.len() / 2, 300_000), (data.len().saturating_sub(5), 5), (data.len(), 10)]
    {
        let end = data.len().min(offset + len);
        let mut out = vec![0; len];
        let count = reader.read_at(offset as u64, &mut out).await.unwrap();
        assert_eq!(&out[..count], &data[offset.min(data.len())..end]);
        reader.seek(SeekFrom::Start(offset as u64)).unwrap();
        let count = reader.read(&mut out).await.unwrap();
        assert_eq!(&out[..count], &data[offset.min(data.len())..][..count]);
        assert!(count > 0 || offset == data.len());
    }
    assert_eq!(&objects.read_all(id, data.len() as u64).await.unwrap()[..], data);
    if !data.is_empty() {
        assert!(objects.read_all(id, data.len() as u64 - 1).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_all_sizes_come_back_and_do_not_depend_on_how_they_were_handed_in() {
    let repository = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let objects = repository.objects();
    for len in [0, 1, 65_535, 65_536, 65_537, 131_072, 262_144, 262_145, 3_000_000, 9_000_000] {
        let data = mixed(len);
        let id = write(objects, data.clone(), 1 << 30, WriterOptions::default()).await;
        for step in [777, 100_000, 1_000_000] {
            assert_eq!(
                write(objects, data.clone(), step, WriterOptions::default()).await,
                id,
                "{len} by {step}"
            );
        }
        let read = {
            let (objects, data) = (objects.clone(), data.clone());
            worker(move || {
                let mut writer = objects.writer(WriterOptions::default());
                let mut rest = data.as_slice();
                while !rest.is_empty() {
                    let count = std::io::Read::read(&mut rest, writer.space()).unwrap();
                    writer.advance(count).unwrap();
                }
                let room = writer.space().len();
                assert!(matches!(writer.advance(room + 1), Err(Error::Invalid(_))));
                writer.finish().unwrap()
            })
            .await
        };
        assert_eq!(read, id, "{len} read into the writer's own space");
        assert_eq!(id.levels(), u8::from(ObjectLayout::load(objects, id).await.unwrap().entries().len() > 1));
        assert_reads(objects, id, &data).await;
    }
    repository.flush().await.unwrap();
}

/// A buffer with this data.
fn buffer_of(objects: &Objects, data: &[u8]) -> Buffer {
    let mut buffer = objects.contents().take_buffer(data.len()).unwrap();
    buffer.as_mut().copy_from_slice(data);
    buffer
}

/// Cuts all of `data` in regions of `size`, with zeros at their beginning as such if `holes` says so.
fn cut(writer: &RegionWriter, data: &[u8], size: usize, holes: bool) -> Vec<(Range<usize>, Pieces)> {
    let mut regions = Vec::new();
    let mut at = 0;
    loop {
        if holes {
            let zeros = data[at..].iter().take_while(|byte| **byte == 0).count();
            let pieces = writer.cut_zeros(zeros as u64).unwrap();
            at += pieces.bytes() as usize;
            regions.push((at..at, pieces));
        }
        let range = at..data.len().min(at + size);
        let is_end = range.end == data.len();
        let pieces = writer.cut(&data[range.clone()], is_end).unwrap();
        at += pieces.bytes() as usize;
        regions.push((range, pieces));
        if is_end {
            assert_eq!(at, data.len());
            return regions;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_written_by_many_threads_give_the_same_object() {
    for splitter in ["DYNAMIC-128K-BUZHASH", "DYNAMIC-128K-RABINKARP", "FIXED-128K"] {
        let repository = repository(splitter, 3).await;
        let objects = repository.objects();
        let data = mixed(6_000_000);
        let id = write(objects, data.clone(), 1 << 30, WriterOptions::default()).await;
        for size in [256 << 10, 1_000_000, 10_000_000] {
            let (objects, data) = (objects.clone(), data.clone());
            let by_regions = worker(move || {
                let writer = objects.region_writer(WriterOptions::default());
                let regions = cut(&writer, &data, size, false);
                std::thread::scope(|scope| {
                    for thread in 0..3 {
                        let (writer, regions, data, objects) = (&writer, &regions, &data, &objects);
                        scope.spawn(move || {
                            // The last region first: order does not matter.
                            for (range, pieces) in regions.iter().rev().skip(thread).step_by(3) {
                                writer.write(buffer_of(objects, &data[range.clone()]), pieces).unwrap();
                            }
                        });
                    }
                });
                writer.finish().unwrap()
            });
            assert_eq!(by_regions.await, id, "{splitter} by {size}");
        }
        let writer = objects.region_writer(WriterOptions::default());
        let writing = objects.clone();
        let empty = worker(move || {
            assert!(writer.finish().is_err(), "it has no end yet");
            writer.write(buffer_of(&writing, &[]), &writer.cut(&[], true).unwrap()).unwrap();
            assert!(writer.cut(&[], true).is_err(), "nothing follows the end");
            writer.finish().unwrap()
        });
        assert_eq!(empty.await, write(objects, Vec::new(), 1, WriterOptions::default()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_regions_is_a_prefix_of_the_object() {
    let repository = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let objects = repository.objects().clone();
    let data = mixed(3_000_000);
    let (writing, all) = (objects.clone(), data.clone());
    let checkpoint = worker(move || {
        let writer = writing.region_writer(WriterOptions::default());
        assert!(writer.cut(&all[..100_000], false).is_err(), "too short to be cut");
        let regions = cut(&writer, &all, 500_000, false);
        assert_eq!(writer.checkpoint().unwrap(), None);
        // One is missing.
        for (range, pieces) in regions.iter().enumerate().filter(|(number, _)| *number != 4).map(|(_, r)| r) {
            writer.write(buffer_of(&writing, &all[range.clone()]), pieces).unwrap();
        }
        assert!(writer.finish().is_err());
        writer.checkpoint().unwrap().unwrap()
    })
    .await;
    let prefix = objects.read_all(checkpoint.0, 1 << 30).await.unwrap();
    assert_eq!(prefix.len() as u64, checkpoint.1);
    assert!(prefix.len() > 1_000_000 && prefix.len() < data.len());
    assert_eq!(prefix, data[..prefix.len()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_give_the_same_object_as_the_zeros_that_they_stand_for() {
    for splitter in ["DYNAMIC-128K-BUZHASH", "DYNAMIC-128K-RABINKARP", "FIXED-256K"] {
        let repository = repository(splitter, 3).await;
        let objects = repository.objects();
        for (before, hole, after) in
            [(0, 5, 0), (0, 3_000_000, 0), (100_000, 2_000_000, 300_000), (65_530, 65_536, 7)]
        {
            let (head, tail) = (noise(1, before), noise(2, after));
            let data = [head.clone(), vec![0; hole], tail.clone()].concat();
            let whole = write(objects, data.clone(), 1 << 30, WriterOptions::default()).await;
            let first_half = hole as u64 / 2;
            let second_half = hole as u64 - first_half;
            let (objects, context) = (objects.clone(), format!("{splitter} {before} {hole} {after}"));
            let (streamed, by_regions) = worker(move || {
                let mut writer = objects.writer(WriterOptions::default());
                writer.write(&head).unwrap();
                writer.write_zeros(first_half).unwrap();
                writer.write_zeros(second_half).unwrap();
                writer.write(&tail).unwrap();
                let streamed = writer.finish().unwrap();

                let writer = objects.region_writer(WriterOptions::default());
                for (range, pieces) in cut(&writer, &data, 700_000, true) {
                    writer.write(buffer_of(&objects, &data[range]), &pieces).unwrap();
                }
                (streamed, writer.finish().unwrap())
            })
            .await;
            assert_eq!(streamed, whole, "{context}");
            assert_eq!(by_regions, whole, "{context} by regions");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_objects_in_one_batch_are_the_same_as_one_by_one() {
    let repository = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let objects = repository.objects().clone();
    let data: Vec<Vec<u8>> = (0..50).map(|n| mixed(n * n * 150)).collect();
    let batch = {
        let (objects, data) = (objects.clone(), data.clone());
        worker(move || {
            let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            objects.write_many(&slices, &WriterOptions::default()).unwrap()
        })
        .await
    };
    for (id, data) in batch.iter().zip(data) {
        assert_eq!(*id, write(&objects, data, 1 << 30, WriterOptions::default()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_hold_what_was_written_up_to_the_last_cut() {
    let repository = repository("FIXED-128K", 3).await;
    let objects = repository.objects().clone();
    let data = noise(9, 500_000);
    let written = data.clone();
    let (first, second) = worker(move || {
        let mut writer = objects.writer(WriterOptions::default());
        writer.write(&written[..100]).unwrap();
        assert_eq!(writer.checkpoint().unwrap(), None);
        writer.write(&written[100..400_000]).unwrap();
        let checkpoint = writer.checkpoint().unwrap().unwrap();
        writer.write(&written[400_000..]).unwrap();
        (checkpoint, writer.finish().unwrap())
    })
    .await;
    assert_eq!(first.1, 3 * 131_072);
    assert_reads(repository.objects(), first.0, &data[..3 * 131_072]).await;
    assert_reads(repository.objects(), second, &data).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_objects_are_marked_where_contents_are_not() {
    let text = b"the quick brown fox jumps over the lazy dog. ".repeat(20_000);
    let compressed = WriterOptions { compression: Some(Compressor::Zstd), ..WriterOptions::default() };
    let new = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let plain = write(new.objects(), text.clone(), 1 << 30, WriterOptions::default()).await;
    assert_eq!(write(new.objects(), text.clone(), 1 << 30, compressed.clone()).await, plain);

    let old = repository("DYNAMIC-128K-BUZHASH", 1).await;
    let small = write(old.objects(), text[..5000].to_vec(), 1 << 30, compressed.clone()).await;
    assert!(small.to_string().starts_with('Z'));
    let id = write(old.objects(), text.clone(), 1 << 30, compressed.clone()).await;
    assert!(
        ObjectLayout::load(old.objects(), id).await.unwrap().entries().iter().all(|entry| entry.compressed)
    );
    old.flush().await.unwrap();
    assert_reads(old.objects(), small, &text[..5000]).await;
    assert_reads(old.objects(), id, &text).await;
    let random = write(old.objects(), noise(3, 1000), 1 << 30, compressed).await;
    assert!(!random.is_compressed());
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_keep_their_prefix_through_all_levels() {
    let repository = repository("FIXED-128K", 3).await;
    let options = WriterOptions {
        prefix: Prefix::DIRECTORY,
        metadata_compression: Some(Compressor::ZstdFastest),
        ..WriterOptions::default()
    };
    let data = noise(4, 1_000_000);
    let id = write(repository.objects(), data.clone(), 1 << 30, options).await;
    assert!(id.to_string().starts_with("Ik"), "{id}");
    assert_reads(repository.objects(), id, &data).await;
    let file = write(repository.objects(), data.clone(), 1 << 30, WriterOptions::default()).await;
    assert!(file.to_string().starts_with("Ix"), "{file}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_index_becomes_an_object_with_an_index_of_its_own() {
    let create = CreateOptions { splitter: "FIXED-128K".into(), ..CreateOptions::default() };
    let repository = create_with(options(Arc::new(MemoryStore::new())), &create).await;
    // 2,000 parts take more than 128 KiB of index; all but the last are the same chunk of zeros.
    let objects = repository.objects().clone();
    let id = worker(move || {
        let mut writer = objects.writer(WriterOptions::default());
        writer.write_zeros(3000 * 131_072).unwrap();
        writer.write(b"end").unwrap();
        writer.finish().unwrap()
    })
    .await;
    assert!(id.to_string().starts_with("IIx"), "{id}");
    let reader = repository.objects().open(id).await.unwrap();
    assert_eq!((reader.len(), reader.layout().entries().len()), (3000 * 131_072 + 3, 3001));
    assert!(reader.layout().index_contents().len() > 2);
    let mut end = [9; 5];
    reader.read_exact_at(3000 * 131_072 - 2, &mut end).await.unwrap();
    assert_eq!(&end, b"\0\0end");
}

#[tokio::test(flavor = "multi_thread")]
async fn concatenated_objects_read_as_one() {
    let repository = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let objects = repository.objects();
    let parts = [mixed(1_000_000), Vec::new(), noise(1, 10), mixed(600_000)];
    let mut ids = Vec::new();
    for part in &parts {
        ids.push(write(objects, part.clone(), 1 << 30, WriterOptions::default()).await);
    }
    let id = objects.concatenate(&ids, Some(Compressor::ZstdFastest)).await.unwrap();
    assert!(id.to_string().starts_with("Ix"));
    assert_reads(objects, id, &parts.concat()).await;
    assert_eq!(objects.concatenate(&ids[..1], None).await.unwrap(), ids[0]);
    assert!(objects.concatenate(&[], None).await.is_err());
}

/// The index of these pieces, letter by letter as Kopia writes it.
fn index_of(pieces: &[(u64, ObjectId)]) -> String {
    let mut start = 0;
    let entry = |(length, object): &(u64, ObjectId)| {
        let from = if start == 0 { String::new() } else { format!("\"s\":{start},") };
        start += length;
        format!("{{{from}\"l\":{length},\"o\":\"{object}\"}}")
    };
    let entries: Vec<String> = pieces.iter().map(entry).collect();
    format!("{{\"stream\":\"kopia:indirect\",\"entries\":[{}]}}\n", entries.join(","))
}

/// What `data` becomes if it is cut after every `size` bytes.
async fn fixed_pieces(objects: &Objects, data: &[u8], size: usize) -> Vec<(u64, ObjectId)> {
    let mut pieces = Vec::new();
    for chunk in data.chunks(size) {
        let id = write(objects, chunk.to_vec(), 1 << 30, WriterOptions::default()).await;
        pieces.push((chunk.len() as u64, id));
    }
    pieces
}

async fn assert_index(objects: &Objects, id: ObjectId, pieces: &[(u64, ObjectId)], context: &str) {
    let index = id.index_object().ok_or_else(|| format!("{context}: {id} has no index")).unwrap();
    let json = objects.read_all(index, 1 << 30).await.unwrap();
    assert_eq!(str::from_utf8(&json).unwrap(), index_of(pieces), "{context}");
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_the_same_to_the_letter_whoever_writes_them_and_whatever_the_hash_and_the_format() {
    const CHUNK: usize = 128 << 10;
    let zstd = WriterOptions { compression: Some(Compressor::Zstd), ..WriterOptions::default() };
    for (hash, version, writing) in [
        ("BLAKE2B-256-128", 3, WriterOptions::default()),
        ("HMAC-SHA256", 3, WriterOptions::default()),
        ("BLAKE2S-128", 1, zstd),
    ] {
        let create = CreateOptions { hash: hash.into(), version, ..CreateOptions::default() };
        let create = CreateOptions { splitter: "FIXED-128K".into(), ..create };
        let repository = create_with(options(Arc::new(MemoryStore::new())), &create).await;
        let objects = repository.objects();
        // Data, zeros, text, zeros, data; the object ends in any of them, on a cut or not.
        let text = b"all work and no play ".repeat(2 * CHUNK / 21 + 1);
        let parts = [noise(1, 3 * CHUNK), vec![0; 5 * CHUNK], text[..2 * CHUNK].to_vec()];
        let whole = [parts.concat(), vec![0; 9 * CHUNK], noise(2, 2 * CHUNK)].concat();
        for length in [2 * CHUNK, 3 * CHUNK + 1, 8 * CHUNK, 9 * CHUNK - 7, 14 * CHUNK + 5, whole.len()] {
            let (context, data) = (format!("{hash} {length}"), whole[..length].to_vec());
            let plain = fixed_pieces(objects, &data, CHUNK).await;
            let mut pieces = plain.clone();
            if writing.compression.is_some() {
                for (chunk, piece) in data.chunks(CHUNK).zip(&mut pieces) {
                    piece.1 = write(objects, chunk.to_vec(), 1 << 30, writing.clone()).await;
                }
                assert_eq!(pieces.iter().any(|(_, id)| id.is_compressed()), length > 4 * CHUNK);
            }
            let (of, cut_data, options) = (objects.clone(), data.clone(), writing.clone());
            let by_regions = worker(move || {
                let writer = of.region_writer(options);
                // The last region first: order does not matter.
                for (range, pieces) in cut(&writer, &cut_data, 300_000, true).iter().rev() {
                    writer.write(buffer_of(&of, &cut_data[range.clone()]), pieces).unwrap();
                }
                let id = writer.finish().unwrap();
                let so_far = writer.checkpoint().unwrap();
                assert_eq!((writer.finish().unwrap(), so_far), (id, Some((id, cut_data.len() as u64))));
                id
            })
            .await;
            assert_index(objects, by_regions, &pieces, &context).await;
            assert_reads(objects, by_regions, &data).await;

            for (length, patched) in [(Some(data.len() as u64), true), (None, true), (None, false)] {
                let options =
                    PositionalOptions { writer: writing.clone(), chunk_size: CHUNK, parent: None, length };
                let writer = objects.positional_writer(options).await.unwrap();
                let data = data.clone();
                let id = worker(move || {
                    // Chunks of zeros are not written, in the end of which there may be a few bytes.
                    let ends = (data.len() - 1, data.last().copied().unwrap());
                    for (number, chunk) in data.chunks(CHUNK).enumerate().rev() {
                        let at = (number * CHUNK) as u64;
                        if patched && number == 1 {
                            writer.write_at(at, &noise(7, CHUNK)).unwrap();
                            writer.write_at(at + 1, &chunk[1..]).unwrap();
                            writer.write_at(at, &chunk[..1]).unwrap();
                        } else if chunk.iter().any(|byte| *byte != 0) {
                            writer.write_at(at, chunk).unwrap();
                        }
                    }
                    writer.write_at(ends.0 as u64, &[ends.1]).unwrap();
                    writer.finish().unwrap()
                })
                .await;
                assert_index(objects, id, &pieces, &format!("{context} at offsets")).await;
            }

            let halves = [&plain[..1], &plain[1..]].map(|half| half.iter().map(|(_, id)| *id));
            let [first, rest] = halves.map(Iterator::collect::<Vec<_>>);
            let rest = objects.concatenate(&rest, None).await.unwrap();
            let joined = objects.concatenate(&[first[0], rest], None).await.unwrap();
            assert_index(objects, joined, &plain, &format!("{context} joined")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn positional_writes_leave_the_rest_as_it_was() {
    let repository = repository("DYNAMIC-128K-BUZHASH", 3).await;
    let objects = repository.objects();
    let mut data = mixed(2_000_000);
    let parent = write(objects, data.clone(), 1 << 30, WriterOptions::default()).await;
    let positional = |parent, length| PositionalOptions {
        writer: WriterOptions::default(),
        chunk_size: 65_536,
        parent,
        length,
    };
    for (round, parent_id) in [Some(parent), None].into_iter().enumerate() {
        if parent_id.is_none() {
            data = vec![0; 2_500_000];
        }
        let writer = Arc::new(objects.positional_writer(positional(parent_id, None)).await.unwrap());
        let patches: Vec<(usize, Vec<u8>)> = vec![
            (0, noise(1, 10)),
            (65_536, noise(2, 65_536)),
            (300_000, noise(3, 200_000)),
            (131_070, noise(4, 4)),
            (500_000, noise(5, 1)),
            (300_010, noise(6, 100)),
            (if round == 0 { 1_999_990 } else { 2_499_990 }, noise(7, 10)),
        ];
        for (at, patch) in patches {
            data[at..at + patch.len()].copy_from_slice(&patch);
            let writer = writer.clone();
            worker(move || writer.write_at(at as u64, &patch).unwrap()).await;
        }
        let writer = Arc::into_inner(writer).unwrap();
        let id = worker(move || writer.finish().unwrap()).await;
        assert_reads(objects, id, &data).await;
        if parent_id.is_some() {
            let old: std::collections::HashSet<_> = ObjectLayout::load(objects, parent)
                .await
                .unwrap()
                .entries()
                .iter()
                .map(|e| e.content)
                .collect();
            let new = ObjectLayout::load(objects, id).await.unwrap();
            assert!(
                new.entries().iter().filter(|e| old.contains(&e.content)).count() > 3,
                "whole parts are referred to"
            );
        }
    }
    // A given length cuts the parent or goes beyond it, and is kept to.
    for length in [0u64, 100, 1_000_000, 3_000_000] {
        let writer = objects.positional_writer(positional(Some(parent), Some(length))).await.unwrap();
        let id = worker(move || {
            assert!(matches!(writer.write_at(length, b"x"), Err(Error::Invalid(_))));
            writer.finish().unwrap()
        })
        .await;
        let mut expected = mixed(2_000_000);
        expected.resize(length as usize, 0);
        assert_reads(objects, id, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_fit_the_memory_is_read_and_only_what_is_lost_is_missed() {
    let create = CreateOptions { splitter: "FIXED-128K".into(), ..CreateOptions::default() };
    let store = Arc::new(MemoryStore::new());
    let writing = create_with(options(store.clone()), &create).await;
    // As a list of contents the one fits the memory, the other does not; as a text none of them does.
    let pieces = [140_000_u64, 300_000];
    let objects = writing.objects().clone();
    let ids = worker(move || {
        pieces.map(|count| {
            let mut writer = objects.writer(WriterOptions::default());
            writer.write_zeros(count * 131_072).unwrap();
            writer.finish().unwrap()
        })
    })
    .await;
    writing.close().await.unwrap();
    let open = || async {
        let mut options = options(store.clone());
        options.budget = Budget::new(8 << 20);
        Repository::open(options).await.unwrap()
    };

    let repository = open().await;
    let reader = repository.objects().open(ids[0]).await.unwrap();
    assert_eq!(reader.len(), pieces[0] * 131_072);
    assert!(reader.layout().entries().len() == 140_000 && reader.layout().index_contents().len() > 50);
    assert!(matches!(repository.objects().open(ids[1]).await, Err(Error::Budget(_))));
    for id in ids {
        assert!(repository.objects().is_whole(id).await.unwrap(), "{id}");
    }

    // The only pack of data; indexes are in others.
    let packs: Vec<BlobMetadata> = store.list("p").try_collect().await.unwrap();
    for pack in packs {
        store.delete(&pack.id).await.unwrap();
    }
    let repository = open().await;
    for id in ids {
        assert!(!repository.objects().is_whole(id).await.unwrap(), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_indexes_are_errors_that_name_the_object() {
    let repository = repository("FIXED-128K", 3).await;
    let contents = repository.contents().clone();
    let id = worker(move || {
        let data =
            br#"{"stream":"kopia:indirect","entries":[{"l":10,"o":"00112233445566778899aabbccddeeff"}]}"#;
        contents.write(&ContentToWrite { data, prefix: Prefix::INDIRECT, compression: None }).unwrap()
    })
    .await;
    let object: ObjectId = format!("I{id}").parse().unwrap();
    let reader = repository.objects().open(object).await.unwrap();
    let mut out = [0; 10];
    assert!(matches!(reader.read_exact_at(0, &mut out).await, Err(Error::ContentNotFound { .. })));
    let nested: ObjectId = format!("II{id}").parse().unwrap();
    assert!(repository.objects().open(nested).await.is_err());
    let absent: ObjectId = "Ix00112233445566778899aabbccddeeff".parse().unwrap();
    assert!(matches!(repository.objects().open(absent).await, Err(Error::ContentNotFound { .. })));
}
