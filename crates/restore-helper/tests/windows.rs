//! The helper as a program for Windows, compiled by the compiler of everything else and run by Wine.
#![allow(clippy::unwrap_used)]

use lifeboat_restore_helper::marks::{mark_complete, mark_failed};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const TARGET: &str = "x86_64-pc-windows-gnu";

fn program() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("windows");
    let built = Command::new(env!("CARGO"))
        // As it is shipped. Without optimisation it asks for a library that Wine got only in later releases.
        .args(["build", "--release", "--quiet", "--locked", "--package", "lifeboat-restore-helper", "--bins"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&folder)
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER", lifeboat_tools::path("mingw").unwrap())
        .env("CARGO_BUILD_BUILD_DIR", &folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}\nif {TARGET} is missing, `cargo xtask tools` installs it");
    folder.join(TARGET).join("release/velero-restore-helper.exe")
}

/// A Windows with a pod's volumes at the place where the helper looks for them.
struct Windows {
    home: TempDir,
    program: PathBuf,
}

impl Windows {
    fn new(volumes: &[&str]) -> Self {
        let windows = Self { home: tempfile::tempdir().unwrap(), program: program() };
        for volume in volumes {
            fs::create_dir_all(windows.volume(volume)).unwrap();
        }
        fs::create_dir_all(windows.drive().join("dev")).unwrap();
        windows
    }

    fn drive(&self) -> PathBuf {
        self.home.path().join("drive_c")
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.drive().join("restores").join(name)
    }

    fn last_words(&self) -> String {
        fs::read_to_string(self.drive().join("dev/termination-log")).unwrap()
    }

    fn helper(&self, words: &[&str]) -> Command {
        let mut command = Command::new(lifeboat_tools::path("wine").unwrap());
        command
            .arg(&self.program)
            .args(words)
            // Its drive is the one that names without a drive mean.
            .current_dir(self.drive())
            .env_remove("DISPLAY")
            .env("WINEPREFIX", self.home.path())
            .env("WINEDEBUG", "-all")
            // Neither a browser nor a runtime is asked for when a Windows is made.
            .env("WINEDLLOVERRIDES", "mscoree,mshtml=")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.helper(words).output().unwrap()
    }
}

impl Drop for Windows {
    /// Wine's server outlives its programs for some seconds, in the folder that is about to go.
    fn drop(&mut self) {
        let server = lifeboat_tools::path("wine").unwrap().with_file_name("wineserver64");
        let _ = Command::new(server).arg("-k").env("WINEPREFIX", self.home.path()).status();
    }
}

#[test]
fn a_pod_of_windows_is_held_back_until_its_volumes_are_complete_or_will_not_be() {
    let windows = Windows::new(&["data", "logs"]);

    let usage = windows.run(&[]);
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");

    mark_complete(&windows.volume("data"), "r-1").unwrap();
    let mut waiting = windows.helper(&["r-1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "waiting for the data of logs");
    mark_complete(&windows.volume("logs"), "r-1").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "all volumes are restored");
    assert!(waiting.wait().unwrap().success());
    assert!(!windows.volume("data").join(".velero").exists());
    assert!(!windows.volume("logs").join(".velero").exists());

    mark_failed(&windows.volume("logs"), "r-2", "the store is full").unwrap();
    let failed = windows.run(&["r-2"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let reason = "the volume logs was not restored: the store is full";
    assert_eq!(windows.last_words(), reason);
    assert!(String::from_utf8_lossy(&failed.stderr).contains(reason), "{failed:?}");
}
