//! Regions of one object for engines that only know how to write an object in order.

use crate::{Error, ErrorKind, Id, ObjectWriter, Pieces, RegionWriter, Result};
use lifeboat_budget::Buffer;
use parking_lot::Mutex;

/// Hands regions on to an [`ObjectWriter`] as soon as it is their turn: when they are cut.
pub(crate) struct InOrder {
    state: Mutex<State>,
}

struct State {
    /// `None` once the object is complete.
    writer: Option<Box<dyn ObjectWriter>>,
    /// Where the next region begins.
    position: u64,
    /// Whether the last region was seen.
    is_cut: bool,
}

impl InOrder {
    pub(crate) fn new(writer: Box<dyn ObjectWriter>) -> Self {
        InOrder { state: Mutex::new(State { writer: Some(writer), position: 0, is_cut: false }) }
    }
}

impl State {
    /// The writer, for `length` more bytes.
    fn advance(&mut self, length: u64) -> Result<&mut Box<dyn ObjectWriter>> {
        let complete = || Error::new(ErrorKind::InvalidInput, "something follows the end of an object");
        self.position += length;
        self.writer.as_mut().filter(|_| !self.is_cut).ok_or_else(complete)
    }
}

impl RegionWriter for InOrder {
    fn longest_piece(&self) -> usize {
        1
    }

    fn cut(&self, region: &[u8], is_end: bool) -> Result<Pieces> {
        let mut state = self.state.lock();
        state.advance(region.len() as u64)?.write(region)?;
        state.is_cut = is_end;
        Ok(Pieces::new(region.len() as u64, ()))
    }

    fn cut_zeros(&self, length: u64) -> Result<Pieces> {
        let mut state = self.state.lock();
        let position = state.position + length;
        state.advance(length)?.seek(position)?;
        Ok(Pieces::new(length, ()))
    }

    fn write(&self, _region: Buffer, _pieces: &Pieces) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Result<Option<(Id, u64)>> {
        match &mut self.state.lock().writer {
            Some(writer) => writer.checkpoint(),
            None => Ok(None),
        }
    }

    fn result(&self) -> Result<Id> {
        let mut state = self.state.lock();
        match state.writer.take().filter(|_| state.is_cut) {
            Some(writer) => writer.result(),
            None => Err(Error::new(ErrorKind::InvalidInput, "the end of an object is missing")),
        }
    }
}
