//! Runs the system tools the driver relies on (losetup, mke2fs, e2fsck, resize2fs, cp).

use crate::error::{Error, Result};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The Debian packages that the tools come from.
const PACKAGES: &str = "mount e2fsprogs coreutils";

/// Runs `program` and returns what it printed; a failure carries what it said on standard error.
///
/// The tool dies with the driver, so that no copy or repair goes on behind the back of the next one.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).env("LC_ALL", "C");
    die_with_parent(&mut command);
    let describe = |reason: String| Error::Tool {
        command: std::iter::once(OsStr::new(program))
            .chain(arguments.iter().map(AsRef::as_ref))
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" "),
        reason,
    };
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => describe(format!("it is missing: run `apt-get install {PACKAGES}`")),
        _ => describe(error.to_string()),
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(describe(format!("{}: {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let bind_to_parent = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the signal was set up.
        if getppid() == Some(parent) { Ok(()) } else { Err(ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls and neither allocates nor takes locks.
    unsafe {
        command.pre_exec(bind_to_parent);
    }
}
