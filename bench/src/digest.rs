//! Whether what was restored is what was backed up.

use anyhow::{Context, Result};
use blake3::{Hash, Hasher};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: u64 = 1 << 20;

/// A digest of the names and contents of everything below a folder.
pub fn of_tree(folder: &Path) -> Result<Hash> {
    let mut hasher = Hasher::new();
    let mut block = vec![0; BLOCK as usize];
    add_folder(&mut hasher, folder, &mut block)?;
    Ok(hasher.finalize())
}

fn add_folder(hasher: &mut Hasher, folder: &Path, block: &mut [u8]) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut entries = entries.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    hasher.update(&entries.len().to_le_bytes());
    for entry in entries {
        let name = entry.file_name();
        hasher.update(&name.len().to_le_bytes()).update(name.as_bytes());
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            add_folder(hasher, &path, block)?;
        } else {
            add_file(hasher, &path, block).with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok(())
}

/// A hole and zeros are the same, so that only what is not zero counts, each block with its place.
fn add_file(hasher: &mut Hasher, path: &Path, block: &mut [u8]) -> Result<()> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    hasher.update(&length.to_le_bytes());
    let mut at = 0;
    loop {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data - data % BLOCK,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let data = &mut block[..(length - at).min(BLOCK) as usize];
        file.read_exact_at(data, at)?;
        if data.iter().any(|byte| *byte != 0) {
            hasher.update(&at.to_le_bytes()).update(data);
        }
        at += BLOCK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lengths_places_and_bytes_count_and_holes_are_zeros() -> Result<()> {
        let digest = |grow: &dyn Fn(&Path) -> Result<()>| -> Result<Hash> {
            let folder = tempfile::tempdir()?;
            grow(folder.path())?;
            of_tree(folder.path())
        };
        let image = |name: &'static str, length: u64, data: &'static [u8], at: u64| {
            move |folder: &Path| -> Result<()> {
                let file = File::create(folder.join(name))?;
                file.set_len(length)?;
                Ok(file.write_all_at(data, at)?)
            }
        };
        let of_holes = digest(&image("a", 3 * BLOCK, b"data", BLOCK + 7))?;
        let of_zeros = digest(&|folder| {
            let mut bytes = vec![0; 3 * BLOCK as usize];
            bytes[BLOCK as usize + 7..][..4].copy_from_slice(b"data");
            Ok(fs::write(folder.join("a"), bytes)?)
        })?;
        assert_eq!(of_holes, of_zeros);
        let others = [
            digest(&image("b", 3 * BLOCK, b"data", BLOCK + 7))?,
            digest(&image("a", 3 * BLOCK + 1, b"data", BLOCK + 7))?,
            digest(&image("a", 3 * BLOCK, b"date", BLOCK + 7))?,
            digest(&image("a", 3 * BLOCK, b"data", 2 * BLOCK + 7))?,
            digest(&|folder| {
                fs::create_dir(folder.join("a"))?;
                image("a", 3 * BLOCK, b"data", BLOCK + 7)(&folder.join("a"))
            })?,
        ];
        assert!(others.iter().all(|other| *other != of_holes));
        Ok(())
    }
}
