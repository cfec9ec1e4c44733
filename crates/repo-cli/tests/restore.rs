//! `lifeboat-repo restore` as people use it: of what kopia wrote, killed and resumed, with every flag of kopia's.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Ours, end_by};
use lifeboat_testkit::cgroup::run_limited;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PASSWORD: &str = "correct horse battery staple";

/// A repository that kopia made, with a user of either side.
fn shared(folder: &Path) -> (Kopia, Ours) {
    let repository = folder.join("repository");
    fs::create_dir(&repository).unwrap();
    let (kopia, ours) = (Kopia::new(PASSWORD).unwrap(), Ours::new(PASSWORD).unwrap());
    kopia.create_filesystem(&repository, &[]).unwrap();
    ours.connect_filesystem(&repository).unwrap();
    (kopia, ours)
}

/// The words of a restore.
fn restore<'a>(id: &'a str, target: &'a Path, flags: &'a [&'a str]) -> Vec<&'a OsStr> {
    let words = [OsStr::new("restore"), OsStr::new(id), target.as_os_str()];
    words.into_iter().chain(flags.iter().map(OsStr::new)).collect()
}

#[test]
fn what_kopia_wrote_comes_back_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let (kopia, ours) = shared(folder.path());
    for seed in 0..4 {
        let source = folder.path().join(format!("source-{seed}"));
        TreeSpec { exact_sizes: vec![0, 1, 25_000_003], ..TreeSpec::small(seed) }.grow(&source).unwrap();
        let snapshot = kopia.snapshot(&source, &[]).unwrap();
        let target = folder.path().join(format!("target-{seed}"));
        ours.run(restore(&snapshot.id, &target, &["--verify", "--flush-files"])).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
        let by_root = folder.path().join(format!("root-{seed}"));
        ours.run(restore(&snapshot.root.obj, &by_root, &["--skip-times"])).unwrap();
        let loose = Compare {
            file_times: false,
            link_times: false,
            directory_times: false,
            top: false,
            ..Compare::exact()
        };
        assert_same(&source, &by_root, loose).unwrap();
    }
}

#[test]
fn a_restore_that_is_ended_by_either_signal_is_resumed_until_it_is_exact() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (kopia, ours) = shared(folder.path());
    let source = folder.path().join("source");
    let spec = TreeSpec {
        files: 3000,
        max_file_size: 100_000,
        exact_sizes: vec![30_000_000, 60_000_000],
        ..TreeSpec::medium(5)
    };
    spec.grow(&source).unwrap();
    let snapshot = kopia.snapshot(&source, &[]).unwrap();
    let target = folder.path().join("target");
    let mut random = Random::new(9);
    let mut ended = [0; 2];
    for round in 0..12 {
        let mut command = ours.command(restore(&snapshot.id, &target, &["--resume"]));
        let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100 + random.below(400)));
        // Wherever it is.
        let signal = [rustix::process::Signal::KILL, rustix::process::Signal::TERM][round % 2];
        ended[round % 2] += u32::from(end_by(child, signal));
    }
    assert!(ended.iter().all(|count| *count > 0), "every run was over before it could be ended: {ended:?}");
    ours.run(restore(&snapshot.id, &target, &["--resume"])).unwrap();
    assert_same(&source, &target, Compare::exact()).unwrap();
}

/// Makes the connection of a user slow.
fn slow_down(ours: &Ours, bytes_per_second: u64) {
    let file = ours.config_file();
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["storage"]["config"]["maxDownloadSpeedBytesPerSecond"] = bytes_per_second.into();
    fs::write(&file, serde_json::to_vec(&config).unwrap()).unwrap();
}

#[test]
fn sigterm_ends_a_restore_soon_and_it_can_be_resumed() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (kopia, ours) = shared(folder.path());
    let source = folder.path().join("source");
    TreeSpec { exact_sizes: vec![80_000_000], ..TreeSpec::small(6) }.grow(&source).unwrap();
    let snapshot = kopia.snapshot(&source, &[]).unwrap();
    let target = folder.path().join("target");
    let fast = Ours::new(PASSWORD).unwrap();
    fast.connect_filesystem(&folder.path().join("repository")).unwrap();
    // Slow enough that it cannot be through before the signal.
    slow_down(&ours, 500_000);
    let mut command = ours.command(restore(&snapshot.id, &target, &[]));
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    while !target.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the restore ended before it began");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cancelled"), "{text}");
    fast.run(restore(&snapshot.id, &target, &["--resume", "--verify"])).unwrap();
    assert_same(&source, &target, Compare::exact()).unwrap();
}

#[test]
fn paths_inside_a_snapshot_and_single_files_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let (kopia, ours) = shared(folder.path());
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/b/file"), "content").unwrap();
    fs::write(source.join("a/other"), "other").unwrap();
    let id = kopia.snapshot(&source, &[]).unwrap().id;
    let target = folder.path().join("target");
    ours.run(restore(&format!("{id}/a"), &target, &[])).unwrap();
    assert_same(&source.join("a"), &target, Compare::exact()).unwrap();
    let single = folder.path().join("single");
    ours.run(restore(&format!("{id}/a/b/file"), &single, &[])).unwrap();
    assert_eq!(fs::read(&single).unwrap(), b"content");
    let missing = ours.try_run(restore(&format!("{id}/a/c"), &single, &[])).unwrap();
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("\"c\" is missing"));
    let some = folder.path().join("some");
    ours.run(restore(&id, &some, &["--include", "a/*er", "--exclude", "x"])).unwrap();
    assert!(some.join("a/other").exists() && !some.join("a/b").exists());
}

/// Only the root of a snapshot says that attributes were looked for; that goes for all below it.
#[test]
fn a_directory_inside_a_snapshot_gets_no_access_control_list_that_only_the_target_hands_down() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ours) = shared(folder.path());
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), "content").unwrap();
    let id = ours.snapshot(&source, &[]).unwrap().id;
    // Version 2: owner rwx, user 1234 rwx, group r-x, mask rwx, others ---.
    let list = [(1u16, 7u16, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
        .iter()
        .fold(2u32.to_le_bytes().to_vec(), |mut bytes, (tag, rights, id)| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        });
    let restored = folder.path().join("restored");
    fs::create_dir(&restored).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&restored, "system.posix_acl_default", &list, flags).unwrap();
    for (what, target, file) in [("sub", "folder", "folder/file"), ("sub/file", "single", "single")] {
        ours.run(restore(&format!("{id}/{what}"), &restored.join(target), &[])).unwrap();
        let found = rustix::fs::getxattr(restored.join(file), "system.posix_acl_access", &mut [0; 256][..]);
        assert!(found.is_err(), "{what} has an access control list");
    }
}

#[test]
fn flags_about_what_is_there_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (kopia, ours) = shared(folder.path());
    let source = folder.path().join("source");
    TreeSpec::small(8).grow(&source).unwrap();
    let id = kopia.snapshot(&source, &[]).unwrap().id;
    let target = folder.path().join("target");
    ours.run(restore(&id, &target, &[])).unwrap();
    let refused = ours.try_run(restore(&id, &target, &["--no-overwrite-files"])).unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("File exists"));
    ours.run(restore(&id, &target, &["--no-overwrite-files", "--ignore-errors"])).unwrap();
    fs::write(target.join("extra"), "extra").unwrap();
    ours.run(restore(&id, &target, &["--skip-existing"])).unwrap();
    assert!(target.join("extra").exists());
    ours.run(restore(&id, &target, &["--update", "--delete-extra", "--overwrite-files"])).unwrap();
    assert_same(&source, &target, Compare::exact()).unwrap();
    for clash in
        [["--update", "--skip-existing"], ["--verify", "--keep-newer"], ["--block", "--delete-extra"]]
    {
        assert!(!ours.try_run(restore(&id, &target, &clash)).unwrap().status.success(), "{clash:?}");
    }
}

#[test]
fn a_restore_fits_into_a_small_container() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (kopia, ours) = shared(folder.path());
    let source = folder.path().join("source");
    let spec = TreeSpec {
        files: 20_000,
        max_file_size: 4000,
        exact_sizes: vec![300_000_000],
        ..TreeSpec::medium(7)
    };
    spec.grow(&source).unwrap();
    let id = kopia.snapshot(&source, &[]).unwrap().id;
    let target = folder.path().join("target");
    let command = ours.command(restore(&id, &target, &[]));
    // The target is in memory, too: only what the program itself holds is judged.
    let limited = run_limited(command, 4 << 30, Duration::from_secs(600)).unwrap();
    assert!(limited.output.status.success(), "{}", String::from_utf8_lossy(&limited.output.stderr));
    let own = limited.peak_own_bytes >> 20;
    assert!(own <= 96, "the restore took {own} MiB");
}

/// Backs `files` small files up into a folder, or into a bucket of `server`, and restores them onto a disk inside of a
/// container of 256 MiB. A file system in memory would count as memory of the container.
fn restore_small_files(files: usize, server: Option<&Minio>) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let ours = Ours::new(PASSWORD).unwrap();
    match server {
        None => ours.create_filesystem(&folder.path().join("repository"), &[]).unwrap(),
        Some(server) => {
            server.create_bucket("files").unwrap();
            let words = ["repository", "create", "s3", "--bucket=files", "--disable-tls"].map(str::to_owned);
            let place = [
                format!("--endpoint={}", server.address()),
                format!("--region={}", server.region()),
                format!("--access-key={}", server.access_key()),
                format!("--secret-access-key={}", server.secret_key()),
            ];
            ours.run(words.into_iter().chain(place)).unwrap();
        }
    }
    let source = folder.path().join("source");
    let mut random = Random::new(3);
    for number in 0..files {
        let directory = source.join(format!("{}/{}", number / 2000, number / 20));
        if number % 20 == 0 {
            fs::create_dir_all(&directory).unwrap();
        }
        let length = 100 + random.below(3997) as usize;
        fs::write(directory.join(number.to_string()), random.bytes(length)).unwrap();
    }
    let id = ours.snapshot(&source, &[]).unwrap().id;
    let disk = tempfile::tempdir().unwrap();
    let target = disk.path().join("target");
    let limited =
        run_limited(ours.command(restore(&id, &target, &[])), 256 << 20, Duration::from_secs(3600)).unwrap();
    assert!(limited.output.status.success(), "{}", String::from_utf8_lossy(&limited.output.stderr));
    assert_eq!(limited.oom_kills, 0);
    let own = limited.peak_own_bytes >> 20;
    assert!(own <= 96, "the restore took {own} MiB");
    assert_same(&source, &target, Compare::exact()).unwrap();
}

#[test]
fn many_small_files_are_restored_inside_a_small_container() {
    restore_small_files(30_000, None);
}

/// Of a store that answers later than it is asked, more is asked for than arrives.
#[test]
fn many_small_files_are_restored_from_an_object_store_inside_a_small_container() {
    restore_small_files(30_000, Some(&Minio::start().unwrap()));
}

#[test]
#[ignore = "takes minutes and 15 GB: part of --long"]
fn a_million_files_are_restored_inside_a_small_container() {
    restore_small_files(1_000_000, None);
}
