//! `lifeboat-repo restic`: what somebody does who has restic repositories.

#![allow(clippy::unwrap_used)]

mod common;

use common::Ours;
use lifeboat_testkit::process;
use lifeboat_testkit::restic::Restic;
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const PASSWORD: &str = "theirs";

/// Runs `lifeboat-repo restic` with these variables.
fn run<S: AsRef<OsStr>>(env: &[(OsString, OsString)], words: impl IntoIterator<Item = S>) -> Output {
    // The password of another repository is around, and must not be taken for this one's.
    let ours = Ours::new("ours").unwrap();
    let mut command = ours.command(["restic"]);
    command.env("TZ", "UTC").envs(env.iter().map(|(name, value)| (name, value))).args(words);
    process::run(command, Duration::from_secs(600)).unwrap()
}

fn output<S: AsRef<OsStr>>(env: &[(OsString, OsString)], words: impl IntoIterator<Item = S>) -> String {
    let output = run(env, words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure<S: AsRef<OsStr>>(env: &[(OsString, OsString)], words: impl IntoIterator<Item = S>) -> String {
    let output = run(env, words);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn variables(pairs: &[(&str, &Path)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (OsString::from(name), value.into())).collect()
}

#[test]
fn the_variables_of_restic_are_enough() {
    let place = tempfile::tempdir().unwrap();
    let [source, folder, target] = ["source", "repository", "target"].map(|name| place.path().join(name));
    TreeSpec::small(21).grow(&source).unwrap();
    fs::create_dir(source.join("notes")).unwrap();
    fs::write(source.join("notes/file"), "do not lose me\n").unwrap();
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    let first = restic.backup(&source, &["--tag", "weekly", "--host", "here"]).unwrap();
    fs::write(source.join("later"), "").unwrap();
    restic.backup(&source, &["--host", "there"]).unwrap();
    let env = restic.env();

    let theirs = restic.json(["snapshots", "--json"]).unwrap();
    let ours: Value = serde_json::from_str(&output(env, ["snapshots", "--json"])).unwrap();
    assert_eq!(ours.as_array().unwrap().len(), 2);
    for (ours, theirs) in ours.as_array().unwrap().iter().zip(theirs.as_array().unwrap()) {
        for field in ["id", "short_id", "tree", "paths", "hostname", "username", "program_version"] {
            assert_eq!(ours[field], theirs[field], "{field}");
        }
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        assert_eq!(
            (number(&ours["uid"]), number(&ours["gid"])),
            (number(&theirs["uid"]), number(&theirs["gid"]))
        );
        let tags = |value: &Value| value.as_array().cloned().unwrap_or_default();
        assert_eq!(tags(&ours["tags"]), tags(&theirs["tags"]));
        assert_eq!(ours["bytes"], theirs["summary"]["total_bytes_processed"]);
    }
    let weekly = output(env, ["snapshots", "--tag", "weekly"]);
    assert!(weekly.starts_with(&first[..8]) && weekly.lines().count() == 1, "{weekly}");
    assert_eq!(output(env, ["snapshots", "--host", "nowhere"]), "");

    let inside = |snapshot: &str, path: &str| format!("{snapshot}{}/{path}", source.display());
    let listed = output(env, ["ls", "-l", &inside("latest", "notes")]);
    assert!(listed.starts_with("-rw") && listed.ends_with(" file\n"), "{listed}");
    assert_eq!(output(env, ["show", &inside(&first[..8], "notes/file")]), "do not lose me\n");
    let whole = format!("latest:{}", source.display());
    let report =
        output(env, ["restore".as_ref(), OsStr::new(&whole), target.as_os_str(), "--verify".as_ref()]);
    assert!(report.contains("Restored") && report.contains("compared"), "{report}");
    assert_same(&source, &target, Compare::exact()).unwrap();
    // All of a snapshot, as restic does it, with the flags of every restore.
    let all = place.path().join("all");
    let words = ["restore", &first, "--include", "**/notes"].map(OsStr::new);
    output(env, words.into_iter().chain([all.as_os_str()]));
    let notes = all.join(source.strip_prefix("/").unwrap()).join("notes");
    assert_same(&source.join("notes"), &notes, Compare::exact()).unwrap();
    assert!(!notes.with_file_name("exact-1").exists());

    // Each version once, with the way to get it back.
    let found = output(env, ["find", "file"]);
    assert!(found.contains(&format!("@here:{}/notes/file", source.display())), "{found}");
    assert_eq!(found.matches("get it with: lifeboat-repo restic restore ").count(), 2, "{found}");
    assert_eq!(output(env, ["find", "later", "--json"]).matches("\"snapshot\"").count(), 1);
    assert_eq!(output(env, ["find", "later", "--snapshot", &first]), "");
    fs::write(source.join("notes/file"), "another version\n").unwrap();
    restic.backup(&source, &["--host", "here"]).unwrap();
    assert_eq!(output(env, ["find", "file"]).matches("@here:").count(), 2);
    restic.backup(&source, &["--host", "here"]).unwrap();
    assert_eq!(output(env, ["find", "file"]).matches("@here:").count(), 2, "the last one has nothing new");
    assert_eq!(output(env, ["find", "file", "--all-versions"]).matches("@here:").count(), 3);
}

#[test]
fn folders_and_buckets_are_named_by_the_flags_of_every_repository() {
    let place = tempfile::tempdir().unwrap();
    let [source, folder, target, secret] =
        ["source", "repository", "target", "password"].map(|name| place.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text").unwrap();
    fs::write(&secret, format!("{PASSWORD}\n")).unwrap();
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    restic.backup(&source, &[]).unwrap();
    let env = variables(&[("RESTIC_PASSWORD_FILE", &secret)]);
    let flags = ["filesystem".as_ref(), "--path".as_ref(), folder.as_os_str()];
    assert_eq!(output(&env, [OsStr::new("snapshots")].into_iter().chain(flags)).lines().count(), 1);
    let what = format!("latest{}", source.display());
    let words = ["restore".as_ref(), OsStr::new(&what), target.as_os_str()];
    output(&env, words.into_iter().chain(flags));
    assert_same(&source, &target, Compare::exact()).unwrap();

    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let restic = Restic::in_bucket(&server, "backups", "deep/below", PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    restic.backup(&source, &[]).unwrap();
    let address = server.address();
    let flags =
        ["s3", "--bucket", "backups", "--prefix", "deep/below", "--endpoint", &address, "--disable-tls"];
    let signed = [("AWS_ACCESS_KEY_ID", server.access_key()), ("AWS_SECRET_ACCESS_KEY", server.secret_key())];
    let signed = signed.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let env: Vec<_> = env.into_iter().chain(signed).collect();
    let path = format!("latest{}/file", source.display());
    assert_eq!(output(&env, ["show", &path].into_iter().chain(flags)), "text");
    assert_eq!(output(restic.env(), ["show", &path]), "text");
}

#[test]
fn what_is_missing_is_asked_for_and_what_is_wrong_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("repository");
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    let repository = [("RESTIC_REPOSITORY", folder.as_path())];
    let text = failure(&[], ["snapshots"]);
    assert!(text.contains("RESTIC_REPOSITORY"), "{text}");
    let text = failure(&variables(&repository), ["snapshots"]);
    assert!(text.contains("RESTIC_PASSWORD_FILE"), "{text}");
    let wrong = variables(&[repository[0], ("RESTIC_PASSWORD", Path::new("wrong"))]);
    let text = failure(&wrong, ["snapshots"]);
    assert!(text.contains("not that of any key") && text.lines().count() == 1, "{text}");
    let text = failure(restic.env(), ["restore", "latest", "target"]);
    assert!(text.contains("no snapshots"), "{text}");
    let elsewhere = variables(&[
        ("RESTIC_REPOSITORY", Path::new("sftp:host:/folder")),
        ("RESTIC_PASSWORD", Path::new("x")),
    ]);
    let text = failure(&elsewhere, ["snapshots"]);
    assert!(text.contains("sftp"), "{text}");
    let flags = ["snapshots", "filesystem", "--flat", "--path"].map(OsStr::new);
    let text = failure(restic.env(), flags.into_iter().chain([folder.as_os_str()]));
    assert!(text.contains("--flat"), "{text}");
}
