//! Regions of one object for engines that only know how to write an object in order.

use crate::{Error, ErrorKind, Id, ObjectWriter, RegionWriter, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Puts regions in order and hands them to an [`ObjectWriter`].
pub(crate) struct InOrder {
    state: Mutex<State>,
}

struct State {
    /// `None` once the object is complete.
    writer: Option<Box<dyn ObjectWriter>>,
    next: u64,
    /// Where the next region begins.
    position: u64,
    /// Regions that arrived before their turn.
    early: BTreeMap<u64, Region>,
}

enum Region {
    Data(Bytes),
    Zeros(u64),
}

impl InOrder {
    pub(crate) fn new(writer: Box<dyn ObjectWriter>) -> Self {
        let state = State { writer: Some(writer), next: 0, position: 0, early: BTreeMap::new() };
        InOrder { state: Mutex::new(state) }
    }

    fn add(&self, number: u64, region: Region) -> Result<()> {
        let mut state = self.state.lock();
        if number < state.next || state.early.contains_key(&number) {
            let text = format!("region {number} of an object was submitted twice");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        state.early.insert(number, region);
        state.write_early()
    }
}

impl State {
    fn writer(&mut self) -> Result<&mut Box<dyn ObjectWriter>> {
        let complete = || Error::new(ErrorKind::InvalidInput, "the object is complete already");
        self.writer.as_mut().ok_or_else(complete)
    }

    fn write_early(&mut self) -> Result<()> {
        while let Some(region) = self.early.remove(&self.next) {
            self.next += 1;
            match region {
                Region::Data(bytes) => {
                    self.position += bytes.len() as u64;
                    self.writer()?.write(&bytes)?;
                }
                Region::Zeros(length) => {
                    self.position += length;
                    let position = self.position;
                    self.writer()?.seek(position)?;
                }
            }
        }
        Ok(())
    }
}

impl RegionWriter for InOrder {
    fn context(&self) -> usize {
        0
    }

    fn most_held(&self) -> u64 {
        0
    }

    fn submit(&self, number: u64, _preceding: &[u8], region: Bytes) -> Result<()> {
        self.add(number, Region::Data(region))
    }

    fn submit_zeros(&self, number: u64, length: u64) -> Result<()> {
        self.add(number, Region::Zeros(length))
    }

    fn work(&self) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Result<Option<Id>> {
        self.state.lock().writer()?.checkpoint()
    }

    fn result(&self) -> Result<Id> {
        let mut state = self.state.lock();
        if !state.early.is_empty() {
            let text = format!("region {} of an object is missing", state.next);
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        state.writer()?;
        match state.writer.take() {
            Some(writer) => writer.result(),
            None => Err(Error::new(ErrorKind::InvalidInput, "the object is complete already")),
        }
    }
}
