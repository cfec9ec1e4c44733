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
    /// Text files of many sizes in nested directories, as the sources of an operating system's kernel are.
    SourceTree {
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
            Dataset::SourceTree { count } => format!("kernel-like tree of {count} files"),
            Dataset::SparseImage { mebibytes, data } => {
                format!("image of {mebibytes} MiB with {data} MiB of data")
            }
        }
    }

    /// About what it takes of a file system.
    pub fn bytes(self) -> u64 {
        match self {
            Dataset::LargeFile { mebibytes } | Dataset::SparseImage { data: mebibytes, .. } => {
                mebibytes << 20
            }
            Dataset::MediumFiles { count } => count << 20,
            Dataset::SmallFiles { count } => count << 12,
            Dataset::SourceTree { count } => count * (20 << 10),
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
            Dataset::SourceTree { count } => {
                (0..count).try_for_each(|number| grow_source(folder, number, number))
            }
            Dataset::SparseImage { mebibytes, data } => grow_sparse(&folder.join("image"), mebibytes, data),
        }
    }

    /// Whether most of it is holes.
    pub fn is_sparse(self) -> bool {
        matches!(self, Dataset::SparseImage { .. })
    }

    /// Changes about one percent of it in place, to other bytes in each `round`.
    pub fn change(self, folder: &Path, round: u64) -> Result<()> {
        let other = |number: u64| number + ((round + 1) << 40);
        match self {
            Dataset::LargeFile { mebibytes } => {
                let file = File::options().write(true).open(folder.join("file"))?;
                overwrite(&file, mebibytes, mebibytes.div_ceil(100), other(0))
            }
            Dataset::MediumFiles { count } => {
                (0..count).step_by(100).try_for_each(|number| grow_medium(folder, number, other(number)))
            }
            Dataset::SmallFiles { count } => {
                (0..count).step_by(100).try_for_each(|number| grow_small(folder, number, other(number)))
            }
            Dataset::SourceTree { count } => {
                (0..count).step_by(100).try_for_each(|number| grow_source(folder, number, other(number)))
            }
            Dataset::SparseImage { mebibytes, data } => {
                let file = File::options().write(true).open(folder.join("image"))?;
                overwrite(&file, mebibytes, data.div_ceil(100), other(0))
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
    fs::create_dir_all(&directory)?;
    let length = 100 + Random::new(seed).below(3997) as usize;
    write_noise_of(&directory.join(number.to_string()), seed, length)
}

/// Sixteen files in a directory, up to four directories deep; half of the files have less than 6 KiB, few have more
/// than 100.
fn grow_source(folder: &Path, number: u64, seed: u64) -> Result<()> {
    const WORDS: [&str; 16] = [
        "static ", "int ", "struct ", "return ", "if (", ") {\n", "\t", "}\n", "->", "dev", "buf", "0x",
        "err", "; ", "= ", "len",
    ];
    let directory = number / 16;
    let path =
        folder.join(format!("{}/{}/{}", directory % 24, directory % 24 / 3 + directory / 300, directory));
    fs::create_dir_all(&path)?;
    let mut random = Random::new(seed);
    let doublings = (0..7).take_while(|_| random.below(100) < 45).count();
    let length = (1024 + random.below(9 << 10)) << doublings;
    let mut text = String::with_capacity(length as usize + 16);
    while (text.len() as u64) < length {
        let bits = random.below(1 << 48);
        (0..12).for_each(|word| text.push_str(WORDS[(bits >> (4 * word)) as usize & 15]));
    }
    let path = path.join(format!("{number}.c"));
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn write_noise_of(path: &Path, seed: u64, length: usize) -> Result<()> {
    fs::write(path, Random::new(seed).bytes(length)).with_context(|| format!("write {}", path.display()))
}

fn grow_sparse(path: &Path, mebibytes: u64, data: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(mebibytes << 20)?;
    overwrite(&file, mebibytes, data, mebibytes)
}

/// Writes `stretches` of 1 MiB, evenly spread over `mebibytes`.
fn overwrite(file: &File, mebibytes: u64, stretches: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut buffer = vec![0; 1 << 20];
    for number in 0..stretches {
        random.fill(&mut buffer);
        file.write_all_at(&buffer, (number * mebibytes / stretches.max(1)) << 20)?;
    }
    Ok(())
}
