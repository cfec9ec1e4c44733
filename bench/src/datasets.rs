//! What is backed up: trees whose sizes can be set, always the same bytes for the same sizes.

use anyhow::{Context, Result};
use lifeboat_testkit::tree::Random;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One kind of tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataset {
    /// One file that cannot be compressed.
    LargeFile {
        /// Its size in MiB.
        mebibytes: u64,
    },
    /// Files of 1 MiB.
    MediumFiles {
        /// How many.
        count: u64,
    },
    /// Files of 100 bytes to 4 KiB, twenty in a directory.
    SmallFiles {
        /// How many.
        count: u64,
    },
    /// A disk image with few data: stretches of 1 MiB, evenly spread.
    SparseImage {
        /// Its length in MiB.
        mebibytes: u64,
        /// How much of it is data, in MiB.
        data: u64,
    },
}

impl Dataset {
    /// For tables.
    pub fn describe(self) -> String {
        match self {
            Dataset::LargeFile { mebibytes } => format!("one file of {mebibytes} MiB"),
            Dataset::MediumFiles { count } => format!("{count} files of 1 MiB"),
            Dataset::SmallFiles { count } => format!("{count} files of 0.1 to 4 KiB"),
            Dataset::SparseImage { mebibytes, data } => {
                format!("image of {mebibytes} MiB with {data} MiB of data")
            }
        }
    }

    /// Makes the tree in a new folder.
    pub fn grow(self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        match self {
            Dataset::LargeFile { mebibytes } => write_noise(&folder.join("file"), mebibytes << 20),
            Dataset::MediumFiles { count } => {
                (0..count).try_for_each(|number| grow_medium(folder, number, number))
            }
            Dataset::SmallFiles { count } => {
                (0..count).try_for_each(|number| grow_small(folder, number, number))
            }
            Dataset::SparseImage { mebibytes, data } => grow_sparse(&folder.join("image"), mebibytes, data),
        }
    }

    /// Changes about one percent of it in place.
    pub fn change(self, folder: &Path) -> Result<()> {
        let other = |number: u64| number + (1 << 40);
        match self {
            Dataset::LargeFile { mebibytes } => {
                let file = File::options().write(true).open(folder.join("file"))?;
                overwrite(&file, mebibytes, mebibytes.div_ceil(100))
            }
            Dataset::MediumFiles { count } => {
                (0..count).step_by(100).try_for_each(|number| grow_medium(folder, number, other(number)))
            }
            Dataset::SmallFiles { count } => {
                (0..count).step_by(100).try_for_each(|number| grow_small(folder, number, other(number)))
            }
            Dataset::SparseImage { mebibytes, data } => {
                let file = File::options().write(true).open(folder.join("image"))?;
                overwrite(&file, mebibytes, data.div_ceil(100))
            }
        }
    }
}

/// A file that cannot be compressed.
pub fn write_noise(path: &Path, length: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
    let mut random = Random::new(length);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..length >> 20 {
        random.fill(&mut buffer);
        file.write_all(&buffer)?;
    }
    Ok(file.flush()?)
}

fn grow_medium(folder: &Path, number: u64, seed: u64) -> Result<()> {
    write_noise_of(&folder.join(number.to_string()), seed, 1 << 20)
}

fn grow_small(folder: &Path, number: u64, seed: u64) -> Result<()> {
    let directory = folder.join((number / 20).to_string());
    if number.is_multiple_of(20) {
        fs::create_dir_all(&directory)?;
    }
    let length = 100 + Random::new(seed).below(3997) as usize;
    write_noise_of(&directory.join(number.to_string()), seed, length)
}

fn write_noise_of(path: &Path, seed: u64, length: usize) -> Result<()> {
    fs::write(path, Random::new(seed).bytes(length)).with_context(|| format!("write {}", path.display()))
}

fn grow_sparse(path: &Path, mebibytes: u64, data: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(mebibytes << 20)?;
    overwrite(&file, mebibytes, data)
}

/// Writes `stretches` of 1 MiB, evenly spread over `mebibytes`.
fn overwrite(file: &File, mebibytes: u64, stretches: u64) -> Result<()> {
    let mut random = Random::new(mebibytes ^ stretches);
    let mut buffer = vec![0; 1 << 20];
    for number in 0..stretches {
        random.fill(&mut buffer);
        file.write_all_at(&buffer, (number * mebibytes / stretches.max(1)) << 20)?;
    }
    Ok(())
}
