//! Reading and writing at offsets, and telling zeros: what sources and targets share.

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, Result};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;

/// Fills `buffer` from `offset` on; returns how much there was before the end of the file.
pub(crate) fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The kernel reads no more ahead at a time than it would by itself, and this much for any device.
const AHEAD_AT_ONCE: u64 = 128 << 10;

/// Has the kernel read what is going to be read next, so that the disk works while the processors do. Memory that it
/// has none for is not taken, and where it cannot be done, reading takes longer: nothing else depends on it.
pub(crate) fn read_ahead(file: impl AsFd, range: Range<u64>) {
    let mut at = range.start;
    while let Some(length) = NonZeroU64::new(range.end.saturating_sub(at).min(AHEAD_AT_ONCE)) {
        if fadvise(&file, at, Some(length), Advice::WillNeed).is_err() {
            break;
        }
        at += length.get();
    }
}

/// Whether all of `buffer` could be filled from `offset` on.
pub(crate) fn fills(file: impl AsFd, buffer: &mut [u8], offset: u64) -> bool {
    let wanted = buffer.len();
    read_at(file, buffer, offset) == Ok(wanted)
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_at(file: impl AsFd, mut data: &[u8], mut offset: u64) -> Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(&file, data, offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether all bytes are zero; data that is not shows it at once.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.split_at(bytes.len() / 64 * 64);
    blocks.chunks_exact(64).all(|block| block == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
