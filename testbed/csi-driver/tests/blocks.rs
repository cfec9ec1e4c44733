//! Answers about blocks are compared with what the images really contain.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Client, MIB, Testbed, block, mount, volume, write_at};
use lifeboat_testbed_csi::proto::volume_capability::access_mode::Mode;
use lifeboat_testbed_csi::proto::{BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use std::path::Path;
use tonic::{Code, Status};

const BLOCK: u64 = 65536;

/// An answer: its form, the capacity, the extents, and how many messages it took.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    fixed: bool,
    capacity: u64,
    extents: Vec<(u64, u64)>,
    messages: usize,
}

macro_rules! gather {
    ($stream:expr, $most:expr) => {{
        let mut stream = $stream.await?.into_inner();
        let mut answer = Answer::default();
        while let Some(message) = stream.message().await? {
            answer.fixed = message.block_metadata_type() == BlockMetadataType::FixedLength;
            answer.capacity = message.volume_capacity_bytes as u64;
            answer.messages += 1;
            assert!($most == 0 || message.block_metadata.len() <= $most as usize);
            let extents =
                message.block_metadata.iter().map(|one| (one.byte_offset as u64, one.size_bytes as u64));
            answer.extents.extend(extents);
        }
        Ok(answer)
    }};
}

async fn allocated(client: &mut Client, snapshot: &str, from: i64, most: i32) -> Result<Answer, Status> {
    let snapshot_id = snapshot.to_owned();
    let request = GetMetadataAllocatedRequest { snapshot_id, starting_offset: from, max_results: most };
    gather!(client.metadata.get_metadata_allocated(request), most)
}

async fn delta(
    client: &mut Client,
    base: &str,
    target: &str,
    from: i64,
    most: i32,
) -> Result<Answer, Status> {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset: from,
        max_results: most,
    };
    gather!(client.metadata.get_metadata_delta(request), most)
}

/// The blocks in which two images differ, found without the driver.
fn differing(base: &Path, target: &Path) -> Vec<u64> {
    let (before, after) = (std::fs::read(base).unwrap(), std::fs::read(target).unwrap());
    let chunks = |bytes: &[u8], index: usize| bytes.chunks(BLOCK as usize).nth(index).map(<[u8]>::to_vec);
    let zeros = vec![0; BLOCK as usize];
    (0..before.len().max(after.len()) / BLOCK as usize)
        .filter(|index| {
            chunks(&before, *index).unwrap_or_else(|| zeros.clone())
                != chunks(&after, *index).unwrap_or_else(|| zeros.clone())
        })
        .map(|index| index as u64)
        .collect()
}

/// The blocks that extents cover.
fn covered(extents: &[(u64, u64)]) -> Vec<u64> {
    extents.iter().flat_map(|(offset, length)| offset / BLOCK..(offset + length) / BLOCK).collect()
}

/// A block volume with three snapshots: some writes, more writes, and one erased block after growing.
async fn three_snapshots(
    testbed: &Testbed,
    client: &mut Client,
    parameters: &[&str],
) -> (String, [String; 3]) {
    let usage = block(Mode::SingleNodeWriter);
    let disk = client.create(volume("disk", 8, usage.clone(), parameters)).await.unwrap().volume_id;
    let device = testbed.path("device");
    client.attach(&disk, &device, &usage).await.unwrap();
    for index in [0, 1, 2, 9, 127] {
        write_at(&device, index * BLOCK + 17, &[7; 100]);
    }
    let first = client.snapshot(&disk, "first").await.unwrap().snapshot_id;
    write_at(&device, 2 * BLOCK, &[8; 10]);
    write_at(&device, 40 * BLOCK - 5, &[9; 10]);
    let second = client.snapshot(&disk, "second").await.unwrap().snapshot_id;
    write_at(&device, 9 * BLOCK, &[0; BLOCK as usize]);
    let third = client.snapshot(&disk, "third").await.unwrap().snapshot_id;
    client.detach(&disk, &device).await.unwrap();
    (disk, [first, second, third])
}

#[tokio::test]
async fn allocated_and_changed_blocks_are_exactly_those_written() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (_, [first, second, third]) = three_snapshots(&testbed, &mut client, &[]).await;

    let answer = allocated(&mut client, &first, 0, 0).await.unwrap();
    assert!(answer.fixed && answer.capacity == 8 * MIB);
    assert_eq!(covered(&answer.extents), [0, 1, 2, 9, 127]);
    assert!(answer.extents.iter().all(|(_, length)| *length == BLOCK));
    // Every block that is not zero must be among them: compared with an image of nothing.
    let nothing = testbed.path("nothing");
    std::fs::File::create(&nothing).unwrap().set_len(8 * MIB).unwrap();
    assert_eq!(covered(&answer.extents), differing(&nothing, &testbed.image(&first)));

    for (base, target, expected) in
        [(&first, &second, vec![2, 39, 40]), (&second, &third, vec![9]), (&first, &third, vec![2, 9, 39, 40])]
    {
        let answer = delta(&mut client, base, target, 0, 0).await.unwrap();
        assert_eq!(covered(&answer.extents), expected);
        assert_eq!(covered(&answer.extents), differing(&testbed.image(base), &testbed.image(target)));
    }
    assert_eq!(delta(&mut client, &first, &first, 0, 0).await.unwrap().extents, []);
}

#[tokio::test]
async fn an_interrupted_answer_can_be_continued_in_small_pieces() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (_, [first, _, third]) = three_snapshots(&testbed, &mut client, &[]).await;

    let pieces = allocated(&mut client, &first, 0, 2).await.unwrap();
    assert_eq!((pieces.messages, pieces.extents.len()), (3, 5));
    let rest = allocated(&mut client, &first, 2 * BLOCK as i64 + 1, 0).await.unwrap();
    assert_eq!(covered(&rest.extents), [2, 9, 127]);
    let end = delta(&mut client, &first, &third, 8 * MIB as i64, 0).await.unwrap();
    assert_eq!((end.extents.len(), end.messages, end.capacity), (0, 1, 8 * MIB));
    for outside in [-1, 8 * MIB as i64 + 1] {
        assert_eq!(allocated(&mut client, &first, outside, 0).await.unwrap_err().code(), Code::OutOfRange);
    }
}

#[tokio::test]
async fn variable_length_answers_join_neighbours() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let parameters = ["changedBlocks=variable", "changedBlockSize=65536"];
    let (_, [first, second, _]) = three_snapshots(&testbed, &mut client, &parameters).await;
    let answer = allocated(&mut client, &first, 0, 0).await.unwrap();
    assert!(!answer.fixed);
    assert_eq!(answer.extents, [(0, 3 * BLOCK), (9 * BLOCK, BLOCK), (127 * BLOCK, BLOCK)]);
    let changed = delta(&mut client, &first, &second, 0, 0).await.unwrap();
    assert_eq!(changed.extents, [(2 * BLOCK, BLOCK), (39 * BLOCK, 2 * BLOCK)]);
}

#[tokio::test]
async fn a_volume_that_grew_between_snapshots_reports_the_new_part() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (disk, [_, _, third]) = three_snapshots(&testbed, &mut client, &[]).await;
    let grown =
        lifeboat_testbed_csi::proto::CapacityRange { required_bytes: 16 * MIB as i64, limit_bytes: 0 };
    let request = lifeboat_testbed_csi::proto::ControllerExpandVolumeRequest {
        volume_id: disk.clone(),
        capacity_range: Some(grown),
        volume_capability: None,
    };
    client.controller.controller_expand_volume(request).await.unwrap();
    let device = testbed.path("device");
    client.attach(&disk, &device, &block(Mode::SingleNodeWriter)).await.unwrap();
    write_at(&device, 200 * BLOCK, &[1; 10]);
    let larger = client.snapshot(&disk, "larger").await.unwrap().snapshot_id;
    let answer = delta(&mut client, &third, &larger, 0, 0).await.unwrap();
    assert_eq!((covered(&answer.extents), answer.capacity), (vec![200], 16 * MIB));
}

#[tokio::test]
async fn snapshots_that_cannot_be_compared_are_refused() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (_, [first, second, _]) = three_snapshots(&testbed, &mut client, &[]).await;
    let code = |outcome: Result<Answer, Status>| outcome.unwrap_err().code();

    assert_eq!(code(delta(&mut client, &second, &first, 0, 0).await), Code::InvalidArgument);
    assert_eq!(code(allocated(&mut client, "snap-unknown", 0, 0).await), Code::NotFound);
    assert_eq!(code(allocated(&mut client, "", 0, 0).await), Code::InvalidArgument);

    let other = client
        .create(volume("other", 8, block(Mode::SingleNodeWriter), &["changedBlocks=none"]))
        .await
        .unwrap();
    let untracked = client.snapshot(&other.volume_id, "untracked").await.unwrap().snapshot_id;
    assert_eq!(code(allocated(&mut client, &untracked, 0, 0).await), Code::FailedPrecondition);

    let files = client.create(volume("files", 8, mount(Mode::SingleNodeWriter), &[])).await.unwrap();
    let directory = client.snapshot(&files.volume_id, "directory").await.unwrap().snapshot_id;
    assert_eq!(code(allocated(&mut client, &directory, 0, 0).await), Code::FailedPrecondition);

    let third = client.create(volume("third", 8, block(Mode::SingleNodeWriter), &[])).await.unwrap();
    let stranger = client.snapshot(&third.volume_id, "stranger").await.unwrap().snapshot_id;
    assert_eq!(code(delta(&mut client, &first, &stranger, 0, 0).await), Code::InvalidArgument);
}

#[tokio::test]
async fn knobs_make_answers_wrong_in_the_way_they_say() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (_, [first, second, _]) = three_snapshots(&testbed, &mut client, &[]).await;
    let truth = delta(&mut client, &first, &second, 0, 0).await.unwrap();
    assert_eq!(covered(&truth.extents), [2, 39, 40]);

    let lies = [
        ("missing", vec![39, 40]),
        ("extra", vec![0, 2, 39, 40]),
        ("truncated", vec![2]),
        ("unordered", vec![40, 39, 2]),
        ("capacity", vec![2, 39, 40]),
    ];
    for (lie, expected) in lies {
        testbed.set_knobs(&format!(r#"{{"method": "GetMetadataDelta", "blocks": "{lie}", "times": 1}}"#));
        let wrong = delta(&mut client, &first, &second, 0, 0).await.unwrap();
        assert_eq!(covered(&wrong.extents), expected, "{lie}");
        assert_eq!(wrong.capacity, if lie == "capacity" { 16 * MIB } else { 8 * MIB }, "{lie}");
        assert_eq!(delta(&mut client, &first, &second, 0, 0).await.unwrap(), truth, "after {lie}");
    }
    testbed.set_knobs(r#"{"method": "GetMetadataDelta", "blocks": "broken"}"#);
    assert_eq!(delta(&mut client, &first, &second, 0, 0).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_driver_without_the_service_does_not_answer() {
    let testbed = Testbed::start(&["--no-snapshot-metadata"]);
    let mut client = testbed.connect().await;
    assert_eq!(allocated(&mut client, "snap-any", 0, 0).await.unwrap_err().code(), Code::Unimplemented);
}
