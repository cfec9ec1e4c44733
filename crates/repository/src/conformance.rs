//! What every engine behind the Unified Repository Interface must do, as scenarios that run against it.
//!
//! An engine's tests implement [`Harness`] and call [`run`]; each scenario gets a place of its own. A scenario
//! panics where the engine breaks the contract, and the panic names the scenario.

#![allow(clippy::unwrap_used, clippy::panic)]

mod scattered;

use crate::{
    AccessMode, BackupMode, DataType, ErrorKind, Id, ManifestFilter, ObjectInBuffer, ObjectWriteOptions,
    Readiness, Repository, RepositoryOptions, RepositoryService, Secret,
};
use lifeboat_budget::Buffer;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// What the suite needs of an engine's tests.
pub trait Harness {
    /// The engine.
    fn service(&self) -> &dyn RepositoryService;

    /// Options that name an empty place nobody used before, and a connection file of its own.
    fn empty_place(&self) -> RepositoryOptions;
}

/// An object that is there, and its bytes.
pub type Object = (Id, Vec<u8>);

/// The part of the suite that only reads, for engines that do not write. One object has at least a few MiB that do not
/// compress, and another is shorter.
pub fn run_reading(repository: &dyn Repository, objects: &[Object]) {
    for (id, data) in objects {
        assert!(read(repository, id) == *data, "the {} bytes of {id}", data.len());
    }
    scattered::come_together(repository, objects, "of another program");
    let longest = objects.iter().max_by_key(|(_, data)| data.len()).unwrap();
    let shortest = objects.iter().min_by_key(|(_, data)| data.len()).unwrap();
    reads_anywhere(repository, longest);
    assert!(scattered::keeps_what_is_there(repository, longest) > 0, "nothing was kept");
    scattered::breaks_off(repository, &longest.0, shortest);
    scattered::stops(repository, &longest.0);
    let nonsense = repository.open_object(&Id::new("no such id")).map(drop).unwrap_err();
    assert_eq!(nonsense.kind(), ErrorKind::InvalidInput);
}

/// A scenario: a sentence that the engine makes true.
pub type Scenario = (&'static str, fn(&dyn Harness));

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    ("a repository goes from absent to ready and is never created twice", life_cycle),
    ("a wrong password is refused and named as such", wrong_password),
    ("opening without connecting fails", open_needs_connection),
    ("unknown options are refused", unknown_options),
    ("objects of every awkward size come back byte for byte", object_sizes),
    ("an object can be read at any offset", seeking),
    ("objects read together come back byte for byte", scattered::many_objects),
    ("of objects read together a bad one stops no other", scattered::bad_ones_stop_nobody),
    ("what a destination has already is kept, the rest is delivered", scattered::what_is_there_is_kept),
    ("a destination that breaks off hears nothing more", scattered::breaking_off),
    ("reading objects together ends when it is told to", scattered::stopping),
    ("equal data has equal ids", deduplication),
    ("a missing object is not found", missing_object),
    ("manifests are found by id, by labels and all together", manifests),
    ("a deleted manifest is gone, deleting again is fine", manifest_deletion),
    ("what was flushed is seen by another handle, what was not is not", visibility),
    ("a checkpoint is a readable prefix of the object", checkpoints),
    ("an object by regions from several threads is the one written in order", regions),
    ("what lies in a buffer is written like anything else", buffers),
    ("objects are joined without copying", concatenation),
    ("an object is written at offsets from several threads", positional_writes),
    ("unwritten ranges are zeros in a full object", holes),
    ("unwritten ranges are the parent's in an incremental object", incremental),
    ("many threads write objects at once", concurrent_objects),
    ("maintenance keeps what manifests need", maintenance_keeps_data),
];

/// Runs every scenario.
pub fn run(harness: &dyn Harness) {
    for (name, scenario) in SCENARIOS {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(harness)));
        if let Err(cause) = outcome {
            let text = cause
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| cause.downcast_ref::<&str>().copied())
                .unwrap_or("unknown cause");
            panic!("the engine breaks the contract: {name}: {text}");
        }
    }
}

/// Bytes that do not compress and do not repeat, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn fresh(harness: &dyn Harness) -> (RepositoryOptions, Arc<dyn Repository>) {
    let options = harness.empty_place();
    harness.service().create(&options).unwrap();
    let repository = harness.service().open(&options).unwrap();
    (options, repository)
}

fn file_options() -> ObjectWriteOptions {
    ObjectWriteOptions { data_type: DataType::Data, access_mode: AccessMode::File, ..Default::default() }
}

fn block_options() -> ObjectWriteOptions {
    ObjectWriteOptions { access_mode: AccessMode::Block, ..file_options() }
}

fn write(repository: &dyn Repository, data: &[u8]) -> Id {
    let mut writer = repository.new_object(&file_options()).unwrap();
    for piece in data.chunks(1_000_003) {
        writer.write(piece).unwrap();
    }
    writer.result().unwrap()
}

fn read(repository: &dyn Repository, id: &Id) -> Vec<u8> {
    let mut reader = repository.open_object(id).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, reader.length(), "length of {id}");
    bytes
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn life_cycle(harness: &dyn Harness) {
    let service = harness.service();
    let options = harness.empty_place();
    assert_eq!(service.readiness(&options).unwrap(), Readiness::Absent);
    assert_eq!(service.connect(&options).unwrap_err().kind(), ErrorKind::NotFound);
    service.init(&options, true).unwrap();
    assert_eq!(service.readiness(&options).unwrap(), Readiness::Ready);
    assert_eq!(service.create(&options).unwrap_err().kind(), ErrorKind::AlreadyExists);
    service.init(&options, false).unwrap();
    service.open(&options).unwrap().close().unwrap();
    assert!(!service.default_maintenance_frequency().is_zero());
}

fn wrong_password(harness: &dyn Harness) {
    let options = harness.empty_place();
    harness.service().create(&options).unwrap();
    let wrong = RepositoryOptions { password: Secret::new("not the password"), ..options };
    assert_eq!(harness.service().connect(&wrong).unwrap_err().kind(), ErrorKind::WrongPassword);
    assert_eq!(harness.service().open(&wrong).err().unwrap().kind(), ErrorKind::WrongPassword);
}

fn open_needs_connection(harness: &dyn Harness) {
    let options = harness.empty_place();
    assert_eq!(harness.service().open(&options).err().unwrap().kind(), ErrorKind::NotFound);
}

fn unknown_options(harness: &dyn Harness) {
    let mut options = harness.empty_place();
    options.general_options.insert("noSuchOption".to_owned(), "1".to_owned());
    let error = harness.service().create(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("noSuchOption"), "the text names the option: {error}");
}

fn object_sizes(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    const MIB: usize = 1 << 20;
    for size in [0, 1, 4095, 65_536, MIB, 2 * MIB, 2 * MIB + 1, 4 * MIB, 8 * MIB, 25 * MIB + 17] {
        let data = noise(size as u64 + 1, size);
        let id = write(&*repository, &data);
        assert!(read(&*repository, &id) == data, "{size} bytes before the flush");
        repository.flush().unwrap();
        assert!(read(&*repository, &id) == data, "{size} bytes after the flush");
    }
    let zeros = vec![0; 9 * MIB];
    assert!(read(&*repository, &write(&*repository, &zeros)) == zeros, "zeros");
}

fn seeking(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let data = noise(7, 21 << 20);
    let id = write(&*repository, &data);
    repository.flush().unwrap();
    reads_anywhere(&*repository, &(id, data));
}

fn reads_anywhere(repository: &dyn Repository, (id, data): &Object) {
    let mut reader = repository.open_object(id).unwrap();
    assert_eq!(reader.length(), data.len() as u64);
    let offsets = [0usize, 1, 2 << 20, 8 << 20, (8 << 20) - 3, data.len() * 2 / 3, data.len() - 1];
    for start in offsets.into_iter().filter(|start| *start < data.len()) {
        let mut buffer = vec![0; 100_000.min(data.len() - start)];
        reader.seek(SeekFrom::Start(start as u64)).unwrap();
        reader.read_exact(&mut buffer).unwrap();
        assert!(buffer == data[start..start + buffer.len()], "sequential read at {start}");
        buffer.fill(0);
        assert_eq!(reader.read_at(start as u64, &mut buffer).unwrap(), buffer.len());
        assert!(buffer == data[start..start + buffer.len()], "positional read at {start}");
    }
    assert_eq!(reader.seek(SeekFrom::End(-5)).unwrap(), data.len() as u64 - 5);
    let mut tail = Vec::new();
    reader.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, data[data.len() - 5..]);
    assert_eq!(reader.read_at(data.len() as u64 + 10, &mut [0; 4]).unwrap(), 0, "reading past the end");
}

fn deduplication(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let data = noise(3, 5 << 20);
    let first = write(&*repository, &data);
    repository.flush().unwrap();
    assert_eq!(first, write(&*repository, &data));
    assert_ne!(first, write(&*repository, &noise(4, 5 << 20)));
}

fn missing_object(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let id = write(&*repository, b"never flushed");
    drop(repository);
    let repository = harness.service().open(&options).unwrap();
    let outcome = repository.open_object(&id).and_then(|reader| reader.read_at(0, &mut [0; 1]));
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NotFound);
}

fn manifests(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let before = repository.find_manifests(&ManifestFilter::default()).unwrap().len();
    let payload = br#"{"answer":42}"#;
    let first = repository.put_manifest(labels(&[("type", "test"), ("name", "a")]), payload).unwrap();
    let second = repository.put_manifest(labels(&[("type", "test"), ("name", "b")]), b"{}").unwrap();
    repository.flush().unwrap();
    let repository = harness.service().open(&options).unwrap();
    let manifest = repository.manifest(&first).unwrap();
    assert_eq!(manifest.payload, payload);
    assert_eq!(manifest.metadata.labels, labels(&[("type", "test"), ("name", "a")]));
    assert_eq!(manifest.metadata.length, payload.len() as u64);
    let of = |pairs: &[(&str, &str)]| {
        let found = repository.find_manifests(&ManifestFilter { labels: labels(pairs) }).unwrap();
        found.into_iter().map(|metadata| metadata.id).collect::<Vec<_>>()
    };
    assert_eq!(of(&[("name", "b")]), std::slice::from_ref(&second));
    assert_eq!(of(&[("type", "test")]), [first, second], "oldest first");
    assert_eq!(of(&[("type", "test"), ("name", "c")]), []);
    assert_eq!(repository.find_manifests(&ManifestFilter::default()).unwrap().len(), before + 2);
    assert_eq!(repository.manifest(&Id::new("0123")).unwrap_err().kind(), ErrorKind::NotFound);
    let unlabelled = repository.put_manifest(BTreeMap::new(), b"{}").unwrap_err();
    assert_eq!(unlabelled.kind(), ErrorKind::InvalidInput, "a manifest without a type cannot be found again");
    let not_json = repository.put_manifest(labels(&[("type", "test")]), b"{").unwrap_err();
    assert_eq!(not_json.kind(), ErrorKind::InvalidInput);
}

fn manifest_deletion(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let id = repository.put_manifest(labels(&[("type", "test")]), b"{}").unwrap();
    repository.flush().unwrap();
    repository.delete_manifest(&id).unwrap();
    assert_eq!(repository.manifest(&id).unwrap_err().kind(), ErrorKind::NotFound);
    repository.flush().unwrap();
    let repository = harness.service().open(&options).unwrap();
    assert_eq!(repository.manifest(&id).unwrap_err().kind(), ErrorKind::NotFound);
    repository.delete_manifest(&id).unwrap();
    repository.delete_manifest(&Id::new("00112233445566778899aabbccddeeff")).unwrap();
}

fn visibility(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let filter = ManifestFilter { labels: labels(&[("type", "test")]) };
    let data = noise(9, 3 << 20);
    let object = write(&*repository, &data);
    repository
        .put_manifest(labels(&[("type", "test")]), format!("{{\"o\":\"{object}\"}}").as_bytes())
        .unwrap();
    let early = harness.service().open(&options).unwrap();
    assert_eq!(early.find_manifests(&filter).unwrap(), []);
    repository.flush().unwrap();
    let late = harness.service().open(&options).unwrap();
    assert_eq!(late.find_manifests(&filter).unwrap().len(), 1);
    assert!(read(&*late, &object) == data);
}

fn checkpoints(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    if !repository.features().checkpoint {
        return;
    }
    let data = noise(11, 30 << 20);
    let mut writer = repository.new_object(&file_options()).unwrap();
    writer.write(&data[..20 << 20]).unwrap();
    let (checkpoint, length) = writer.checkpoint().unwrap().unwrap();
    repository.flush().unwrap();
    let so_far = read(&*repository, &checkpoint);
    assert_eq!(so_far.len() as u64, length);
    assert!(!so_far.is_empty() && so_far == data[..so_far.len()], "a checkpoint is a prefix");
    writer.write(&data[20 << 20..]).unwrap();
    let id = writer.result().unwrap();
    assert!(read(&*repository, &id) == data, "a checkpoint does not disturb the object");
    assert_eq!(id, write(&*repository, &data), "nor its id");
}

fn regions(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let mut data = noise(21, 20_000_000);
    data[5_000_000..18_000_000].fill(0);
    let options = file_options();
    let in_order = write(&*repository, &data);

    let writer = repository.new_object_by_regions(&options).unwrap();
    let region = writer.longest_piece().max(1 << 20);
    let mut regions = Vec::new();
    let mut at = 0;
    let mut is_end = false;
    while !is_end {
        let zeros = data[at..].iter().take_while(|byte| **byte == 0).count();
        let mut range = at..at;
        let mut pieces = writer.cut_zeros(zeros as u64).unwrap();
        if pieces.bytes() == 0 {
            range = at..data.len().min(at + region);
            is_end = range.end == data.len();
            pieces = writer.cut(&data[range.clone()], is_end).unwrap();
        }
        at += pieces.bytes() as usize;
        regions.push((range, pieces));
    }
    assert_eq!(at, data.len());
    assert!(writer.cut(&data, true).is_err(), "nothing follows the end");
    let checkpoints = std::thread::scope(|scope| {
        let (writer, data, regions, repository) = (&writer, &data, &regions, &*repository);
        let threads = [0, 1].map(|thread| {
            scope.spawn(move || {
                // The last ones first: order does not matter.
                for (range, pieces) in regions.iter().rev().skip(thread).step_by(2) {
                    writer.write(buffer_of(repository, &data[range.clone()]), pieces).unwrap();
                }
                writer.checkpoint().unwrap()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(writer.result().unwrap(), in_order);
    for (prefix, length) in checkpoints.into_iter().flatten() {
        let prefix = read(&*repository, &prefix);
        assert_eq!(prefix.len() as u64, length);
        assert_eq!(prefix, data[..prefix.len()]);
    }

    let incomplete = repository.new_object_by_regions(&options).unwrap();
    let first = &data[..region];
    let pieces = incomplete.cut(first, false).unwrap();
    incomplete.write(buffer_of(&*repository, first), &pieces).unwrap();
    assert!(incomplete.result().is_err(), "an object without an end has no id");
}

/// A buffer with this data.
fn buffer_of(repository: &dyn Repository, data: &[u8]) -> Buffer {
    let mut buffer = repository.take_buffer(data.len()).unwrap();
    buffer.as_mut().copy_from_slice(data);
    buffer
}

/// Objects and ranges that lie in a buffer are the same as those that are handed in one by one.
fn buffers(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let data = noise(77, 9 << 20);
    let (one, other) = (file_options(), ObjectWriteOptions { compressor: "zstd".into(), ..file_options() });
    for kinds in [[&one, &one], [&one, &other]] {
        let ranges = [0..3 << 20, 3 << 20..3 << 20, (3 << 20) + 5..(4 << 20), 5 << 20..(7 << 20) + 1];
        let objects = ranges.clone().into_iter().zip(kinds.iter().cycle());
        let objects: Vec<_> = objects.map(|(range, options)| ObjectInBuffer { range, options }).collect();
        let ids = repository.write_objects_of(buffer_of(&*repository, &data), &objects).unwrap();
        for (range, id) in ranges.into_iter().zip(ids) {
            assert!(read(&*repository, &id) == data[range.clone()], "{range:?}");
        }
    }
    let beyond = [ObjectInBuffer { range: 0..data.len() + 1, options: &one }];
    assert!(repository.write_objects_of(buffer_of(&*repository, &data), &beyond).is_err());

    if repository.features().concurrent_write_at {
        let length = Some(12 << 20);
        let options = ObjectWriteOptions { access_mode: AccessMode::Block, length, ..file_options() };
        let writer = repository.new_object(&options).unwrap();
        let ranges = [0..1 << 20, 2 << 20..(5 << 20) + 7, 8 << 20..9 << 20];
        writer.write_buffer_at(1 << 20, buffer_of(&*repository, &data), &ranges).unwrap();
        let far = writer.write_buffer_at(
            4 << 20,
            buffer_of(&*repository, &data),
            std::slice::from_ref(&(0..9 << 20)),
        );
        assert!(far.is_err(), "beyond the end of the object");
        let mut expected = vec![0; 12 << 20];
        for range in ranges {
            expected[range.start + (1 << 20)..range.end + (1 << 20)].copy_from_slice(&data[range]);
        }
        assert!(read(&*repository, &writer.result().unwrap()) == expected);
    }
}

fn concatenation(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    if !repository.features().concatenate {
        return;
    }
    let parts: Vec<Vec<u8>> =
        [6 << 20, 100, 13 << 20].into_iter().map(|size| noise(size as u64, size)).collect();
    let ids: Vec<Id> = parts.iter().map(|part| write(&*repository, part)).collect();
    let joined = repository.concatenate(&ids).unwrap();
    repository.flush().unwrap();
    assert!(read(&*repository, &joined) == parts.concat());
    assert_eq!(repository.concatenate(&ids[..1]).unwrap(), ids[0], "one part is itself");
    assert_eq!(repository.concatenate(&[]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

fn positional_writes(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    if !repository.features().concurrent_write_at {
        return;
    }
    let data = noise(13, 24 << 20);
    let writer = repository.new_object(&block_options()).unwrap();
    let checkpoints = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in 0..4usize {
            let (writer, data, checkpoints) = (&writer, &data, &checkpoints);
            scope.spawn(move || {
                for (index, piece) in
                    data.chunks(1 << 20).enumerate().rev().filter(|(index, _)| index % 4 == lane)
                {
                    writer.write_at((index << 20) as u64, piece).unwrap();
                    checkpoints.lock().extend(writer.checkpoint_meanwhile().unwrap());
                }
            });
        }
    });
    let id = writer.result().unwrap();
    repository.flush().unwrap();
    assert!(read(&*repository, &id) == data);
    let checkpoints = checkpoints.into_inner();
    assert_eq!(checkpoints.is_empty(), !repository.features().checkpoint);
    for (checkpoint, length) in checkpoints {
        let so_far = read(&*repository, &checkpoint);
        assert_eq!(so_far.len() as u64, length);
        for (found, wanted) in so_far.chunks(1 << 20).zip(data.chunks(1 << 20)) {
            assert!(found == wanted || found.iter().all(|byte| *byte == 0), "it is neither data nor a gap");
        }
    }
}

fn holes(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let data = noise(17, 3 << 20);
    let sized = ObjectWriteOptions { length: Some(40 << 20), ..block_options() };
    let mut writer = repository.new_object(&sized).unwrap();
    writer.seek(5 << 20).unwrap();
    writer.write(&data).unwrap();
    let id = writer.result().unwrap();
    repository.flush().unwrap();
    let mut expected = vec![0; 40 << 20];
    expected[5 << 20..8 << 20].copy_from_slice(&data);
    assert!(read(&*repository, &id) == expected);
}

fn incremental(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    if !repository.features().clone_parent_ranges {
        return;
    }
    let mut image = noise(19, 32 << 20);
    let mut writer = repository.new_object(&block_options()).unwrap();
    writer.write(&image).unwrap();
    let parent = writer.result().unwrap();
    repository.flush().unwrap();
    let change = noise(23, 3_000_000);
    let incremental = ObjectWriteOptions {
        backup_mode: BackupMode::Incremental,
        parent: Some(parent.clone()),
        length: Some(33 << 20),
        ..block_options()
    };
    let writer = repository.new_object(&incremental).unwrap();
    for offset in [0usize, 9_999_999, (32 << 20) - 3_000_000] {
        writer.write_at(offset as u64, &change).unwrap();
        image[offset..offset + change.len()].copy_from_slice(&change);
    }
    image.resize(33 << 20, 0);
    let id = writer.result().unwrap();
    repository.flush().unwrap();
    assert!(read(&*repository, &id) == image);
    let orphan = ObjectWriteOptions { backup_mode: BackupMode::Incremental, ..block_options() };
    assert_eq!(repository.new_object(&orphan).err().unwrap().kind(), ErrorKind::InvalidInput);
}

fn concurrent_objects(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let ids: Vec<(u64, Id)> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4u64)
            .map(|lane| {
                let repository = &repository;
                scope.spawn(move || {
                    let sizes = (0..25u64).map(move |n| lane * 1000 + n);
                    sizes
                        .map(|seed| (seed, write(&**repository, &noise(seed, size_of_seed(seed)))))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    repository.flush().unwrap();
    let repository = harness.service().open(&options).unwrap();
    for (seed, id) in ids {
        assert!(read(&*repository, &id) == noise(seed, size_of_seed(seed)), "object {id}");
    }
}

fn size_of_seed(seed: u64) -> usize {
    (seed as usize * 7919) % 300_000
}

fn maintenance_keeps_data(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let data = noise(29, 6 << 20);
    let object = write(&*repository, &data);
    repository
        .put_manifest(labels(&[("type", "test")]), format!("{{\"o\":\"{object}\"}}").as_bytes())
        .unwrap();
    repository.flush().unwrap();
    repository.close().unwrap();
    for mode in [crate::MaintenanceMode::Quick, crate::MaintenanceMode::Full, crate::MaintenanceMode::Auto] {
        harness.service().maintain(&options, mode).unwrap();
    }
    let repository = harness.service().open(&options).unwrap();
    assert!(read(&*repository, &object) == data, "maintenance must not touch young data");
}
