//! Waiting for the marks of all volumes of a pod.

use crate::marks::{self, Mark};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Where a restored pod has the volumes that are to be waited for.
pub const VOLUMES: &str = "/restores";
/// How often to look.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Why a pod is not to be started.
#[derive(Debug, Error)]
pub enum Problem {
    /// There is no telling what is waited for.
    #[error("the volumes in {path} cannot be listed", path = .0.display())]
    Unlisted(PathBuf, #[source] io::Error),
    /// The restore of a volume says that its data will not come.
    #[error("the volume {0} was not restored: {1}")]
    NotRestored(String, String),
    /// Somebody ends the wait.
    #[error("told to stop before all volumes were restored")]
    Stopped,
}

/// Waits until all volumes are complete, and says on the standard output what it waits for. Ends as soon as one of them says
/// that it will not be, or `pause`, which is called between two looks, says that it is enough.
///
/// # Errors
/// If not all volumes were restored.
pub fn wait(
    volumes: &Path,
    restore_uid: &str,
    mut pause: impl FnMut(Duration) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut told = None;
    loop {
        let marks = look(volumes, restore_uid)?;
        let mut open = Vec::new();
        for (name, mark) in &marks {
            match mark {
                Mark::None => open.push(name.as_str()),
                Mark::Complete => {}
                Mark::Failed(reason) => return Err(Problem::NotRestored(name.clone(), reason.clone())),
            }
        }
        if open.is_empty() {
            println!("all volumes are restored");
            clear(volumes, marks.keys());
            return Ok(());
        }
        let words = format!("waiting for the data of {}", open.join(", "));
        if told.as_ref() != Some(&words) {
            println!("{words}");
            told = Some(words);
        }
        pause(INTERVAL)?;
    }
}

/// What each volume says.
fn look(volumes: &Path, restore_uid: &str) -> Result<BTreeMap<String, Mark>, Problem> {
    let unlisted = |problem| Problem::Unlisted(volumes.to_owned(), problem);
    let mut marks = BTreeMap::new();
    for entry in volumes.read_dir().map_err(unlisted)? {
        let path = entry.map_err(unlisted)?.path();
        if let (true, Some(name)) = (path.is_dir(), path.file_name()) {
            marks.insert(name.to_string_lossy().into_owned(), marks::read(&path, restore_uid));
        }
    }
    Ok(marks)
}

/// The pod shall not find marks in its volumes; but if they cannot be removed, it has its data all the same.
fn clear<'a>(volumes: &Path, names: impl Iterator<Item = &'a String>) {
    for name in names {
        if let Err(problem) = marks::clear(&volumes.join(name)) {
            println!("the mark in the volume {name} cannot be removed: {problem}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::marks::{mark_complete, mark_failed};

    fn volumes(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("no-folder"), "").unwrap();
        folder
    }

    #[test]
    fn it_ends_when_the_last_volume_is_complete_and_leaves_no_marks() {
        let folder = volumes(&["a", "b"]);
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        mark_complete(&a, "r-1").unwrap();
        // Of an earlier restore.
        mark_complete(&b, "r-0").unwrap();
        let mut looks = 0;
        let complete_the_other = |_| {
            looks += 1;
            mark_complete(&b, "r-1").unwrap();
            Ok(())
        };
        wait(folder.path(), "r-1", complete_the_other).unwrap();
        assert_eq!(looks, 1, "one volume was not complete at first");
        assert!(!a.join(".velero").exists() && !b.join(".velero").exists());
    }

    #[test]
    fn it_ends_in_an_error_that_names_the_volume_and_the_reason() {
        let folder = volumes(&["a", "b"]);
        mark_failed(&folder.path().join("b"), "r-1", "the store is full").unwrap();
        let never = |_| panic!("nothing to wait for");
        let error = wait(folder.path(), "r-1", never).unwrap_err().to_string();
        assert_eq!(error, "the volume b was not restored: the store is full");
        assert!(wait(&folder.path().join("nowhere"), "r-1", never).is_err());
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let folder = volumes(&["a"]);
        let stopped = wait(folder.path(), "r-1", |_| Err(Problem::Stopped));
        assert!(matches!(stopped, Err(Problem::Stopped)));
    }
}
