//! Which blocks of an image hold data, and which differ between two images.

use crate::error::{Error, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// An image file opened for reading.
pub(crate) struct Image {
    path: PathBuf,
    file: File,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Result<Image> {
        let file = File::open(path).map_err(|_| Error::Lost(path.display().to_string()))?;
        Ok(Image { path: path.to_owned(), file })
    }

    /// The first data at or after `offset`: where it starts.
    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some(start)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(Error::io("look for data in", &self.path)(error)),
        }
    }

    /// Reads a block; what lies beyond the end is zeros.
    fn read(&self, offset: u64, block: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < block.len() {
            match self.file.read_at(&mut block[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", &self.path)(error)),
            }
        }
        block[filled..].fill(0);
        Ok(())
    }
}

/// The blocks of `image` that were ever written, as runs, from the block that contains `from`.
pub(crate) fn allocated(image: &Image, block_size: u64, from: u64) -> Result<Vec<Extent>> {
    collect(&[image], block_size, from, |_| Ok(true))
}

/// The blocks in which `target` differs from `base`, as runs, from the block that contains `from`.
pub(crate) fn changed(base: &Image, target: &Image, block_size: u64, from: u64) -> Result<Vec<Extent>> {
    let length = usize::try_from(block_size).unwrap_or(usize::MAX);
    let (mut before, mut after) = (vec![0; length], vec![0; length]);
    collect(&[base, target], block_size, from, |offset| {
        base.read(offset, &mut before)?;
        target.read(offset, &mut after)?;
        Ok(before != after)
    })
}

/// Walks the blocks in which any of the images has data and gathers those that `wanted` picks.
fn collect(
    images: &[&Image],
    block_size: u64,
    from: u64,
    mut wanted: impl FnMut(u64) -> Result<bool>,
) -> Result<Vec<Extent>> {
    let mut runs: Vec<Extent> = Vec::new();
    let mut position = from - from % block_size;
    loop {
        let mut next = None;
        for image in images {
            next = next.into_iter().chain(image.next_data(position)?).min();
        }
        let Some(data) = next else { return Ok(runs) };
        let offset = data - data % block_size;
        if wanted(offset)? {
            match runs.last_mut() {
                Some(last) if last.end() == offset => last.length += block_size,
                _ => runs.push(Extent { offset, length: block_size }),
            }
        }
        position = offset + block_size;
    }
}

/// Cuts runs of whole blocks into single blocks.
pub(crate) fn split(runs: &[Extent], block_size: u64) -> impl Iterator<Item = Extent> {
    runs.iter().flat_map(move |run| {
        (run.offset..run.end())
            .step_by(usize::try_from(block_size).unwrap_or(usize::MAX))
            .map(move |offset| Extent { offset, length: block_size })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const BLOCK: u64 = 64 * 1024;

    fn image(folder: &Path, name: &str, size: u64, writes: &[(u64, u8)]) -> Image {
        let path = folder.join(name);
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        for (offset, byte) in writes {
            file.write_all_at(&[*byte; 100], *offset).unwrap();
        }
        Image::open(&path).unwrap()
    }

    fn extent(first: u64, count: u64) -> Extent {
        Extent { offset: first * BLOCK, length: count * BLOCK }
    }

    #[test]
    fn neighbouring_blocks_form_one_run_and_holes_separate_runs() {
        let folder = tempfile::tempdir().unwrap();
        let disk = image(folder.path(), "a", 10 * BLOCK, &[(5, 1), (2 * BLOCK - 1, 2), (7 * BLOCK + 9, 3)]);
        assert_eq!(allocated(&disk, BLOCK, 0).unwrap(), [extent(0, 3), extent(7, 1)]);
        assert_eq!(allocated(&disk, BLOCK, 2 * BLOCK + 1).unwrap(), [extent(2, 1), extent(7, 1)]);
        assert_eq!(allocated(&disk, BLOCK, 10 * BLOCK).unwrap(), []);
        assert_eq!(split(&[extent(0, 2), extent(7, 1)], BLOCK).count(), 3);
    }

    #[test]
    fn a_change_is_a_difference_in_bytes_whichever_image_has_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let base = image(folder.path(), "base", 4 * BLOCK, &[(0, 1), (BLOCK, 2), (2 * BLOCK, 0)]);
        let target = image(
            folder.path(),
            "target",
            8 * BLOCK,
            &[(0, 1), (3 * BLOCK, 4), (6 * BLOCK, 5), (7 * BLOCK, 0)],
        );
        // Block 0 is equal, 1 was erased, 2 and 7 are written zeros, 3 and 6 are new, 6 beyond the end of the base.
        let runs = changed(&base, &target, BLOCK, 0).unwrap();
        assert_eq!(runs, [extent(1, 1), extent(3, 1), extent(6, 1)]);
    }

    #[test]
    fn lost_content_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Image::open(&folder.path().join("gone")).err().unwrap();
        assert!(matches!(error, Error::Lost(what) if what.ends_with("gone")));
    }
}
