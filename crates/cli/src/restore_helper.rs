//! `lifeboat restore-helper`: the init container `restore-wait` of a restored pod, which holds the pod back until its volumes
//! are complete. The image also has it as `/velero-restore-helper`, as Velero's restores start it.

use crate::data_mover::leave;
use crate::signals::told_to_stop;
use anyhow::{Context, Result};
use clap::Args;
use lifeboat_restore_helper::{Problem, TERMINATION_LOG, VOLUMES, wait};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;

/// The name under which Velero's restores start it.
pub const PROGRAM: &str = "velero-restore-helper";

#[derive(Debug, Args)]
pub struct RestoreHelper {
    /// The UID of the restore.
    restore_uid: String,
}

/// Waits until all volumes are complete. Ends in an error, which is also left where `kubectl describe` shows it, as soon as
/// one of them says that it will not be.
pub fn run(args: &RestoreHelper) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime cannot be started")?;
    let mut stop = pin!(told_to_stop());
    let pause = |interval| {
        let told = runtime.block_on(async { tokio::time::timeout(interval, stop.as_mut()).await });
        told.map_or(Ok(()), |()| Err(Problem::Stopped))
    };
    let outcome = wait(Path::new(VOLUMES), &args.restore_uid, pause).map_err(anyhow::Error::from);
    if let Err(error) = &outcome {
        // Without it, the log still has the words.
        let _ = leave(Path::new(TERMINATION_LOG), &format!("{error:#}"));
    }
    outcome.map(|()| ExitCode::SUCCESS)
}
