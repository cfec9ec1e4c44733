//! `velero-restore-helper` as a program of its own, for images that do not have `lifeboat`: those of Windows.

#![forbid(unsafe_code)]

use lifeboat_restore_helper::{TERMINATION_LOG, VOLUMES, wait};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(restore_uid), None) = (words.next(), words.next()) else {
        eprintln!("usage: velero-restore-helper <UID of the restore>");
        return ExitCode::from(2);
    };
    // Windows ends a process that is told to stop by itself.
    let pause = |interval| {
        std::thread::sleep(interval);
        Ok(())
    };
    let Err(problem) = wait(Path::new(VOLUMES), &restore_uid, pause) else { return ExitCode::SUCCESS };
    let cause = problem.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    let words = format!("{problem}{cause}");
    eprintln!("error: {words}");
    // Without it, the log still has the words.
    let _ = std::fs::write(TERMINATION_LOG, words);
    ExitCode::FAILURE
}
