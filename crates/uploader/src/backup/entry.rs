//! What the file system says about something, as an entry of a listing, and whether that is what a parent says.

use crate::source::Kind;
use jiff::Timestamp;
use lifeboat_kopia::snapshot::{DirEntry, EntryType, Extras, GoMode, PlainEntry, entry_time};
use rustix::fs::{FileType, Stat};
use std::ffi::CStr;

/// Whether the parent's entry can be taken over as it is for a file that is listed under its own name.
pub(super) fn is_unchanged(
    previous: &PlainEntry<'_>,
    with_extras: bool,
    stat: &Stat,
    extras_until: Option<Timestamp>,
) -> bool {
    let (entry_type, size) = type_and_size(stat);
    // A time that no listing can hold is not that of the entry.
    let mtime = Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).unwrap_or(0));
    let is_same = (&previous.entry_type, previous.size) == (&entry_type, size)
        && mtime.is_ok_and(|mtime| mtime == previous.mtime)
        && previous.mode == GoMode::from_unix(stat.st_mode)
        && (previous.uid, previous.gid) == (stat.st_uid, stat.st_gid);
    is_same
        && match with_extras {
            // Everything that changes extras changes this time as well, and nobody can set it.
            true => extras_until.is_some_and(|until| change_time(stat) < until),
            // Nothing follows the object.
            false => previous.rest == b"}",
        }
}

/// Whether something is, by Kopia's rule, still as it was. Special files are files without bytes, so that one that became
/// another kind has the same data.
pub(super) fn is_same_state(previous: &DirEntry, entry: &DirEntry) -> bool {
    previous.entry_type == entry.entry_type
        && previous.size == entry.size
        && previous.file_time() == entry.file_time()
        && previous.mode == entry.mode
        && (previous.uid, previous.gid) == (entry.uid, entry.gid)
}

/// Whether a file was written to between two looks at it.
pub(super) fn is_rewritten(was: &Stat, now: &Stat) -> bool {
    (now.st_size, now.st_mtime, now.st_mtime_nsec) != (was.st_size, was.st_mtime, was.st_mtime_nsec)
}

/// Sets the extras of an entry that may have a name or a time among them already.
pub(super) fn set_extras(entry: &mut DirEntry, extras: Extras) {
    let own = entry.extras.take().unwrap_or_default();
    let extras = Extras { raw_name: own.raw_name, mtime: own.mtime, ..extras };
    entry.extras = (!extras.is_empty()).then(|| Box::new(extras));
}

/// When anything about a file was last changed.
pub(super) fn change_time(stat: &Stat) -> Timestamp {
    entry_time(stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0))
}

/// The entry of something, without its object; `with_extras` allows a name and a time that Kopia cannot keep.
pub(super) fn head_entry(name: &CStr, listed: &[u8], stat: &Stat, with_extras: bool) -> DirEntry {
    let (entry_type, size) = type_and_size(stat);
    let mut entry = DirEntry {
        name: listed.to_vec().into(),
        entry_type,
        mode: GoMode::from_unix(stat.st_mode),
        size,
        uid: stat.st_uid,
        gid: stat.st_gid,
        ..DirEntry::default()
    };
    entry.set_file_time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
    if listed != name.to_bytes() {
        entry.extras.get_or_insert_default().raw_name.0 = name.to_bytes().to_vec();
    }
    if !with_extras {
        entry.extras = None;
    }
    entry
}

/// What something is in a listing, and its size there.
fn type_and_size(stat: &Stat) -> (EntryType, u64) {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    match Kind::of(FileType::from_raw_mode(stat.st_mode)) {
        Kind::Directory => (EntryType::Directory, 0),
        Kind::Symlink => (EntryType::Symlink, size),
        Kind::File => (EntryType::File, size),
        Kind::Special => (EntryType::File, 0),
    }
}
