//! Block devices and image files, in full and by changed ranges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::single_range_in_vec_init)] // a list of ranges is what is meant

mod common;

use common::{Opened, Place, root_object};
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::wrap::{Fault, Retry, RetryPolicy};
use lifeboat_blobs::{ErrorKind, FsOptions, FsStore};
use lifeboat_kopia::policy::{ActionCommand, CompressionPolicy, Policy};
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::{Id, Repository as _};
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{
    BlockBackupOptions, BlockRestoreOptions, Cancel, Error, Progress, Totals, back_up_block, restore_block,
    save_snapshot,
};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Not a multiple of anything.
const SIZE: u64 = 37 * MIB + 1234;

/// An image with data, zeros and holes.
fn plant_image(path: &Path) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(SIZE).unwrap();
    let mut random = Random::new(3);
    file.write_all_at(&random.bytes(5 << 20), 0).unwrap();
    file.write_all_at(&random.bytes(100), 9 * MIB + 17).unwrap();
    file.write_all_at(&vec![0; 3 << 20], 20 * MIB).unwrap();
    file.write_all_at(&random.bytes(3 << 20), SIZE - 3 * MIB).unwrap();
    file
}

fn options(place: &Place, opened: &Opened<'_>, path: &Path) -> BlockBackupOptions {
    BlockBackupOptions {
        path: path.to_owned(),
        source: place.source_info(),
        policy: Policy::defaults(),
        changes: None,
        actions: false,
        description: "Kopia Uploader".to_owned(),
        checkpoint_interval: None,
        threads: 0,
        budget: opened.budget.clone(),
    }
}

fn back_up(opened: &Opened<'_>, options: &BlockBackupOptions) -> (SnapshotManifest, Totals) {
    let progress = Progress::default();
    let mut snapshot = back_up_block(&opened.interface, options, &progress, &Cancel::default()).unwrap();
    save_snapshot(&opened.interface, &mut snapshot).unwrap();
    opened.interface.flush().unwrap();
    (snapshot, progress.totals())
}

fn data_of(opened: &Opened<'_>, snapshot: &SnapshotManifest) -> Vec<u8> {
    let file = opened.entries(root_object(snapshot)).remove(0);
    let mut reader = opened.interface.open_object(&Id::new(file.object)).unwrap();
    let mut data = Vec::new();
    reader.read_to_end(&mut data).unwrap();
    assert_eq!(data.len() as u64, file.size);
    data
}

#[test]
fn an_image_becomes_a_snapshot_in_velero_s_shape_that_kopia_reads() {
    let place = Place::new();
    let path = place.path("image");
    plant_image(&path);
    let opened = place.open();
    let (snapshot, totals) = back_up(&opened, &options(&place, &opened, &path));
    assert_eq!((totals.files, totals.bytes, totals.estimated_bytes), (1, SIZE, SIZE));
    let root = snapshot.root_entry.as_ref().unwrap();
    let name = path.to_str().unwrap();
    assert_eq!((root.name.as_str(), root.mode.to_unix(), root.uid), (Some(name), 0o777, 0));
    assert_eq!(root.mtime.to_string(), "1754-08-30T22:43:41.128654848Z");
    let entries = opened.entries(&root.object);
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (entries[0].name.as_str(), entries[0].mode.to_unix(), entries[0].size),
        (Some(name), 0o777, SIZE)
    );
    assert_eq!(snapshot.stats.total_size, SIZE as i64);

    let expected = std::fs::read(&path).unwrap();
    assert!(data_of(&opened, &snapshot) == expected, "the image is not the same");
    place.kopia.verify_snapshots().unwrap();
    let shown = place.kopia.run(["show", &entries[0].object]).unwrap().stdout;
    assert!(shown == expected, "kopia reads something else");
}

#[test]
fn only_what_changed_is_read_and_the_rest_is_the_earlier_snapshot_s() {
    let place = Place::new();
    let path = place.path("image");
    let file = plant_image(&path);
    let opened = place.open();
    let (first, _) = back_up(&opened, &options(&place, &opened, &path));

    let mut random = Random::new(4);
    file.write_all_at(&random.bytes(10), 3).unwrap();
    file.write_all_at(&random.bytes(4096), 15 * MIB - 1).unwrap();
    // Zeros where there was data have to be said.
    file.write_all_at(&vec![0; 2 << 20], 2 * MIB).unwrap();
    // What is not told is not looked at.
    file.write_all_at(b"unseen", 30 * MIB).unwrap();
    let changed: Vec<Range<u64>> = vec![3..13, 2 * MIB..4 * MIB, 15 * MIB - 1..15 * MIB + 4095];
    let mut incremental = options(&place, &opened, &path);
    incremental.changes = Some((first.clone(), changed));
    let (second, totals) = back_up(&opened, &incremental);
    assert_eq!((totals.hashed_bytes, totals.bytes), (5 * MIB, SIZE));
    let mut expected = std::fs::read(&path).unwrap();
    expected[30 << 20..][..6].fill(0);
    assert!(data_of(&opened, &second) == expected, "the image is not the same");

    // A volume that has grown, and one that has shrunk.
    for size in [SIZE + 3 * MIB, 11 * MIB + 5] {
        file.set_len(size).unwrap();
        let mut incremental = options(&place, &opened, &path);
        incremental.changes = Some((second.clone(), vec![30 * MIB..31 * MIB]));
        let (snapshot, _) = back_up(&opened, &incremental);
        assert!(data_of(&opened, &snapshot) == std::fs::read(&path).unwrap(), "not the same at size {size}");
    }
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn an_earlier_snapshot_of_something_else_is_not_relied_on() {
    let place = Place::new();
    let path = place.path("image");
    plant_image(&path);
    for name in ["a", "b"] {
        common::write(place.source().join(name), name);
    }
    let (of_files, _) = place.back_up();
    let mut missing = of_files.clone();
    missing.root_entry.as_mut().unwrap().object = "kffffffffffffffffffffffffffffffff".to_owned();
    let opened = place.open();
    for parent in [of_files, missing] {
        let mut options = options(&place, &opened, &path);
        options.changes = Some((parent, Vec::new()));
        let (snapshot, totals) = back_up(&opened, &options);
        assert_eq!(totals.hashed_bytes, SIZE);
        assert!(data_of(&opened, &snapshot) == std::fs::read(&path).unwrap());
    }
}

#[test]
fn an_earlier_snapshot_that_has_lost_data_is_not_relied_on_and_what_it_lost_comes_back() {
    let place = Place::new();
    let path = place.path("image");
    plant_image(&path);
    let opened = place.open();
    let (first, _) = back_up(&opened, &options(&place, &opened, &path));
    drop(opened);
    // The listing is in another pack: the snapshot can still be opened.
    place.remove_packs_of_data();
    let opened = place.open();
    let mut incremental = options(&place, &opened, &path);
    incremental.changes = Some((first, Vec::new()));
    let (second, totals) = back_up(&opened, &incremental);
    assert_eq!(totals.hashed_bytes, SIZE);
    assert!(data_of(&opened, &second) == std::fs::read(&path).unwrap(), "the image is not the same");
    place.kopia.verify_snapshots().unwrap();
    place.kopia.verify_contents().unwrap();
}

/// A change of the policy, and whether the volume is compressed by it.
type PolicyRule = (fn(&mut CompressionPolicy), bool);

#[test]
fn the_policy_says_by_name_and_size_whether_a_volume_is_compressed() {
    let place = Place::new();
    let path = place.path("volume.img");
    common::write(&path, "all the same ".repeat(1 << 18));
    let rules: [PolicyRule; 6] = [
        (|_| {}, true),
        (|rules| rules.min_size = 1 << 30, false),
        (|rules| rules.max_size = 1 << 10, false),
        (|rules| rules.never_compress = vec![".img".to_owned()], false),
        (|rules| rules.only_compress = vec![".log".to_owned()], false),
        (|rules| rules.only_compress = vec![".img".to_owned()], true),
    ];
    for (number, (rule, is_compressed)) in rules.into_iter().enumerate() {
        // Other bytes each time: those that the repository has are not written again.
        let file = File::options().write(true).open(&path).unwrap();
        (0..4).for_each(|piece| file.write_all_at(&[number as u8 + 1], piece * MIB).unwrap());
        let opened = place.open();
        let mut options = options(&place, &opened, &path);
        options.policy.compression.compressor = "zstd".to_owned();
        rule(&mut options.policy.compression);
        let (snapshot, _) = back_up(&opened, &options);
        let object = opened.entries(root_object(&snapshot)).remove(0).object;
        let compressed = opened.compressions(&object);
        assert!(compressed.len() > 1 && compressed.iter().all(|id| (*id != 0) == is_compressed), "{number}");
        assert!(data_of(&opened, &snapshot) == std::fs::read(&path).unwrap());
    }
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn commands_of_the_policy_run_before_and_after_and_may_name_another_device() {
    let place = Place::new();
    let (path, copy, diary) = (place.path("image"), place.path("copy"), place.path("diary"));
    plant_image(&path);
    std::fs::write(&copy, b"what the command says to read").unwrap();
    let action = |script: String| {
        Some(ActionCommand { script, mode: "essential".to_owned(), ..ActionCommand::default() })
    };
    let note = format!("echo $KOPIA_ACTION $KOPIA_SOURCE_PATH $KOPIA_SNAPSHOT_PATH >> {}", diary.display());
    let opened = place.open();
    let mut options = options(&place, &opened, &path);
    options.policy.actions.before_snapshot_root =
        action(format!("{note}\necho KOPIA_SNAPSHOT_PATH={}", copy.display()));
    options.policy.actions.after_snapshot_root = action(note);
    let (without, _) = back_up(&opened, &options);
    assert!(data_of(&opened, &without) == std::fs::read(&path).unwrap(), "they are not allowed to run");
    assert!(!diary.exists());
    options.actions = true;
    let (snapshot, _) = back_up(&opened, &options);
    assert_eq!(data_of(&opened, &snapshot), b"what the command says to read");
    let name = path.display();
    let lines = [
        format!("before-snapshot-root {name} {name}"),
        format!("after-snapshot-root {name} {}", copy.display()),
    ];
    assert_eq!(std::fs::read_to_string(&diary).unwrap().lines().collect::<Vec<_>>(), lines);
    options.policy.actions.before_snapshot_root = action("exit 3".to_owned());
    let failed = back_up_block(&opened.interface, &options, &Progress::default(), &Cancel::default());
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("before-snapshot-root"), "{error}");
}

#[test]
fn what_is_no_device_and_what_is_cancelled_end_with_an_error() {
    let place = Place::new();
    let opened = place.open();
    let run = |path: &Path, cancel: &Cancel| {
        let options = options(&place, &opened, path);
        back_up_block(&opened.interface, &options, &Progress::default(), cancel)
    };
    let error = run(&place.source(), &Cancel::default()).unwrap_err().to_string();
    assert!(error.contains("neither a block device nor a file"), "{error}");
    assert!(run(&place.path("nothing"), &Cancel::default()).is_err());
    let path = place.path("image");
    plant_image(&path);
    let cancel = Cancel::default();
    cancel.cancel();
    assert!(matches!(run(&path, &cancel), Err(Error::Cancelled)));
}

/// A loop device, gone when dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &Path) -> Loop {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.expect("losetup is missing: install util-linux");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "losetup failed (it takes root and loop devices): {error}");
        Loop(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_real_block_device_is_read_to_its_last_byte() {
    let place = Place::new();
    let path = place.path("image");
    // Devices have whole sectors.
    plant_image(&path).set_len(SIZE / 512 * 512).unwrap();
    let device = Loop::new(&path);
    let opened = place.open();
    let (snapshot, totals) = back_up(&opened, &options(&place, &opened, &device.0));
    assert_eq!(totals.bytes, SIZE / 512 * 512);
    assert!(data_of(&opened, &snapshot) == std::fs::read(&path).unwrap(), "the device is not the same");
    assert_zeros_are_not_written(&opened);
}

/// The image has data in ten of its pieces; another one stands for all that are zeros.
fn assert_zeros_are_not_written(opened: &Opened<'_>) {
    let new = opened.interface.written().new;
    assert!((8 * MIB..12 * MIB).contains(&new), "{new} bytes were written");
}

#[test]
fn zeros_of_an_image_are_not_written_whether_it_has_holes_or_not() {
    for in_full in [false, true] {
        let place = Place::new();
        let path = place.path("image");
        plant_image(&path);
        if in_full {
            let data = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            common::write(&path, data);
        }
        let opened = place.open();
        let (snapshot, _) = back_up(&opened, &options(&place, &opened, &path));
        assert!(data_of(&opened, &snapshot) == std::fs::read(&path).unwrap(), "the image is not the same");
        assert_zeros_are_not_written(&opened);
    }
}

/// The repository's folder behind faults that can be planned.
fn store_with_faults(place: &Place) -> (Fault<FsStore>, Control) {
    let open = FsStore::open(FsOptions::new(place.path("repository")));
    let fault = Fault::new(place.runtime.block_on(open).unwrap());
    let control = fault.control();
    (fault, control)
}

#[test]
fn a_store_that_fails_one_call_in_twenty_costs_a_device_nothing_but_time() {
    let place = Place::new();
    let path = place.path("image");
    plant_image(&path);
    // Small packs: many calls.
    place.kopia.run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    let (fault, control) = store_with_faults(&place);
    for number in 0..100 {
        let action = match number % 2 {
            0 => Action::FailBefore(ErrorKind::Transient),
            _ => Action::FailAfter(ErrorKind::Transient),
        };
        control.plan(Rule::any().skip(number * 20 + 7).action(action));
    }
    let policy = RetryPolicy {
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(20),
        ..RetryPolicy::default()
    };
    let opened = place.open_store(Arc::new(Retry::new(fault, policy)));
    let mut options = options(&place, &opened, &path);
    options.checkpoint_interval = Some(Duration::from_millis(20));
    let (first, _) = back_up(&opened, &options);
    // Once more, on top of the first one.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&Random::new(6).bytes(12 << 20), 7 * MIB).unwrap();
    options.changes = Some((first, vec![7 * MIB..19 * MIB]));
    let (second, totals) = back_up(&opened, &options);
    assert_eq!(totals.hashed_bytes, 12 * MIB);
    assert!(control.calls() > 20, "nothing can have failed");
    drop(opened);
    let opened = place.open();
    assert!(data_of(&opened, &second) == std::fs::read(&path).unwrap(), "the image is not the same");
    place.kopia.verify_snapshots().unwrap();
    place.kopia.verify_contents().unwrap();
}

/// A small file system of its own, gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf) -> SmallDisk {
        std::fs::create_dir(&path).unwrap();
        let disk = SmallDisk(path);
        disk.mount(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
        disk
    }

    fn mount(&self, words: &[&str]) {
        let mounted = Command::new("mount").args(words).arg(&self.0).status().unwrap().success();
        assert!(mounted, "mounting a small disk takes root: run the test as root");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_restore_of_an_image_and_a_larger_one_completes_it() {
    let place = Place::new();
    let path = place.path("image");
    plant_image(&path);
    let opened = place.open();
    let (snapshot, _) = back_up(&opened, &options(&place, &opened, &path));
    let root = snapshot.root_entry.unwrap();
    let disk = SmallDisk::new(place.path("disk"));
    let target = disk.0.join("target");
    let restore = |compare| {
        let options = BlockRestoreOptions { target: target.clone(), compare, threads: 0 };
        restore_block(&opened.interface, &root, &options, &Progress::default(), &Cancel::default())
    };
    let error = restore(false).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    assert!(error.to_string().contains("No space left"), "{error}");
    disk.mount(&["-o", "remount,size=100m"]);
    assert!(restore(true).unwrap().written > 0);
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&path).unwrap(), "the image is not the same");
}
