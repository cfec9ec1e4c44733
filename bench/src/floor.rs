//! The least that any backup program has to do, done by all processors: what nobody can be faster than on this machine.
//!
//! A backup reads everything and writes it into packs, without hashing, encrypting or looking anything up; a repeated one
//! looks at every file and reads those that changed; a restore reads the packs and writes the files. All else costs on
//! top of it.

use anyhow::{Context, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{SeekFrom, seek};
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// As large as Kopia's packs.
const PACK: usize = 20 << 20;
/// Larger files are read by several at once, in pieces of this size.
const PIECE: u64 = 4 << 20;
const INDEX: &str = "index";

/// Copies all of `source` into packs in `folder`; if it has been copied already, reads what changed since.
pub fn back_up(source: &Path, folder: &Path) -> Result<()> {
    let copied_at = folder.join(INDEX).metadata().and_then(|index| index.modified()).ok();
    let work = Work::new(Task::Folder(source.to_owned()));
    let index = in_parallel(|number| {
        let mut packer = Packer::new(source, folder, number, copied_at);
        work.each(|task| packer.take(task, &work))?;
        packer.finish()
    })?;
    if copied_at.is_none() {
        fs::write(folder.join(INDEX), index.concat()).context("write the index")?;
    }
    Ok(())
}

/// Writes what was copied to `folder` into `target`.
pub fn restore(folder: &Path, target: &Path) -> Result<()> {
    let index = fs::read_to_string(folder.join(INDEX)).context("read the index")?;
    let entries = index.lines().map(Entry::parse).collect::<Result<Vec<_>>>()?;
    let packs: Vec<&[Entry<'_>]> = entries.chunk_by(|a, b| a.pack == b.pack).collect();
    let next = Mutex::new(packs.into_iter());
    in_parallel(|_| {
        let mut made = PathBuf::new();
        while let Some(entries) = { next.lock().next() } {
            let pack = fs::read(folder.join(entries[0].pack)).context("read a pack")?;
            entries.iter().try_for_each(|entry| entry.write(&pack, target, &mut made))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn in_parallel<T: Send>(run: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let count = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|result| result.map_err(|_| anyhow::anyhow!("a thread panicked"))?).collect()
    })
}

enum Task {
    Folder(PathBuf),
    Piece(Arc<(PathBuf, File, u64)>, u64),
}

/// What is left to do, and how many may still add to it.
struct Work {
    left: Mutex<(Vec<Task>, usize)>,
    changed: Condvar,
}

impl Work {
    fn new(first: Task) -> Work {
        Work { left: Mutex::new((vec![first], 0)), changed: Condvar::new() }
    }

    fn add(&self, task: Task) {
        self.left.lock().0.push(task);
        self.changed.notify_one();
    }

    fn each(&self, mut run: impl FnMut(Task) -> Result<()>) -> Result<()> {
        loop {
            let task = {
                let mut left = self.left.lock();
                while left.0.is_empty() && left.1 > 0 {
                    self.changed.wait(&mut left);
                }
                let Some(task) = left.0.pop() else { return Ok(()) };
                left.1 += 1;
                task
            };
            let result = run(task);
            self.left.lock().1 -= 1;
            self.changed.notify_all();
            result?;
        }
    }
}

/// One thread's packs.
struct Packer<'a> {
    source: &'a Path,
    folder: &'a Path,
    number: usize,
    count: usize,
    pack: Vec<u8>,
    used: usize,
    index: String,
    copied_at: Option<SystemTime>,
}

impl<'a> Packer<'a> {
    fn new(source: &'a Path, folder: &'a Path, number: usize, copied_at: Option<SystemTime>) -> Self {
        let pack = vec![0; PACK + PIECE as usize];
        Packer { source, folder, number, count: 0, pack, used: 0, index: String::new(), copied_at }
    }

    fn take(&mut self, task: Task, work: &Work) -> Result<()> {
        match task {
            Task::Piece(file, at) => self.copy(&file.0, &file.1, file.2, at),
            Task::Folder(folder) => {
                for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
                    let entry = entry?;
                    let about = entry.metadata()?;
                    if about.is_dir() {
                        work.add(Task::Folder(entry.path()));
                    } else if self.copied_at.is_none_or(|then| about.modified().is_ok_and(|at| at > then)) {
                        self.take_file(entry.path(), about.len(), work)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn take_file(&mut self, path: PathBuf, length: u64, work: &Work) -> Result<()> {
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        if length <= PIECE {
            return self.copy(&path, &file, length, 0);
        }
        let mut at = 0;
        let file = Arc::new((path, file, length));
        while let Ok(data) = seek(&file.1, SeekFrom::Data(at)) {
            let start = data - data % PIECE;
            work.add(Task::Piece(file.clone(), start));
            at = start + PIECE;
        }
        Ok(())
    }

    fn copy(&mut self, path: &Path, file: &File, length: u64, at: u64) -> Result<()> {
        let count = (length - at).min(PIECE) as usize;
        let room = &mut self.pack[self.used..][..count];
        file.read_exact_at(room, at).with_context(|| format!("read {}", path.display()))?;
        if self.copied_at.is_some() {
            return Ok(());
        }
        let (pack, used) = (self.name(), self.used);
        let path = path.strip_prefix(self.source)?.display();
        writeln!(self.index, "{pack}\t{used}\t{count}\t{at}\t{length}\t{path}")?;
        self.used += count;
        if self.used >= PACK { self.write_pack() } else { Ok(()) }
    }

    fn name(&self) -> String {
        format!("{}-{}", self.number, self.count)
    }

    fn write_pack(&mut self) -> Result<()> {
        fs::write(self.folder.join(self.name()), &self.pack[..self.used]).context("write a pack")?;
        self.count += 1;
        self.used = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<String> {
        if self.used > 0 {
            self.write_pack()?;
        }
        Ok(self.index)
    }
}

/// Where a piece of a file is, and whose it is.
struct Entry<'a> {
    pack: &'a str,
    used: usize,
    count: usize,
    at: u64,
    length: u64,
    path: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let mut words = line.splitn(6, '\t');
        let mut next = || words.next().context("the index is cut off");
        Ok(Entry {
            pack: next()?,
            used: next()?.parse()?,
            count: next()?.parse()?,
            at: next()?.parse()?,
            length: next()?.parse()?,
            path: next()?,
        })
    }

    /// `made` is the folder that was made last.
    fn write(&self, pack: &[u8], target: &Path, made: &mut PathBuf) -> Result<()> {
        let path = target.join(self.path);
        let folder = path.parent().context("the index names no file")?;
        if folder != made {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
            folder.clone_into(made);
        }
        let file = File::options().write(true).create(true).truncate(false).open(&path)?;
        if self.length > PIECE {
            file.set_len(self.length)?;
        }
        let data = pack.get(self.used..self.used + self.count).context("a pack is cut off")?;
        file.write_all_at(data, self.at).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::Dataset;
    use crate::digest;

    #[test]
    fn what_is_copied_comes_back() -> Result<()> {
        let sets = [
            Dataset::LargeFile { mebibytes: 61 },
            Dataset::SmallFiles { count: 500 },
            Dataset::SparseImage { mebibytes: 300, data: 9 },
        ];
        for set in sets {
            let folder = tempfile::tempdir()?;
            let (source, packs, target) =
                (folder.path().join("source"), folder.path().join("packs"), folder.path().join("target"));
            set.grow(&source)?;
            fs::create_dir(&packs)?;
            back_up(&source, &packs)?;
            let copied = fs::read_dir(&packs)?.count();
            set.change(&source, 0)?;
            back_up(&source, &packs)?;
            assert_eq!(fs::read_dir(&packs)?.count(), copied, "a repeated one only reads");
            restore(&packs, &target)?;
            let restored = digest::of_tree(&target)?;
            assert_ne!(digest::of_tree(&source)?, restored);
            fs::remove_dir_all(&source)?;
            set.grow(&source)?;
            assert_eq!(digest::of_tree(&source)?, restored);
        }
        Ok(())
    }
}
