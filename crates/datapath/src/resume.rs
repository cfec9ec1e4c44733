//! Going on with a restore of which a mover was lost.

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use std::fs;
use std::io;
use std::path::Path;

/// Takes the times of modification off all files in a volume; says how many there are. A restore trusts a file that has the time of
/// the one in the snapshot, which it sets when the data is written. But a node that is lost may keep that and lose the data, which
/// is not on disk before the end, and another file may have been there before; without their times, files are compared.
pub(crate) fn distrust_files(volume: &Path) -> io::Result<u64> {
    let now = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    };
    let mut count = 0;
    let mut folders = vec![volume.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let file_type = entry.file_type()?;
            if file_type.is_dir() {
                folders.push(entry.path());
            } else if file_type.is_file() {
                utimensat(CWD, entry.path(), &now, AtFlags::SYMLINK_NOFOLLOW)?;
                count += 1;
            }
        }
    }
    Ok(count)
}
