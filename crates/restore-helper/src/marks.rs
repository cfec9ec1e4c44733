//! What a restore leaves in a volume for the init container of the restored pod that waits for it.
//!
//! That all data is there is told as Velero tells it, by an empty file called after the restore in the folder `.velero`. That
//! it never will be is told by a file beside it, which Velero's own helper does not look at.

use std::fs::File;
use std::io::{ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

const FOLDER: &str = ".velero";
/// As much of a reason is read.
const LONGEST_REASON: u64 = 4096;

/// What a volume says of its restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Nothing yet.
    None,
    /// All data is there.
    Complete,
    /// It will not come, for this reason.
    Failed(String),
}

/// Where the mark is that a volume is complete.
#[must_use]
pub fn complete_path(volume: &Path, restore_uid: &str) -> PathBuf {
    volume.join(FOLDER).join(restore_uid)
}

fn failed_path(volume: &Path, restore_uid: &str) -> PathBuf {
    volume.join(FOLDER).join(format!("{restore_uid}.failed"))
}

/// Marks a volume as complete.
///
/// # Errors
/// If the volume cannot be written.
pub fn mark_complete(volume: &Path, restore_uid: &str) -> Result<()> {
    begin_anew(volume)?;
    File::create_new(complete_path(volume, restore_uid)).map(drop)
}

/// Marks a volume as one that will not be complete.
///
/// # Errors
/// If the volume cannot be written.
pub fn mark_failed(volume: &Path, restore_uid: &str, reason: &str) -> Result<()> {
    begin_anew(volume)?;
    std::fs::write(failed_path(volume, restore_uid), reason)
}

/// What an earlier restore left, or the snapshot brought along, is not this restore's.
fn begin_anew(volume: &Path) -> Result<()> {
    clear(volume)?;
    std::fs::create_dir(volume.join(FOLDER))
}

/// Removes all marks from a volume.
///
/// # Errors
/// If they cannot be removed.
pub fn clear(volume: &Path) -> Result<()> {
    let place = volume.join(FOLDER);
    let removed = place.symlink_metadata().and_then(|found| {
        // Nobody who restores can do without this place, whatever a snapshot has in it. A link is removed, not followed.
        let file_type = found.file_type();
        if file_type.is_dir() || file_type.is_symlink() {
            std::fs::remove_dir_all(&place)
        } else {
            std::fs::remove_file(&place)
        }
    });
    match removed {
        Err(problem) if problem.kind() != ErrorKind::NotFound => Err(problem),
        _ => Ok(()),
    }
}

/// Reads what a volume says of a restore; what cannot be read says nothing.
#[must_use]
pub fn read(volume: &Path, restore_uid: &str) -> Mark {
    if complete_path(volume, restore_uid).exists() {
        return Mark::Complete;
    }
    let Ok(file) = File::open(failed_path(volume, restore_uid)) else { return Mark::None };
    let mut reason = Vec::new();
    match file.take(LONGEST_REASON).read_to_end(&mut reason) {
        Ok(_) => Mark::Failed(String::from_utf8_lossy(&reason).into_owned()),
        Err(problem) => Mark::Failed(format!("the reason cannot be read: {problem}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mark_of_a_restore_counts_and_other_restores_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path();
        assert_eq!(read(volume, "r-1"), Mark::None);
        mark_failed(volume, "r-1", "no bucket").unwrap();
        assert_eq!(read(volume, "r-1"), Mark::Failed("no bucket".to_owned()));
        mark_complete(volume, "r-1").unwrap();
        assert_eq!(read(volume, "r-1"), Mark::Complete);
        assert_eq!(read(volume, "r-2"), Mark::None);
        mark_complete(volume, "r-2").unwrap();
        assert_eq!(read(volume, "r-1"), Mark::None);
        assert_eq!(std::fs::metadata(volume.join(".velero/r-2")).unwrap().len(), 0);
        clear(volume).unwrap();
        clear(volume).unwrap();
        assert_eq!(std::fs::read_dir(volume).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_the_place_of_the_marks_gives_way() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path();
        std::fs::write(volume.join(".velero"), "of the application").unwrap();
        mark_complete(volume, "r-1").unwrap();
        assert_eq!(read(volume, "r-1"), Mark::Complete);
        clear(volume).unwrap();
        std::fs::write(volume.join(".velero"), "of the application").unwrap();
        mark_failed(volume, "r-1", "no bucket").unwrap();
        assert_eq!(read(volume, "r-1"), Mark::Failed("no bucket".to_owned()));
    }

    /// A snapshot may bring a link along that leads elsewhere.
    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_the_marks_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, other) = (folder.path().join("volume"), folder.path().join("other"));
        std::fs::create_dir(&volume).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("kept"), "").unwrap();
        std::os::unix::fs::symlink(&other, volume.join(".velero")).unwrap();
        mark_complete(&volume, "r-1").unwrap();
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
        assert!(volume.join(".velero").symlink_metadata().unwrap().is_dir());
    }
}
