//! Comparing two trees, entry by entry.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How many differences a failure shows; the first few tell the story.
const SHOWN: usize = 20;

/// What has to be the same beside names, types, contents and link targets, which always have to be.
#[derive(Debug, Clone, Copy)]
pub struct Compare {
    /// Permission bits, with the special ones.
    pub modes: bool,
    /// Users and groups.
    pub owners: bool,
    /// Modification times of files, to the nanosecond.
    pub file_times: bool,
    /// Modification times of symbolic links.
    pub link_times: bool,
    /// Modification times of directories.
    pub directory_times: bool,
    /// Mode, owner and time of the top directory itself.
    pub top: bool,
    /// Whether two names of one file, link or special file are still one.
    pub hard_links: bool,
}

impl Compare {
    /// Everything.
    pub fn exact() -> Compare {
        Compare {
            modes: true,
            owners: true,
            file_times: true,
            link_times: true,
            directory_times: true,
            top: true,
            hard_links: true,
        }
    }

    /// Everything that a restore by stock kopia keeps. It gives a directory the newest time found below it, rounds
    /// the times of symbolic links to microseconds, and two names of one file become two files.
    pub fn kept_by_kopia() -> Compare {
        Compare { directory_times: false, link_times: false, hard_links: false, ..Compare::exact() }
    }
}

/// Fails with the first differences if there are any.
pub fn assert_same(left: &Path, right: &Path, compare: Compare) -> Result<()> {
    let found = differences(left, right, compare)?;
    if found.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} and {} differ in {} points:\n", left.display(), right.display(), found.len());
    for line in found.iter().take(SHOWN) {
        let _ = writeln!(text, "  {line}");
    }
    bail!(text)
}

/// One line for each difference, in the order of the paths.
pub fn differences(left: &Path, right: &Path, compare: Compare) -> Result<Vec<String>> {
    let (mut ours, theirs) = (list(left)?, list(right)?);
    let mut found = Vec::new();
    for (path, their) in &theirs {
        match ours.remove(path) {
            None => found.push(format!("{}: only in {}", path.display(), right.display())),
            Some(our) => {
                let same_content = Contents { left: &left.join(path), right: &right.join(path) };
                our.differences(their, path, compare, &same_content, &mut found)?;
            }
        }
    }
    found.extend(ours.keys().map(|path| format!("{}: only in {}", path.display(), left.display())));
    found.sort();
    Ok(found)
}

/// One entry of a tree, without the content of files, which is only read when both sides are files of one size.
#[derive(Debug)]
struct Entry {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    size: u64,
    /// The first path, in order, of the same file, if it has several.
    first_name: Option<PathBuf>,
}

struct Contents<'a> {
    left: &'a Path,
    right: &'a Path,
}

impl Entry {
    fn differences(
        &self,
        other: &Entry,
        path: &Path,
        compare: Compare,
        contents: &Contents<'_>,
        found: &mut Vec<String>,
    ) -> Result<()> {
        let mut differ = |what: &str, left: String, right: String| {
            if left != right {
                found.push(format!("{}: {what} {left} and {right}", path.display()));
            }
        };
        differ("type", self.kind.clone(), other.kind.clone());
        if self.kind != other.kind {
            return Ok(());
        }
        let (is_file, is_dir) = (self.kind == "file", self.kind == "directory");
        let is_link = self.kind.starts_with("link");
        if is_file {
            differ("size", self.size.to_string(), other.size.to_string());
            if self.size == other.size {
                differ("content", digest(contents.left)?, digest(contents.right)?);
            }
        }
        if compare.hard_links {
            differ("first name", format!("{:?}", self.first_name), format!("{:?}", other.first_name));
        }
        if path.as_os_str().is_empty() && !compare.top {
            return Ok(());
        }
        // The mode of a link means nothing on Linux.
        if compare.modes && !is_link {
            differ("mode", format!("{:o}", self.mode), format!("{:o}", other.mode));
        }
        if compare.owners {
            differ("owner", format!("{:?}", self.owner), format!("{:?}", other.owner));
        }
        let times = if is_dir {
            compare.directory_times
        } else if is_link {
            compare.link_times
        } else {
            compare.file_times
        };
        if times {
            let text = |(seconds, nanos): (i64, i64)| format!("{seconds}.{nanos:09}");
            differ("modified", text(self.modified), text(other.modified));
        }
        Ok(())
    }
}

/// All entries of a tree, by their path below the top; the top itself has the empty path.
fn list(top: &Path) -> Result<BTreeMap<PathBuf, Entry>> {
    let mut entries = BTreeMap::new();
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut several: Vec<(PathBuf, (u64, u64))> = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let full = top.join(&path);
        let metadata = fs::symlink_metadata(&full).with_context(|| format!("look at {}", full.display()))?;
        if metadata.is_dir() {
            for entry in fs::read_dir(&full).with_context(|| format!("list {}", full.display()))? {
                pending.push(path.join(entry?.file_name()));
            }
        } else if metadata.nlink() > 1 {
            let identity = (metadata.dev(), metadata.ino());
            let first = names.entry(identity).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            several.push((path.clone(), identity));
        }
        entries.insert(path, entry(&full, &metadata)?);
    }
    for (path, identity) in several {
        if let Some(entry) = entries.get_mut(&path) {
            entry.first_name = names.get(&identity).cloned();
        }
    }
    Ok(entries)
}

fn entry(path: &Path, metadata: &Metadata) -> Result<Entry> {
    let file_type = metadata.file_type();
    let kind = if file_type.is_file() {
        "file".to_owned()
    } else if file_type.is_dir() {
        "directory".to_owned()
    } else if file_type.is_symlink() {
        format!("link to {}", fs::read_link(path)?.display())
    } else if file_type.is_fifo() {
        "fifo".to_owned()
    } else if file_type.is_socket() {
        "socket".to_owned()
    } else {
        let kind = if file_type.is_block_device() { "block" } else { "character" };
        format!("{kind} device {:#x}", metadata.rdev())
    };
    Ok(Entry {
        kind,
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        size: metadata.len(),
        first_name: None,
    })
}

fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut digest = Sha256::new();
    let mut block = vec![0; 256 << 10];
    loop {
        let len = file.read(&mut block).with_context(|| format!("read {}", path.display()))?;
        if len == 0 {
            return Ok(hex::encode(digest.finalize()));
        }
        digest.update(&block[..len]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::TreeSpec;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn two_trees() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let left = TreeSpec::small(11).grow(&dir.path().join("a")).unwrap();
        let right = TreeSpec::small(11).grow(&dir.path().join("b")).unwrap();
        assert_eq!(left, right);
        dir
    }

    fn after(change: impl Fn(&Path)) -> Vec<String> {
        let dir = two_trees();
        let right = dir.path().join("b");
        change(&right);
        differences(&dir.path().join("a"), &right, Compare::exact()).unwrap()
    }

    fn some_file(top: &Path) -> PathBuf {
        let entries = list(top).unwrap();
        let (path, _) = entries.iter().find(|(_, entry)| entry.kind == "file" && entry.size > 10).unwrap();
        top.join(path)
    }

    #[test]
    fn the_same_seed_gives_the_same_tree_and_another_seed_another() {
        let dir = two_trees();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        assert_same(&a, &b, Compare::exact()).unwrap();
        let c = dir.path().join("c");
        TreeSpec::small(12).grow(&c).unwrap();
        let error = assert_same(&a, &c, Compare::exact()).unwrap_err().to_string();
        assert!(error.contains("differ in"), "{error}");
    }

    #[test]
    fn a_flipped_byte_a_changed_mode_and_a_missing_file_are_found() {
        let flipped = after(|top| {
            let path = some_file(top);
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[5] ^= 1;
            fs::write(&path, bytes).unwrap();
            File::open(&path).unwrap().set_modified(time).unwrap();
        });
        assert!(flipped.iter().any(|line| line.contains("content")), "{flipped:?}");

        let changed =
            after(|top| fs::set_permissions(some_file(top), fs::Permissions::from_mode(0o111)).unwrap());
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(changed[0].contains("mode") && changed[0].ends_with("and 111"), "{changed:?}");

        let missing = after(|top| fs::remove_file(some_file(top)).unwrap());
        assert!(missing.iter().any(|line| line.contains("only in")), "{missing:?}");
    }

    #[test]
    fn a_link_to_elsewhere_a_new_hard_link_and_a_new_time_are_found() {
        let linked = after(|top| symlink("elsewhere", top.join("new")).unwrap());
        assert!(linked.iter().any(|line| line.contains("new: only in")), "{linked:?}");

        let hard = after(|top| fs::hard_link(some_file(top), top.join("zz")).unwrap());
        assert!(hard.iter().any(|line| line.contains("first name")), "{hard:?}");

        let dir = two_trees();
        for (top, is_one) in [("a", true), ("b", false)] {
            let top = dir.path().join(top);
            let special = |name: &str| {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, top.join(name), kind, 0o600.into(), 0).unwrap();
            };
            symlink("elsewhere", top.join("x1")).unwrap();
            special("y1");
            match is_one {
                true => ["x", "y"].iter().for_each(|name| {
                    fs::hard_link(top.join(format!("{name}1")), top.join(format!("{name}2"))).unwrap();
                }),
                false => {
                    symlink("elsewhere", top.join("x2")).unwrap();
                    special("y2");
                }
            }
        }
        let several = differences(&dir.path().join("a"), &dir.path().join("b"), Compare::exact()).unwrap();
        for name in ["x1: first", "x2: first", "y1: first", "y2: first"] {
            assert!(several.iter().any(|line| line.starts_with(name)), "{several:?}");
        }

        let touched = after(|top| {
            let file = File::open(some_file(top)).unwrap();
            let time = file.metadata().unwrap().modified().unwrap();
            file.set_modified(time + std::time::Duration::from_nanos(1)).unwrap();
        });
        assert_eq!(touched.len(), 1, "{touched:?}");
    }
}
