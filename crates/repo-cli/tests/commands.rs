//! The commands that look at repositories and change them, on small repositories, crossed with kopia.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];

/// A repository and a small directory to back up.
struct Place {
    folder: TempDir,
    ours: Ours,
}

impl Place {
    fn new() -> Result<Place> {
        let place = Place { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)? };
        std::fs::create_dir_all(place.source().join("below"))?;
        std::fs::write(place.source().join("file"), "first\n")?;
        std::fs::write(place.source().join("below/deep.txt"), "deep\n")?;
        place.ours.create_filesystem(&place.path("repository"), &IDENTITY)?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// What a command prints on the standard output.
    fn out(&self, words: &[&str]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.ours.run(words)?.stdout).into_owned())
    }

    fn json(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.out(words)?)?)
    }

    /// What a command that must fail says.
    fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.ours.try_run(words)?;
        assert!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_is_found_listed_shown_compared_and_restored_alone() -> Result<()> {
    let place = Place::new()?;
    let first = place.ours.snapshot(&place.source(), &[])?;
    std::fs::write(place.source().join("file"), "second version\n")?;
    std::fs::remove_file(place.source().join("below/deep.txt"))?;
    std::fs::write(place.source().join("new"), "new\n")?;
    let second = place.ours.snapshot(&place.source(), &[])?;

    assert_eq!(place.out(&["ls", &first.id])?, "below\nfile\n");
    assert_eq!(place.out(&["ls", "-r", &first.root.obj])?, "below\nbelow/deep.txt\nfile\n");
    let long = place.out(&["list", "-l", &format!("{}/below", first.id)])?;
    assert!(long.starts_with("-rw") && long.ends_with("deep.txt\n"), "{long}");
    assert_eq!(place.out(&["show", &format!("{}/file", first.id)])?, "first\n");
    assert_eq!(place.out(&["show", text(&place.source().join("file"))])?, "second version\n");
    assert!(place.refused(&["show", &format!("{}/nowhere", first.id)])?.contains("\"nowhere\" is missing"));

    let found = place.json(&["find", "file", "--json"])?;
    assert_eq!(found.as_array().unwrap().len(), 2, "two versions: {found}");
    let lost = place.out(&["find", "deep.*"])?;
    assert!(lost.contains(&format!("restore {}/below/deep.txt TARGET", first.id)), "{lost}");
    assert!(place.out(&["find", "nothing-like-this"])?.is_empty());

    let differences = place.out(&["diff", &first.id, &second.id])?;
    for line in
        ["added file ./new (4 B)", "removed file ./below/deep.txt (5 B)", "changed ./file (size 6 -> 15)"]
    {
        assert!(differences.contains(line), "{line}: {differences}");
    }
    let stats: Value = serde_json::from_str(differences.lines().last().unwrap())?;
    assert_eq!((&stats["fileEntries"]["added"], &stats["fileEntries"]["removed"]), (&1.into(), &1.into()));
    assert!(place.out(&["diff", "-f", &first.id, &second.id])?.contains("+second version"));

    place.ours.run(["restore", &format!("{}/below/deep.txt", first.id), text(&place.path("back"))])?;
    assert_eq!(std::fs::read(place.path("back"))?, b"deep\n");
    Ok(())
}

#[test]
fn policies_are_set_shown_exported_imported_and_removed_and_kopia_agrees() -> Result<()> {
    let place = Place::new()?;
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
    let source = place.source();
    place.ours.run([
        "policy",
        "set",
        text(&source),
        "--keep-latest=3",
        "--add-ignore=*.o",
        "--one-file-system=true",
    ])?;
    let by_kopia: Value =
        serde_json::from_slice(&kopia.run(["policy", "show", text(&source), "--json"])?.stdout)?;
    let by_us = place.json(&["policy", "show", text(&source), "--json"])?;
    assert_eq!(by_us, by_kopia);
    assert_eq!(
        (&by_us["retention"]["keepLatest"], &by_us["files"]["oneFileSystem"]),
        (&3.into(), &true.into())
    );
    let shown = place.out(&["policy", "show", text(&source)])?;
    let line = shown.lines().find(|line| line.contains("retention.keepLatest")).unwrap();
    assert!(line.ends_with("(defined for this target)"), "{line}");
    assert!(place.refused(&["policy", "set", "--global", "--compression=zip"])?.contains("zip"));

    let file = place.path("policies.json");
    place.ours.run(["policy", "export", "--to-file", text(&file)])?;
    assert!(place.refused(&["policy", "export", "--to-file", text(&file)])?.contains("--overwrite"));
    let target = format!("u@h:{}", source.display());
    place.ours.run(["policy", "delete", &target])?;
    assert!(!place.out(&["policy", "list"])?.contains(&target));
    place.ours.run(["policy", "import", "--from-file", text(&file)])?;
    assert!(place.out(&["policy", "list"])?.contains(&target));

    let mut edit = place.ours.command(["policy", "edit", &target]);
    edit.env("EDITOR", "sed -i s/keepLatest\":.3/keepLatest\":9/")
        .env("PATH", std::env::var_os("PATH").unwrap());
    let output = lifeboat_testkit::process::run_ok(edit, std::time::Duration::from_secs(60))?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("Policy set"), "{output:?}");
    assert_eq!(place.json(&["policy", "show", &target, "--json"])?["retention"]["keepLatest"], 9);
    Ok(())
}

#[test]
fn snapshots_are_pinned_expired_renamed_and_deleted() -> Result<()> {
    let place = Place::new()?;
    place.ours.run(["policy", "set", "--global", "--keep-latest=1", "--keep-hourly=0", "--keep-daily=0"])?;
    place.ours.run([
        "policy",
        "set",
        "--global",
        "--keep-weekly=0",
        "--keep-monthly=0",
        "--keep-annual=0",
    ])?;
    let first = place.ours.snapshot(&place.source(), &["--pin=for-ever"])?;
    std::fs::write(place.source().join("file"), "second")?;
    place.ours.snapshot(&place.source(), &[])?;
    let list = place.out(&["snapshot", "list"])?;
    assert!(list.contains("pins:for-ever") && list.contains("(latest-1)"), "{list}");
    assert!(place.out(&["snapshot", "expire"])?.contains("Nothing to delete"));
    place.ours.run(["snapshot", "pin", &first.id, "--remove=for-ever"])?;
    assert!(place.out(&["snapshot", "expire"])?.contains("Would delete"));
    assert_eq!(place.json(&["snapshot", "list", "--json"])?.as_array().unwrap().len(), 2);
    assert!(place.out(&["snapshot", "expire", "--delete"])?.contains("Deleted"));
    assert_eq!(place.json(&["snapshot", "list", "--json"])?.as_array().unwrap().len(), 1);

    assert!(place.refused(&["snapshot", "copy-history", "u@h", "v@w:/p"])?.contains("several paths"));
    place.ours.run(["snapshot", "copy-history", "u@h", "v@w"])?;
    let all = place.json(&["snapshot", "list", "--all", "--json"])?;
    assert_eq!(all.as_array().unwrap().len(), 2);
    place.ours.run(["snapshot", "move-history", "v@w", "@x"])?;
    let all = place.out(&["snapshot", "list", "--all"])?;
    assert!(all.contains("v@x:") && !all.contains("v@w:"), "{all}");
    let moved = format!("v@x:{}", place.source().canonicalize()?.display());
    place.ours.run(["snapshot", "delete", "--all-snapshots-for-source", &moved, "--delete"])?;
    assert!(!place.out(&["snapshot", "list", "--all"])?.contains("v@x:"));
    assert!(
        place
            .refused(&["snapshot", "delete", "nonsense", "--delete"])?
            .contains("there is no snapshot nonsense")
    );
    Ok(())
}

#[test]
fn a_connection_is_changed_and_a_repository_tuned() -> Result<()> {
    let place = Place::new()?;
    place.ours.run(["repository", "set-client", "--username=w", "--description=mine", "--read-only"])?;
    let status = place.json(&["repository", "status", "--json"])?;
    assert_eq!(
        (&status["clientOptions"]["username"], &status["clientOptions"]["readonly"]),
        (&"w".into(), &true.into())
    );
    assert!(place.refused(&["snapshot", "create", text(&place.source())])?.contains("read only"));
    place.ours.run(["repository", "set-client", "--read-write"])?;
    place.ours.run([
        "repository",
        "set-parameters",
        "--max-pack-size-mb=30",
        "--epoch-advance-on-count=50",
    ])?;
    let format = &place.json(&["repository", "status", "--json"])?["contentFormat"];
    assert_eq!(format["maxPackSize"], 30 << 20);
    assert_eq!(format["epochParameters"]["EpochAdvanceOnCountThreshold"], 50);
    assert!(
        place.refused(&["repository", "set-parameters", "--retention-mode=governance"])?.contains("period")
    );
    place.ours.run(["repository", "throttle", "set", "--upload-bytes-per-second=1000000"])?;
    let limits = place.out(&["repository", "throttle", "get"])?;
    assert!(limits.contains("Max Upload Speed:") && limits.contains("1000000"), "{limits}");
    place.ours.run([
        "maintenance",
        "set",
        "--full-interval=8h",
        "--pause-full=48h",
        "--enable-quick=false",
    ])?;
    let info = place.json(&["maintenance", "info", "--json"])?;
    assert_eq!(
        (&info["full"]["interval"], &info["quick"]["enabled"]),
        (&28_800_000_000_000_u64.into(), &false.into())
    );
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
    let by_kopia: Value = serde_json::from_slice(&kopia.run(["maintenance", "info", "--json"])?.stdout)?;
    assert_eq!(info, by_kopia);
    Ok(())
}

#[test]
fn the_parts_of_a_repository_can_be_looked_at() -> Result<()> {
    let place = Place::new()?;
    let snapshot = place.ours.snapshot(&place.source(), &[])?;
    let manifests = place.out(&["manifest", "list", "--filter=type:snapshot"])?;
    assert!(manifests.starts_with(&snapshot.id) && manifests.lines().count() == 1, "{manifests}");
    assert!(place.out(&["manifest", "show", &snapshot.id])?.contains("// label type:snapshot"));
    let contents = place.out(&["content", "list", "--prefix=k"])?;
    assert!(contents.lines().any(|id| id == snapshot.root.obj), "{contents}");
    let listing: Value = serde_json::from_str(&place.out(&["content", "show", "-j", &snapshot.root.obj])?)?;
    assert_eq!(listing["stream"], "kopia:directory");
    assert!(place.out(&["content", "stats"])?.contains("By Method:"));
    assert!(place.out(&["content", "list", "-l", "--summary"])?.contains("Total: "));
    assert!(place.out(&["blob", "stats"])?.contains("Histogram:"));
    assert!(place.out(&["blob", "show", "kopia.repository"])?.contains("uniqueID"));
    let blobs = place.json(&["blob", "list", "--data-only", "--json"])?;
    assert!(blobs.as_array().unwrap().iter().all(|blob| blob["id"].as_str().unwrap().starts_with('p')));
    assert!(place.refused(&["blob", "delete", "kopia.repository"])?.contains("--dangerous-commands"));
    assert!(place.out(&["index", "list", "--summary"])?.contains("total "));
    assert!(place.out(&["index", "epoch", "list"])?.starts_with("Current Epoch: 0"));
    assert!(place.out(&["cache", "info"])?.contains(" files "));
    place.ours.run(["cache", "clear"])?;
    place.ours.run(["cache", "sync"])?;

    // Kopia keeps logs in repositories.
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
    kopia.snapshot(&place.source(), &[])?;
    assert_eq!(place.out(&["logs", "list"])?.lines().count(), 1);
    assert!(!place.out(&["logs", "show"])?.is_empty());
    assert!(
        place.out(&["snapshot", "estimate", text(&place.source())])?.contains("2 file(s), total size 11 B")
    );
    Ok(())
}

#[test]
fn a_repository_is_copied_whole_and_snapshots_move_to_another_one() -> Result<()> {
    let place = Place::new()?;
    let snapshot = place.ours.snapshot(&place.source(), &[])?;
    let copy = place.path("copy");
    place.ours.run(["repository", "sync-to", "filesystem", "--path", text(&copy)])?;
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&copy, &IDENTITY)?;
    kopia.restore(&snapshot.id, &place.path("restored"))?;
    assert_eq!(std::fs::read(place.path("restored/below/deep.txt"))?, b"deep\n");
    let again = place.out(&["repository", "sync-to", "filesystem", "--path", text(&copy), "--dry-run"])?;
    assert!(again.starts_with("0 blobs"), "{again}");

    let other = Ours::new(PASSWORD)?;
    other.create_filesystem(&place.path("other"), &["--encryption=CHACHA20-POLY1305-HMAC-SHA256"])?;
    let mixed =
        place.refused(&["repository", "sync-to", "filesystem", "--path", text(&place.path("other"))])?;
    assert!(mixed.contains("another repository"), "{mixed}");
    let config = place.ours.config_file();
    other.run(["snapshot", "migrate", "--all", "--source-config", text(&config)])?;
    let listed =
        String::from_utf8_lossy(&other.run(["snapshot", "list", "--all", "-m"])?.stdout).into_owned();
    let id = listed.split_once("manifest:").unwrap().1.split(' ').next().unwrap().to_owned();
    other.restore(&id, &place.path("migrated"))?;
    assert_eq!(std::fs::read(place.path("migrated/below/deep.txt"))?, b"deep\n");
    let again = other.run(["snapshot", "migrate", "--all", "--source-config", text(&config)])?;
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there already"));
    Ok(())
}

#[test]
fn what_is_lost_is_taken_out_of_snapshots_and_kopia_reads_the_rest() -> Result<()> {
    let place = Place::new()?;
    let whole = place.ours.snapshot(&place.source(), &[])?;
    std::fs::write(place.source().join("late"), "late\n")?;
    place.ours.snapshot(&place.source(), &[])?;
    // The second snapshot's data is the last pack.
    let blobs = place.json(&["blob", "list", "--prefix=p", "--json"])?;
    let lost =
        blobs.as_array().unwrap().iter().max_by_key(|blob| blob["timestamp"].as_str().unwrap()).unwrap();
    place.ours.run(["blob", "delete", lost["id"].as_str().unwrap(), "--dangerous-commands=enabled"])?;
    assert!(place.out(&["snapshot", "fix", "invalid-files"])?.contains("add --commit"));
    assert!(place.out(&["snapshot", "fix", "invalid-files", "--commit"])?.contains("Fixed 1 snapshots"));
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
    kopia.verify_snapshots()?;
    let fixed = kopia.snapshots()?.into_iter().find(|snapshot| snapshot.id != whole.id).unwrap();
    kopia.restore(&fixed.id, &place.path("fixed"))?;
    assert_eq!(std::fs::read(place.path("fixed/file"))?, b"first\n");
    assert!(std::fs::read_to_string(place.path("fixed/.INVALID.late"))?.contains("is missing"));
    place.ours.run(["snapshot", "fix", "remove-files", "--filename=.INVALID.*", "--commit"])?;
    let left = place.out(&["ls", text(&place.source())])?;
    assert_eq!(left, "below\nfile\n");
    Ok(())
}

#[test]
fn storage_is_validated_and_nothing_of_it_stays() -> Result<()> {
    let place = Place::new()?;
    let before = place.out(&["blob", "list"])?;
    let validate = ["repository", "validate-provider", "--concurrency-test-duration=2s"];
    assert!(place.out(&validate)?.contains("All checks passed"));
    assert_eq!(place.out(&["blob", "list"])?, before);
    Ok(())
}

#[test]
fn shells_and_manual_readers_get_what_they_need() -> Result<()> {
    let place = Place { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)? };
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.out(&["completion", shell])?.contains("change-password"), "{shell}");
    }
    place.ours.run(["man", text(&place.path("man"))])?;
    let page = std::fs::read_to_string(place.path("man/lifeboat-repo-snapshot-create.1"))?;
    assert!(page.contains("checkpoint"), "{page}");
    assert!(place.out(&["benchmark", "hashing", "--repeat=1"])?.contains("BLAKE2B-256-128"));
    assert!(place.out(&["benchmark", "encryption", "--repeat=1"])?.contains("CHACHA20-POLY1305-HMAC-SHA256"));
    assert!(place.out(&["benchmark", "ecc", "--repeat=1"])?.contains("REED-SOLOMON-CRC32 20%"));
    Ok(())
}
