//! An object as a plain reader, for parsers.

use super::ObjectReader;
use crate::Error;
use bytes::Bytes;
use std::io::Read;
use tokio::runtime::Handle;

/// An object as a plain reader, for worker threads. The error that ended it is kept: parsers only pass on its text.
pub(crate) struct ObjectText {
    reader: ObjectReader,
    runtime: Handle,
    chunk: Bytes,
    pub(crate) failed: Option<Error>,
}

impl ObjectText {
    pub(crate) fn new(reader: ObjectReader, runtime: Handle) -> Self {
        ObjectText { reader, runtime, chunk: Bytes::new(), failed: None }
    }
}

impl Read for ObjectText {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.chunk.is_empty() {
            match self.runtime.block_on(self.reader.next_chunk()) {
                Ok(chunk) => self.chunk = chunk,
                Err(error) => {
                    let text = error.to_string();
                    self.failed = Some(error);
                    return Err(std::io::Error::other(text));
                }
            }
        }
        let count = out.len().min(self.chunk.len());
        out[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}
