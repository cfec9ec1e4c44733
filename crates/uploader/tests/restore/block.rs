//! Block volumes: to image files and to real devices.

use crate::fixture::{Fixture, noise};
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::Repository;
use lifeboat_uploader::{
    BlockRestoreOptions, BlockRestoreReport, Cancel, Error, Progress, Result, restore_block,
};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(fixture: &Fixture, root: &DirEntry, target: &Path, compare: bool) -> Result<BlockRestoreReport> {
    let options = BlockRestoreOptions { target: target.to_path_buf(), compare, threads: 3 };
    fixture.repository.flush().unwrap();
    restore_block(&fixture.repository, root, &options, &Progress::default(), &Cancel::default())
}

/// A volume with data, zeros and a size that is no multiple of anything, as Velero stores it.
fn volume(fixture: &Fixture, size: usize) -> (DirEntry, Vec<u8>) {
    let mut data = noise(1, size);
    let quarter = size / 4;
    data[quarter..3 * quarter].fill(0);
    // The names that Velero gives: absolute paths, which are not to be used.
    let file = fixture.file("/dev/never-touch-this", &data);
    let root = fixture.directory("/dev/never-touch-this", &[file]);
    (root, data)
}

#[test]
fn an_image_has_the_bytes_the_holes_and_the_size_of_the_volume() {
    let fixture = Fixture::new();
    let (root, data) = volume(&fixture, (40 << 20) + 512);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = folder.path().join("image");
    // What is there before does not shine through, be it longer or shorter.
    for before in [0, 1000, 50 << 20] {
        fs::write(&image, vec![9; before]).unwrap();
        let report = run(&fixture, &root, &image, false).unwrap();
        assert!(fs::read(&image).unwrap() == data, "{before}");
        assert!(fs::metadata(&image).unwrap().blocks() * 512 < 24 << 20);
        assert_eq!((report.size, report.written + report.zeros), (data.len() as u64, data.len() as u64));
    }
    File::options().write(true).open(&image).unwrap().write_all_at(b"changed", 20 << 20).unwrap();
    let report = run(&fixture, &root, &image, true).unwrap();
    assert!(fs::read(&image).unwrap() == data);
    assert!(report.kept > 25 << 20 && report.read_bytes < 15 << 20, "{report:?}");
}

/// A loop device over a file; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Loop {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let output = output.unwrap_or_else(|error| panic!("losetup (of util-linux) is missing: {error}"));
        assert!(
            output.status.success(),
            "a loop device takes root and a free device: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Loop(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_device_gets_the_volume_and_keeps_what_lies_behind_it() {
    let fixture = Fixture::new();
    let (root, data) = volume(&fixture, 24 << 20);
    let backing = fixture.path("backing");
    fs::write(&backing, vec![5; 30 << 20]).unwrap();
    let device = Loop::new(&backing);
    for compare in [false, true] {
        let report = run(&fixture, &root, &device.0, compare).unwrap();
        let found = fs::read(&device.0).unwrap();
        assert!(found[..24 << 20] == data && found[24 << 20..].iter().all(|byte| *byte == 5), "{report:?}");
        assert_eq!(report.kept > 0, compare, "{report:?}");
    }
}

#[test]
fn a_device_that_is_too_small_or_in_use_is_refused_before_a_byte_is_written() {
    let fixture = Fixture::new();
    let (root, _) = volume(&fixture, 24 << 20);
    let backing = fixture.path("backing");
    fs::write(&backing, vec![5; (24 << 20) - 4096]).unwrap();
    let device = Loop::new(&backing);
    let error = run(&fixture, &root, &device.0, false).unwrap_err();
    assert!(
        matches!(error, Error::TargetTooSmall { needed, available, .. } if needed == 24 << 20 && available == needed - 4096),
        "{error}"
    );
    assert!(fs::read(&device.0).unwrap().iter().all(|byte| *byte == 5));
    drop(device);

    fs::write(&backing, vec![0; 64 << 20]).unwrap();
    let device = Loop::new(&backing);
    assert!(Command::new("mkfs.ext4").arg("-q").arg(&device.0).status().unwrap().success());
    let mounted = fixture.path("mounted");
    fs::create_dir(&mounted).unwrap();
    assert!(Command::new("mount").arg(&device.0).arg(&mounted).status().unwrap().success());
    let outcome = run(&fixture, &root, &device.0, false);
    let unmounted = Command::new("umount").arg(&mounted).status().unwrap().success();
    assert!(outcome.unwrap_err().to_string().contains("busy") && unmounted);
}

#[test]
fn what_is_not_a_block_volume_is_refused() {
    let fixture = Fixture::new();
    let root = fixture.directory("root", &[fixture.file("a", b"a"), fixture.file("b", b"b")]);
    assert!(run(&fixture, &root, &fixture.path("image"), false).is_err());
    let short = DirEntry { size: 5000, ..fixture.file("x", b"short") };
    let root = fixture.directory("root", &[short]);
    assert!(run(&fixture, &root, &fixture.path("image"), false).is_err());
    let long = DirEntry { size: 5, ..fixture.file("x", b"longer than that") };
    let root = fixture.directory("root", &[long]);
    assert!(run(&fixture, &root, &fixture.path("image"), false).is_err());
    // Zeros behind the end are padding.
    let padded = DirEntry { size: 1000, ..fixture.file("x", &[vec![1; 1000], vec![0; 3096]].concat()) };
    let root = fixture.directory("root", &[padded]);
    run(&fixture, &root, &fixture.path("image"), false).unwrap();
    assert_eq!(fs::read(fixture.path("image")).unwrap(), vec![1; 1000]);
    assert!(
        run(&fixture, &root, &fixture.folder.path().join("."), false).is_err(),
        "a directory is no device"
    );
}
