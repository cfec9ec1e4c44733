//! Making a tree of files from a seed.

use super::Random;
use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What a tree shall look like. The same description gives the same tree, whatever the machine.
#[derive(Debug, Clone)]
pub struct TreeSpec {
    /// Decides everything that is left open below.
    pub seed: u64,
    /// Directories below the top, nested at random; some stay empty.
    pub directories: usize,
    /// Files of random sizes, spread over the directories.
    pub files: usize,
    /// The largest of them; sizes are spread evenly over the orders of magnitude up to it, 0 included.
    pub max_file_size: u64,
    /// Further files of exactly these sizes.
    pub exact_sizes: Vec<u64>,
    /// Further files of these sizes with almost nothing but holes.
    pub sparse_sizes: Vec<u64>,
    /// Symbolic links: to files, to directories, absolute, broken.
    pub symlinks: usize,
    /// Whether to add names that trip programs up: blanks, line breaks, quotes, dashes, the longest possible.
    pub odd_names: bool,
    /// Whether to add names that are not UTF-8. Kopia does not keep these.
    pub undecodable_names: bool,
    /// Whether modes include set-user-id, set-group-id and sticky bits.
    pub special_modes: bool,
    /// Whether entries get owners other than the one who runs the test, which takes root.
    pub owners: bool,
}

/// What was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grown {
    /// Regular files.
    pub files: usize,
    /// Directories below the top.
    pub directories: usize,
    /// Symbolic links.
    pub symlinks: usize,
    /// The sum of all file sizes, holes included.
    pub bytes: u64,
}

impl TreeSpec {
    /// A tree with a bit of everything, of about a megabyte: made and compared in no time.
    pub fn small(seed: u64) -> TreeSpec {
        TreeSpec {
            seed,
            directories: 12,
            files: 40,
            max_file_size: 200_000,
            exact_sizes: vec![0, 1, 4096],
            sparse_sizes: vec![3 << 20],
            symlinks: 6,
            odd_names: true,
            undecodable_names: false,
            special_modes: true,
            owners: rustix::process::geteuid().is_root(),
        }
    }

    /// A tree of some hundred files with some that take many chunks: about 60 MB.
    pub fn medium(seed: u64) -> TreeSpec {
        TreeSpec {
            directories: 60,
            files: 400,
            max_file_size: 2 << 20,
            exact_sizes: vec![0, 1, 4 << 20, (4 << 20) + 1, 25_000_003],
            sparse_sizes: vec![64 << 20],
            symlinks: 30,
            ..TreeSpec::small(seed)
        }
    }

    /// Makes the tree in `top`, which is created if it does not exist and should be empty.
    pub fn grow(&self, top: &Path) -> Result<Grown> {
        fs::create_dir_all(top)?;
        let mut grower = Grower {
            spec: self,
            random: Random::new(self.seed),
            directories: vec![top.into()],
            grown: Grown::default(),
        };
        grower.grow().with_context(|| format!("grow a tree with seed {} in {}", self.seed, top.display()))?;
        Ok(grower.grown)
    }
}

/// Kinds of content, as real volumes have them.
enum Content {
    Random,
    Text,
    Zeros,
    /// The same block again and again, so that deduplication has something to find.
    Repeated,
}

const FILE_MODES: [u32; 6] = [0o644, 0o600, 0o755, 0o640, 0o444, 0o400];
const DIRECTORY_MODES: [u32; 4] = [0o755, 0o700, 0o750, 0o775];
/// Times are spread over 1980 to 2033, with nanoseconds.
const TIMES: std::ops::Range<i64> = 315_532_800..1_988_150_400;

struct Grower<'a> {
    spec: &'a TreeSpec,
    random: Random,
    directories: Vec<PathBuf>,
    grown: Grown,
}

impl Grower<'_> {
    fn grow(&mut self) -> Result<()> {
        for number in 0..self.spec.directories {
            let parent = self.random.pick(&self.directories).clone();
            let path = parent.join(format!("dir-{number:03}"));
            fs::create_dir(&path)?;
            self.grown.directories += 1;
            // A third of the directories never gets chosen as a parent of anything: they stay empty.
            if self.random.percent(67) {
                self.directories.push(path);
            } else {
                let mode = *self.random.pick(&DIRECTORY_MODES);
                self.finish(&path, mode)?;
            }
        }
        for number in 0..self.spec.files {
            let size = self.file_size();
            self.file(OsStr::new(&format!("file-{number:04}.dat")), size)?;
        }
        for size in self.spec.exact_sizes.clone() {
            self.file(OsStr::new(&format!("exact-{size}")), size)?;
        }
        for size in self.spec.sparse_sizes.clone() {
            self.sparse_file(size)?;
        }
        for name in self.special_names() {
            self.file(&name, 100)?;
        }
        for number in 0..self.spec.symlinks {
            self.symlink(number)?;
        }
        // Last and from the bottom up, since every new entry changes the time of its directory.
        let mut directories = std::mem::take(&mut self.directories);
        directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for path in directories {
            let mode = *self.random.pick(&DIRECTORY_MODES) | self.special_bits(0o3000);
            self.finish(&path, mode)?;
        }
        Ok(())
    }

    fn file_size(&mut self) -> u64 {
        let magnitudes = 64 - self.spec.max_file_size.leading_zeros() as u64;
        let magnitude = self.random.below(magnitudes + 1);
        self.random.below(1 << magnitude.min(63)).min(self.spec.max_file_size)
    }

    fn file(&mut self, name: &OsStr, size: u64) -> Result<()> {
        let path = self.random.pick(&self.directories).join(name);
        let mut file = File::create_new(&path).with_context(|| format!("create {}", path.display()))?;
        self.write_content(&mut file, size)?;
        self.added(&path, size)
    }

    fn write_content(&mut self, file: &mut File, size: u64) -> Result<()> {
        const BLOCK: usize = 64 << 10;
        const KINDS: [Content; 4] = [Content::Random, Content::Text, Content::Zeros, Content::Repeated];
        let content = self.random.pick(&KINDS);
        let mut block = self.random.bytes(BLOCK);
        let mut left = size;
        while left > 0 {
            match content {
                Content::Random => self.random.fill(&mut block),
                Content::Text => {
                    let letters = b"etaoinshrdlucmfwypvbgk    \n";
                    block.iter_mut().for_each(|byte| *byte = *self.random.pick(letters));
                }
                Content::Zeros => block.fill(0),
                Content::Repeated => {}
            }
            let len = left.min(BLOCK as u64) as usize;
            file.write_all(&block[..len])?;
            left -= len as u64;
        }
        Ok(())
    }

    /// Data in the middle and at the very end, holes elsewhere.
    fn sparse_file(&mut self, size: u64) -> Result<()> {
        let path = self.random.pick(&self.directories).join(format!("sparse-{size}"));
        let file = File::create_new(&path)?;
        file.set_len(size)?;
        let data = self.random.bytes(5000.min(size as usize / 4));
        file.write_all_at(&data, size / 3)?;
        file.write_all_at(&data, size - data.len() as u64)?;
        self.added(&path, size)
    }

    fn added(&mut self, path: &Path, size: u64) -> Result<()> {
        self.grown.files += 1;
        self.grown.bytes += size;
        let mode = *self.random.pick(&FILE_MODES) | self.special_bits(0o6000);
        self.finish(path, mode)
    }

    fn symlink(&mut self, number: usize) -> Result<()> {
        let targets = [".", "..", "no/such/entry", "/nowhere/at/all", "file-0000.dat", "a b\n\"c\""];
        let path = self.random.pick(&self.directories).join(format!("link-{number:03}"));
        symlink(self.random.pick(&targets), &path)?;
        self.grown.symlinks += 1;
        self.own(&path)?;
        self.set_time(&path)
    }

    fn special_names(&self) -> Vec<OsString> {
        let mut names: Vec<OsString> = Vec::new();
        if self.spec.odd_names {
            let odd = [
                " leading and trailing ",
                "-rf",
                "--help",
                "line\nbreak",
                "tab\there",
                "quote'\"`",
                "back\\slash",
                "star*?[x]",
                "percent%2F%s",
                "Größe",
                "e\u{301} decomposed",
                "é composed",
                "日本語",
                "🛟",
                ".hidden",
                "...",
                "trailing.",
                "CON",
                "semi;colon&|$(x)",
                "\u{7f}\u{1}control",
                "<&>\u{2028}",
            ];
            names.extend(odd.iter().map(OsString::from));
            names.push("x".repeat(255).into());
        }
        if self.spec.undecodable_names {
            names.push(OsString::from_vec(b"latin1-\xe9\xff".to_vec()));
            names.push(OsStr::from_bytes(b"half-\xf0\x9f").to_owned());
        }
        names
    }

    fn special_bits(&mut self, allowed: u32) -> u32 {
        if self.spec.special_modes && self.random.percent(10) {
            allowed & ((self.random.next_u64() as u32) & 0o7000)
        } else {
            0
        }
    }

    /// Owner before mode, because a change of owner clears the set-id bits; the time last.
    fn finish(&mut self, path: &Path, mode: u32) -> Result<()> {
        self.own(path)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        self.set_time(path)
    }

    fn own(&mut self, path: &Path) -> Result<()> {
        if self.spec.owners && self.random.percent(30) {
            let (user, group) = (1 + self.random.below(65_000) as u32, 1 + self.random.below(65_000) as u32);
            std::os::unix::fs::lchown(path, Some(user), Some(group))?;
        }
        Ok(())
    }

    fn set_time(&mut self, path: &Path) -> Result<()> {
        let seconds = TIMES.start + self.random.below((TIMES.end - TIMES.start) as u64) as i64;
        let time = Timespec { tv_sec: seconds, tv_nsec: self.random.below(1_000_000_000) as _ };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}
