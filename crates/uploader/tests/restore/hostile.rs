//! Snapshots and neighbours that want to write elsewhere.

use crate::fixture::{Fixture, failures, noise};
use lifeboat_kopia::snapshot::{DirEntry, EntryType, GoMode};
use lifeboat_uploader::{Error, Existing, RestoreOptions};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that is outside of the target and must stay as it is.
fn outside(fixture: &Fixture) -> std::path::PathBuf {
    let outside = fixture.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    outside
}

fn assert_untouched(outside: &Path) {
    let names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["precious"]);
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"precious");
}

#[test]
fn names_that_are_not_names_are_refused_and_all_others_are_restored() {
    let fixture = Fixture::new();
    let outside = outside(&fixture);
    let mut entries = Vec::new();
    let bad = ["..", ".", "", "../outside/precious", "/tmp/lifeboat-evil", "a/b", "nul\0byte", "a/../../x"];
    for name in bad {
        entries.push(fixture.file(name, b"evil"));
    }
    entries.push(fixture.file("good", b"good"));
    // Listings are sorted only by convention: whoever attacks does not care.
    let json: Vec<String> =
        entries.iter().map(|entry| lifeboat_kopia::gojson::to_string(entry).unwrap()).collect();
    let listing = format!(r#"{{"stream":"kopia:directory","entries":[{}],"summary":{{}}}}"#, json.join(","));
    let root = fixture.directory_of("root", listing.as_bytes());
    let (report, _) = failures(fixture.restore(&root, &fixture.path("target")));
    assert_eq!(report.failed, bad.len() as u64, "{report:?}");
    assert_eq!(fs::read(fixture.path("target/good")).unwrap(), b"good");
    assert_eq!(fs::read_dir(fixture.path("target")).unwrap().count(), 1);
    assert!(!Path::new("/tmp/lifeboat-evil").exists());
    assert_untouched(&outside);
}

#[test]
fn directories_with_names_that_are_not_names_are_refused() {
    let fixture = Fixture::new();
    let outside = outside(&fixture);
    let inner = fixture.directory("..", &[fixture.file("precious", b"evil")]);
    let listing = format!(
        r#"{{"stream":"kopia:directory","entries":[{}],"summary":{{}}}}"#,
        lifeboat_kopia::gojson::to_string(&inner).unwrap()
    );
    let root = fixture.directory_of("root", listing.as_bytes());
    let (report, _) = failures(fixture.restore(&root, &outside.join("..").join("outside").join("t")));
    assert_eq!(report.failed, 1);
    fs::remove_dir(outside.join("t")).unwrap();
    assert_untouched(&outside);
}

#[test]
fn a_link_and_a_directory_of_one_name_do_not_lead_out() {
    let fixture = Fixture::new();
    let outside = outside(&fixture);
    let link = fixture.link("door", outside.to_str().unwrap());
    let door = fixture.directory("door", &[fixture.file("new", b"evil"), fixture.file("precious", b"evil")]);
    for order in [[link.clone(), door.clone()], [door, link]] {
        let json: Vec<String> =
            order.iter().map(|entry| lifeboat_kopia::gojson::to_string(entry).unwrap()).collect();
        let listing =
            format!(r#"{{"stream":"kopia:directory","entries":[{}],"summary":{{}}}}"#, json.join(","));
        let root = fixture.directory_of("root", listing.as_bytes());
        for existing_files in [Existing::Replace, Existing::Update, Existing::Skip, Existing::Fail] {
            let options = RestoreOptions {
                existing_files,
                existing_links: existing_files,
                ..RestoreOptions::new(fixture.path("target"))
            };
            // Twice: the second time everything is there already. What it says about the clash is its own affair.
            let _ = fixture.restore_with(&root, &options);
            let _ = fixture.restore_with(&root, &options);
            assert_untouched(&outside);
            fs::remove_dir_all(fixture.path("target")).unwrap();
        }
    }
}

#[test]
fn links_in_the_target_are_replaced_not_followed() {
    let fixture = Fixture::new();
    let outside = outside(&fixture);
    let sub = fixture.directory("sub", &[fixture.file("precious", b"new")]);
    let root = fixture.directory("root", &[sub, fixture.file("file", b"content")]);
    for existing_files in [Existing::Replace, Existing::Update] {
        let target = fixture.path("target");
        fs::create_dir(&target).unwrap();
        symlink(&outside, target.join("sub")).unwrap();
        symlink(outside.join("precious"), target.join("file")).unwrap();
        let options = RestoreOptions { existing_files, ..RestoreOptions::new(&target) };
        fixture.restore_with(&root, &options).unwrap();
        assert_eq!(fs::read(target.join("sub/precious")).unwrap(), b"new");
        assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
        assert!(!target.join("sub").is_symlink() && !target.join("file").is_symlink());
        assert_untouched(&outside);
        fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn somebody_who_exchanges_directories_for_links_gains_nothing() {
    let fixture = Fixture::new();
    let outside = outside(&fixture);
    let large = fixture.file("large", &noise(1, 9 << 20));
    let sub: Vec<DirEntry> = (0..40)
        .map(|number| {
            let files: Vec<DirEntry> = (10..40)
                .map(|file| fixture.file(format!("f{file}"), format!("{number}-{file}").as_bytes()))
                .collect();
            fixture.directory(&format!("d{number:02}"), &[&files[..], std::slice::from_ref(&large)].concat())
        })
        .collect();
    let root = fixture.directory("root", &sub);
    let target = fixture.path("target");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let aside = fixture.path("aside");
            while !done.load(Ordering::Relaxed) {
                for number in 0..40 {
                    let path = target.join(format!("d{number:02}"));
                    if fs::rename(&path, &aside).is_ok() {
                        let _ = symlink(&outside, &path);
                        std::thread::yield_now();
                        let _ = fs::remove_file(&path);
                        let _ = fs::rename(&aside, &path);
                    }
                }
            }
        });
        for _ in 0..5 {
            // Some entries may fail: they are not where they were any more.
            let _ = fixture.restore(&root, &target);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_untouched(&outside);
}

#[test]
fn a_name_that_comes_twice_hurts_nobody() {
    let fixture = Fixture::new();
    let entries = [fixture.file("twice", b"one"), fixture.file("twice", b"two"), fixture.file("x", b"x")];
    let root = fixture.directory("root", &entries);
    let (report, paths) = failures(fixture.restore(&root, &fixture.path("target")));
    assert_eq!((report.failed, paths), (1, vec!["twice".to_owned()]));
    assert_eq!(fs::read(fixture.path("target/x")).unwrap(), b"x");
    let kept = fs::read(fixture.path("target/twice")).unwrap();
    assert!(kept == b"one" || kept == b"two", "{kept:?}");
}

#[test]
fn lengths_that_lie_fail_their_file_only() {
    let fixture = Fixture::new();
    let long = DirEntry { size: 5, ..fixture.file("longer", b"more than five") };
    let short = DirEntry { size: 1 << 40, ..fixture.file("shorter", b"less than a tebibyte") };
    let empty = DirEntry { size: 7, ..fixture.file("empty", b"") };
    let large = DirEntry { size: 10 << 20, ..fixture.file("large", &noise(3, 20 << 20)) };
    let good = fixture.file("zz", b"good");
    let root = fixture.directory("root", &[empty, large, long, short, good]);
    let (report, mut paths) = failures(fixture.restore(&root, &fixture.path("target")));
    paths.sort();
    assert_eq!(paths, ["empty", "large", "longer", "shorter"]);
    assert_eq!(report.files, 1);
    let left: Vec<_> = fs::read_dir(fixture.path("target")).unwrap().collect();
    assert_eq!(left.len(), 1, "what is not whole is not there: {left:?}");
}

#[test]
fn damaged_listings_and_missing_objects_fail_what_they_concern() {
    let fixture = Fixture::new();
    let cut = fixture.directory_of("cut", br#"{"stream":"kopia:directory","entries":["#);
    let other = fixture.directory_of("other", br#"{"stream":"something else"}"#);
    let mut half = br#"{"stream":"kopia:directory","entries":["#.to_vec();
    half.extend(lifeboat_kopia::gojson::to_string(&fixture.file("first", b"1")).unwrap().into_bytes());
    half.extend(br#",{"name":5},"#);
    half.extend(lifeboat_kopia::gojson::to_string(&fixture.file("second", b"2")).unwrap().into_bytes());
    half.extend(br#"],"summary":{}}"#);
    let half = fixture.directory_of("half", &half);
    let missing =
        DirEntry { object: "k00112233445566778899aabbccddeeff".into(), ..fixture.directory("missing", &[]) };
    let lost =
        DirEntry { object: "00112233445566778899aabbccddeeff".into(), ..fixture.file("lost", b"lost") };
    let strange = DirEntry { entry_type: EntryType::Other("q".into()), ..fixture.file("strange", b"") };
    let root =
        fixture.directory("root", &[cut, half, missing, other, lost, strange, fixture.file("zz", b"good")]);
    let (_, mut paths) = failures(fixture.restore(&root, &fixture.path("target")));
    paths.sort();
    assert_eq!(paths, ["cut", "half", "lost", "missing", "other", "strange"]);
    assert_eq!(fs::read(fixture.path("target/zz")).unwrap(), b"good");
    assert_eq!(fs::read(fixture.path("target/half/first")).unwrap(), b"1");
    assert_eq!(fs::read(fixture.path("target/half/second")).unwrap(), b"2");
    assert!(fixture.path("target/missing").is_dir());
}

/// Nobody knows which of the names that are there it has.
#[test]
fn nothing_is_extra_beside_an_entry_that_is_not_understood() {
    let fixture = Fixture::new();
    let mut listing = br#"{"stream":"kopia:directory","entries":["#.to_vec();
    listing.extend(lifeboat_kopia::gojson::to_string(&fixture.file("first", b"1")).unwrap().into_bytes());
    listing.extend(br#",{"name":"kept","type":"f","mode":7,"obj":5}],"summary":{}}"#);
    let root = fixture.directory("root", &[fixture.directory_of("sub", &listing)]);
    let target = fixture.path("target");
    fs::create_dir_all(target.join("sub")).unwrap();
    for name in ["sub/kept", "sub/extra", "extra"] {
        fs::write(target.join(name), "there before").unwrap();
    }
    let options = RestoreOptions { delete_extra: true, ..RestoreOptions::new(&target) };
    let (_, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!(paths, ["sub"]);
    assert_eq!(fs::read(target.join("sub/first")).unwrap(), b"1");
    assert!(target.join("sub/kept").exists() && target.join("sub/extra").exists());
    assert!(!target.join("extra").exists(), "that listing is whole");
}

#[test]
fn a_tree_that_is_too_deep_for_any_path_is_cut_with_a_clear_error() {
    let fixture = Fixture::new();
    let mut inner = fixture.directory("d", &[fixture.file("bottom", b"bottom")]);
    for _ in 0..4200 {
        inner = fixture.directory("d", &[inner]);
    }
    let (report, _) = failures(fixture.restore(&inner, &fixture.path("target")));
    assert_eq!((report.failed, report.files), (1, 0));
    // Neither rm nor the library can remove it by paths in one go.
    assert!(
        std::process::Command::new("rm").arg("-rf").arg(fixture.path("target")).status().unwrap().success()
    );
}

#[test]
fn programs_that_run_as_their_owner_do_not_run_as_somebody_else() {
    let fixture = Fixture::new();
    let mode = GoMode::from_unix(0o6755);
    let foreign = DirEntry { uid: 12_345, gid: 12_345, mode, ..fixture.file("foreign", b"#!") };
    let own = DirEntry { mode, ..fixture.file("own", b"#!") };
    let root = fixture.directory("root", &[foreign, own]);
    let options = RestoreOptions { owner: false, ..RestoreOptions::new(fixture.path("target")) };
    fixture.restore_with(&root, &options).unwrap();
    let mode =
        |name: &str| fs::metadata(fixture.path("target").join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("foreign"), mode("own")), (0o755, 0o6755));
    assert_eq!(
        fs::metadata(fixture.path("target/foreign")).unwrap().uid(),
        rustix::process::geteuid().as_raw()
    );
}

#[test]
fn a_target_that_is_a_file_is_an_error() {
    let fixture = Fixture::new();
    fs::write(fixture.path("target"), "not a directory").unwrap();
    let root = fixture.directory("root", &[]);
    assert!(matches!(fixture.restore(&root, &fixture.path("target")), Err(Error::File { .. })));
}
