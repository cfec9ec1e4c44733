//! Memory-mapped, read-only files: the one place with `unsafe` code.
//!
//! Mapping a file is sound only if nobody changes its bytes while they are borrowed. The files mapped here are ours:
//! segments of the catalogue are written under a temporary name with mode 0600, never changed after the rename, and
//! replaced by renaming another file over them, which leaves a mapped one as it is; index plaintexts come from the
//! process that asks for the catalogue and are not written to any more. Whoever runs under the same user and
//! overwrites them in place breaks that promise, as they could by writing to our memory. Cutting a mapped file short
//! ends the process with SIGBUS; that, too, can only be done by someone with our rights, and no check before the
//! access could prevent it.

#![allow(unsafe_code)]

use memmap2::{Advice, Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ops::Range;

/// The bytes of a file.
#[derive(Debug)]
pub(crate) struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the whole file; it may be closed afterwards.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the file is not changed while it is mapped; see the module's documentation.
        unsafe { Mmap::map(file) }.map(MappedFile)
    }

    /// Says that accesses are scattered, so that each brings in one page and not its neighbourhood.
    pub(crate) fn expect_scattered_access(&self) {
        // Advice that is not taken costs speed only.
        let _ = self.0.advise(Advice::Random);
    }

    /// Starts reading what a scan needs next.
    pub(crate) fn read_ahead(&self, range: Range<usize>) {
        let end = range.end.min(self.0.len());
        if range.start < end {
            let _ = self.0.advise_range(Advice::WillNeed, range.start, end - range.start);
        }
    }

    /// Gives back the memory of what a scan is done with.
    pub(crate) fn release(&self, range: Range<usize>) {
        let end = range.end.min(self.0.len());
        if range.start < end {
            // SAFETY: the mapping is read-only and backed by an unchanging file, so that pages dropped here come back
            // with the same bytes when they are touched again, also through slices that are borrowed right now.
            let _ = unsafe {
                self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, end - range.start)
            };
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
