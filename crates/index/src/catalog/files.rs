//! The names of the catalogue's files, the lists that tell which of them answer for a set of index blobs, and the
//! removal of what nobody uses any more.

use super::IndexBlobName;
use super::layout::Digest;
use super::segment::remove;
use super::write::TEMPORARY;
use crate::Error;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const OWN: &str = "own-";
const MERGED: &str = "merged-";
const COVER: &str = "cover-";

/// Identifies a set of index blobs; names are told from each other by their lengths.
///
/// The overhead is part of it because it decides what a version 1 index says.
pub(super) fn digest<'a>(blobs: impl IntoIterator<Item = &'a IndexBlobName>, v1_overhead: u32) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&v1_overhead.to_le_bytes());
    for blob in blobs {
        hasher.update(&(blob.as_str().len() as u64).to_le_bytes());
        hasher.update(blob.as_str().as_bytes());
    }
    let mut digest = Digest::default();
    hasher.finalize_xof().fill(&mut digest);
    digest
}

/// The file of the segment of one blob.
pub(super) fn own_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join(format!("{OWN}{}", hex::encode(digest)))
}

/// The file of the segment of several blobs.
pub(super) fn merged_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join(format!("{MERGED}{}", hex::encode(digest)))
}

fn cover_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join(format!("{COVER}{}", hex::encode(digest)))
}

/// The digest in a segment's file name.
pub(super) fn digest_of(path: &Path) -> Option<Digest> {
    let name = path.file_name()?.to_str()?;
    let digits = name.strip_prefix(OWN).or_else(|| name.strip_prefix(MERGED))?;
    let mut digest = Digest::default();
    hex::decode_to_slice(digits, &mut digest).ok()?;
    Some(digest)
}

/// The segments of several blobs that are there.
pub(super) fn merged_paths(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let is_merged = |name: &str| name.starts_with(MERGED);
    Ok(list(directory)?.into_iter().filter(|path| file_name(path).is_some_and(is_merged)).collect())
}

/// Remembers that `segments` answer for the set of blobs that `digest` identifies.
pub(super) fn write_cover(directory: &Path, digest: &Digest, segments: &[&Path]) -> Result<(), Error> {
    let names: Vec<&str> = segments.iter().filter_map(|path| file_name(path)).collect();
    let text = names.join("\n");
    let path = cover_path(directory, digest);
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
        write!(file, "{:08x}\n{text}", cover_checksum(digest, &text))?;
        file.persist(&path)?;
        Ok(())
    };
    write().map_err(Error::io("write", &path))
}

/// The segments that answer for the set of blobs that `digest` identifies, if that was remembered.
pub(super) fn read_cover(directory: &Path, digest: &Digest) -> Option<Vec<PathBuf>> {
    let path = cover_path(directory, digest);
    let text = fs::read_to_string(&path).ok()?;
    let (checksum, names) = text.split_once('\n')?;
    if checksum != format!("{:08x}", cover_checksum(digest, names)) {
        remove(&path);
        return None;
    }
    Some(names.split_terminator('\n').map(|name| directory.join(name)).collect())
}

/// The checksum of a list; the set it is for is part of it, as a list for another set is as bad as a damaged one.
fn cover_checksum(digest: &Digest, names: &str) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(digest);
    hasher.update(names.as_bytes());
    hasher.finalize()
}

/// Removes files of the catalogue that are neither in `keep` nor the list for `cover`, nor younger than `grace`.
///
/// Others may share the folder and see another set of index blobs for a while: what they use is young, because opening
/// a file makes it so. Should a file be removed that somebody is about to open, they build it again.
pub(super) fn sweep(
    directory: &Path,
    keep: &HashSet<PathBuf>,
    cover: &Digest,
    grace: Duration,
) -> Result<(), Error> {
    let cover = cover_path(directory, cover);
    let now = SystemTime::now();
    for path in list(directory)? {
        let ours = file_name(&path).is_some_and(|name| {
            [OWN, MERGED, COVER, TEMPORARY].iter().any(|prefix| name.starts_with(prefix))
        });
        if !ours || path == cover || keep.contains(&path) {
            continue;
        }
        let Ok(modified) = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified()) else {
            continue;
        };
        if now.duration_since(modified).unwrap_or_default() >= grace {
            remove(&path);
        }
    }
    Ok(())
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(directory).map_err(Error::io("list", directory))?;
    entries.map(|entry| Ok(entry.map_err(Error::io("list", directory))?.path())).collect()
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
