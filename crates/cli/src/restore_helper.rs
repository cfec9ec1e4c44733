//! `lifeboat restore-helper`: the init container `restore-wait` of a restored pod, which holds the pod back until its volumes
//! are complete. The image also has it as `/velero-restore-helper`, as Velero's restores start it.

use crate::data_mover::leave;
use crate::signals::told_to_stop;
use anyhow::{Context, Result, bail};
use clap::Args;
use lifeboat_datapath::marks::{self, Mark};
use lifeboat_datapath::wire::TERMINATION_LOG;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The name under which Velero's restores start it.
pub const PROGRAM: &str = "velero-restore-helper";
/// Where a restored pod has the volumes that are to be waited for.
const VOLUMES: &str = "/restores";
/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct RestoreHelper {
    /// The UID of the restore.
    restore_uid: String,
}

/// Waits until all volumes are complete. Ends in an error, which is also left where `kubectl describe` shows it, as soon as
/// one of them says that it will not be.
pub fn run(args: &RestoreHelper) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let waiting = wait(Path::new(VOLUMES), &args.restore_uid);
    let outcome = runtime.context("the runtime cannot be started")?.block_on(async {
        tokio::select! {
            outcome = waiting => outcome,
            () = told_to_stop() => bail!("told to stop before all volumes were restored"),
        }
    });
    if let Err(error) = &outcome {
        // Without it, the log still has the words.
        let _ = leave(Path::new(TERMINATION_LOG), &format!("{error:#}"));
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn wait(volumes: &Path, restore_uid: &str) -> Result<()> {
    let mut told = None;
    loop {
        let marks = look(volumes, restore_uid)?;
        let open: Vec<&str> =
            marks.iter().filter(|(_, mark)| **mark == Mark::None).map(|(name, _)| name.as_str()).collect();
        for (name, mark) in &marks {
            if let Mark::Failed(reason) = mark {
                bail!("the volume {name} was not restored: {reason}");
            }
        }
        if open.is_empty() {
            println!("all volumes are restored");
            return clear(volumes, marks.keys());
        }
        let words = format!("waiting for the data of {}", open.join(", "));
        if told.as_ref() != Some(&words) {
            println!("{words}");
            told = Some(words);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What each volume says.
fn look(volumes: &Path, restore_uid: &str) -> Result<BTreeMap<String, Mark>> {
    let listing = || format!("the volumes in {} cannot be listed", volumes.display());
    let mut marks = BTreeMap::new();
    for entry in volumes.read_dir().with_context(listing)? {
        let path: PathBuf = entry.with_context(listing)?.path();
        if let (true, Some(name)) = (path.is_dir(), path.file_name()) {
            marks.insert(name.to_string_lossy().into_owned(), marks::read(&path, restore_uid));
        }
    }
    Ok(marks)
}

/// The pod shall not find marks in its volumes; but if they cannot be removed, it has its data all the same.
fn clear<'a>(volumes: &Path, names: impl Iterator<Item = &'a String>) -> Result<()> {
    for name in names {
        if let Err(problem) = marks::clear(&volumes.join(name)) {
            println!("the mark in the volume {name} cannot be removed: {problem}");
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_datapath::marks::{mark_complete, mark_failed};

    fn volumes(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("no-folder"), "").unwrap();
        folder
    }

    #[tokio::test]
    async fn it_ends_when_the_last_volume_is_complete_and_leaves_no_marks() {
        let folder = volumes(&["a", "b"]);
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        mark_complete(&a, "r-1").unwrap();
        // Of an earlier restore.
        mark_complete(&b, "r-0").unwrap();
        let waiting = wait(folder.path(), "r-1");
        tokio::pin!(waiting);
        let early = tokio::time::timeout(Duration::from_millis(1500), &mut waiting).await;
        assert!(early.is_err(), "one volume is not complete");
        mark_complete(&b, "r-1").unwrap();
        waiting.await.unwrap();
        assert!(!a.join(".velero").exists() && !b.join(".velero").exists());
    }

    #[tokio::test]
    async fn it_ends_in_an_error_that_names_the_volume_and_the_reason() {
        let folder = volumes(&["a", "b"]);
        mark_failed(&folder.path().join("b"), "r-1", "the store is full").unwrap();
        let error = wait(folder.path(), "r-1").await.unwrap_err().to_string();
        assert_eq!(error, "the volume b was not restored: the store is full");
        assert!(wait(&folder.path().join("nowhere"), "r-1").await.is_err());
    }
}
