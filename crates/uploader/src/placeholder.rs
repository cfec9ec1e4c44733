//! Placeholders: small files that stand for files and directories which a shallow restore left in the repository.
//!
//! They are Kopia's. That of a file `name` is the file `name.kopia-entry`; that of a directory is the directory
//! `name.kopia-entry` with the file `.kopia-entry` in it, so that it looks like one. The file holds the entry of the
//! snapshot as JSON. A backup takes that entry over as if everything were there.

use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, EntryType, MAX_VALUE_LEN, RawEntry, encode_entry};
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the name of a placeholder ends with; also the name of the file in that of a directory.
pub(crate) const SUFFIX: &CStr = c".kopia-entry";
/// The longest name that file systems take.
const MAX_NAME: usize = 255;

/// The name of what a placeholder stands for; `None` if `name` is not that of a placeholder.
pub(crate) fn real_name(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(SUFFIX.to_bytes()).filter(|real| !real.is_empty())
}

/// The name of the placeholder for `name`; `None` if that would be too long.
pub(crate) fn name_for(name: &CStr) -> Option<CString> {
    let name = [name.to_bytes(), SUFFIX.to_bytes()].concat();
    CString::new(name).ok().filter(|name| name.as_bytes().len() <= MAX_NAME)
}

/// The path of what the placeholder at `path` stands for; `None` if that is not the path of a placeholder.
pub fn placeholder_target(path: &Path) -> Option<PathBuf> {
    let real = real_name(path.file_name()?.as_bytes())?;
    Some(path.with_file_name(std::ffi::OsStr::from_bytes(real)))
}

/// The entry that the placeholder at `path` stands for.
pub fn read_placeholder(path: &Path) -> Result<DirEntry> {
    let failed = |e: std::io::Error| Error::file("read the placeholder", path, e);
    let is_dir = std::fs::symlink_metadata(path).map_err(failed)?.is_dir();
    let inner = path.join(std::ffi::OsString::from_vec(SUFFIX.to_bytes().to_vec()));
    let file = std::fs::File::open(if is_dir { &inner } else { path }).map_err(failed)?;
    decode(file, is_dir).map_err(failed)
}

/// What a placeholder holds for an entry.
pub(crate) fn encode(entry: &DirEntry) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    encode_entry(entry, &mut json)?;
    json.push(b'\n');
    Ok(json)
}

/// Reads a placeholder that looks like one of a directory, or of a file.
pub(crate) fn decode(file: impl Read, is_dir: bool) -> std::io::Result<DirEntry> {
    let mut json = Vec::new();
    file.take(MAX_VALUE_LEN as u64).read_to_end(&mut json)?;
    let wrong = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
    let mut entry = RawEntry::new(json.trim_ascii())
        .parse()
        .map_err(|error| wrong(format!("it does not hold an entry of a snapshot: {error}")))?;
    let expected = if is_dir { EntryType::Directory } else { EntryType::File };
    // Kopia notes the bytes below a directory, which its listings do not have.
    if is_dir {
        entry.size = 0;
    }
    match entry.entry_type == expected {
        true => Ok(entry),
        false => Err(wrong(format!("it holds the entry of something else: {:?}", entry.entry_type))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kopia() {
        assert_eq!(name_for(c"d").unwrap().as_c_str(), c"d.kopia-entry");
        assert_eq!(real_name(b"d.kopia-entry"), Some(&b"d"[..]));
        assert_eq!((real_name(b".kopia-entry"), real_name(b"d")), (None, None));
        assert_eq!(placeholder_target(Path::new("/a/b.kopia-entry")), Some(PathBuf::from("/a/b")));
        let long = CString::new(vec![b'x'; 244]).unwrap();
        assert_eq!(name_for(&long), None);
        assert!(name_for(&CString::new(vec![b'x'; 243]).unwrap()).is_some());
    }

    #[test]
    fn entries_come_back_and_others_are_refused() {
        let entry = DirEntry {
            name: b"file".to_vec().into(),
            entry_type: EntryType::File,
            object: "abc".into(),
            ..DirEntry::default()
        };
        let json = encode(&entry).unwrap();
        assert!(json.ends_with(b"}\n"));
        assert_eq!(decode(&json[..], false).unwrap(), entry);
        assert!(decode(&json[..], true).is_err(), "it is not one of a directory");
        for wrong in [&b""[..], b"text", b"{", b"[]"] {
            assert!(decode(wrong, false).is_err(), "{wrong:?}");
        }
    }
}
