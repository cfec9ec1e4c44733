//! Kopia's own test suites, compiled from its module, with this program in the place of kopia.
#![allow(clippy::unwrap_used)]

use anyhow::{Context, Result, ensure};
use lifeboat_testkit::process;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longer than any suite takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs a suite and returns how many of its tests passed; none may fail or be skipped.
fn run(suite: &str, folder: &Path, args: &[impl AsRef<OsStr>]) -> Result<usize> {
    let program = lifeboat_tools::path(suite)?;
    let [home, scratch, data, repositories] =
        ["home", "scratch", "data", "repositories"].map(|name| folder.join(name));
    for folder in [&home, &scratch, &data, &repositories] {
        std::fs::create_dir(folder)?;
    }
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .arg("-test.v")
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", &home)
        .env("TMPDIR", &scratch)
        .env("KOPIA_EXE", env!("CARGO_BIN_EXE_lifeboat-repo"))
        .env("KOPIA_CURRENT_EXE", env!("CARGO_BIN_EXE_lifeboat-repo"))
        .env("KOPIA_08_EXE", lifeboat_tools::path("kopia-0.8.4")?)
        .env("FIO_EXE", fio(folder)?)
        .env("LOCAL_FIO_DATA_PATH", &data);
    let output = process::run(command, LIMIT)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = |outcome: &str| text.lines().filter(|line| line.starts_with(outcome)).count();
    let (passed, failed, skipped) = (count("--- PASS"), count("--- FAIL"), count("--- SKIP"));
    let tail = process::last_lines(&output.stdout, 80);
    ensure!(
        output.status.success() && failed == 0 && skipped == 0,
        "{suite}: {passed} passed, {failed} failed, {skipped} skipped:\n{tail}"
    );
    Ok(passed)
}

/// The suites ask for files that are shorter than a block, and fio leaves those empty. A file without bytes needs
/// nothing from the repository to be restored, so that its data cannot be missed: here such files get bytes, the same
/// in each as the suites rely on.
fn fio(folder: &Path) -> Result<std::path::PathBuf> {
    let fio = lifeboat_tools::path("fio")?;
    let fio = fio.to_str().context("the path of fio is not UTF-8")?;
    let script = format!(
        r#"#!/bin/sh
for argument; do
  if [ "$argument" = 100-100 ]; then
    exec {fio} "$@" --direct=0 --blocksize=100 --dedupe_percentage=0 --buffer_pattern=0x6c626f61
  fi
done
exec {fio} "$@"
"#
    );
    let path = folder.join("fio");
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn prefix(folder: &Path) -> String {
    format!("-repo-path-prefix={}/", folder.join("repositories").display())
}

#[test]
fn the_runner_of_kopia_drives_this_program() -> Result<()> {
    let folder = tempfile::tempdir()?;
    assert_eq!(run("kopia-suite-runner", folder.path(), &[""; 0])?, 3);
    Ok(())
}

#[test]
fn kills_and_lost_blobs_are_recovered_from_as_kopia_asks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    assert_eq!(run("kopia-suite-recovery", folder.path(), &[&prefix(folder.path())])?, 3);
    Ok(())
}

#[test]
fn random_files_survive_random_actions_as_kopia_asks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let time = if std::env::var_os("LIFEBOAT_LONG").is_some() { "60s" } else { "15s" };
    let args = [&format!("-rand-test-duration={time}"), &prefix(folder.path())];
    assert_eq!(run("kopia-suite-robustness", folder.path(), &args)?, 4);
    Ok(())
}

/// What kopia 0.8 makes is opened and upgraded, after which 0.8 keeps out; and what is made for 0.8 is opened by it. The one
/// test that is left out wants Kopia's server.
#[test]
fn releases_of_kopia_before_epochs_and_this_program_know_what_they_can_open() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let args = ["-test.run=08"];
    assert_eq!(run("kopia-suite-compat", folder.path(), &args)?, 4);
    Ok(())
}
