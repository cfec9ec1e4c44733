//! Reading an object: from any place, or from the current one on with the next chunks under way.

use super::layout::{LayoutEntry, ObjectLayout, read_part};
use super::{ObjectId, Objects};
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_budget::Reservation;
use std::collections::VecDeque;
use std::io::SeekFrom;
use tokio::task::JoinHandle;

/// How many chunks are fetched ahead of a sequential reader, as far as the budget allows.
const READ_AHEAD: usize = 4;

/// Reads one object.
#[derive(Debug)]
pub struct ObjectReader {
    objects: Objects,
    layout: ObjectLayout,
    position: u64,
    /// The chunk that was read last.
    current: Option<(usize, Bytes)>,
    /// Chunks that are being fetched, in order.
    ahead: VecDeque<Fetch>,
}

#[derive(Debug)]
struct Fetch {
    place: usize,
    task: JoinHandle<Result<Bytes>>,
    memory: Reservation,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ObjectReader {
    pub(super) async fn open(objects: Objects, id: ObjectId) -> Result<Self> {
        let layout = ObjectLayout::load(&objects, id).await?;
        Ok(Self::of(objects, layout))
    }

    /// A reader of the object whose layout is known.
    pub(super) fn of(objects: Objects, layout: ObjectLayout) -> Self {
        ObjectReader { objects, layout, position: 0, current: None, ahead: VecDeque::new() }
    }

    /// The object's length.
    pub fn len(&self) -> u64 {
        self.layout.len()
    }

    /// Whether the object has no bytes.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// The object's parts.
    pub fn layout(&self) -> &ObjectLayout {
        &self.layout
    }

    /// Moves the position; beyond the end there is nothing to read.
    pub fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.position =
            position.ok_or_else(|| Error::Invalid("cannot seek before the start of an object".into()))?;
        Ok(self.position)
    }

    /// The current position.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads from the current position on, at least one byte unless it is the end or `out` is empty.
    pub async fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let Some(place) = self.layout.find(self.position).filter(|_| !out.is_empty()) else { return Ok(0) };
        let entry = self.layout.entries()[place];
        let chunk = self.chunk(place).await?;
        let from = (self.position - entry.start) as usize;
        let part = &chunk[from..];
        let count = part.len().min(out.len());
        out[..count].copy_from_slice(&part[..count]);
        self.position += count as u64;
        Ok(count)
    }

    /// The rest of the chunk at the current position, without a copy; empty at the end.
    pub async fn next_chunk(&mut self) -> Result<Bytes> {
        let Some(place) = self.layout.find(self.position) else { return Ok(Bytes::new()) };
        let entry = self.layout.entries()[place];
        let chunk = self.chunk(place).await?;
        let rest = chunk.slice((self.position - entry.start) as usize..);
        self.position = entry.start + entry.length;
        Ok(rest)
    }

    /// Reads at `offset`, as much as `out` holds or the object has from there on. Does not move the position; may
    /// be called from several tasks at once.
    pub async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        let Some(mut place) = self.layout.find(offset) else { return Ok(0) };
        while done < out.len()
            && let Some(entry) = self.layout.entries().get(place)
        {
            let chunk = match &self.current {
                Some((current, chunk)) if *current == place => chunk.clone(),
                _ => read_part(&self.objects, self.layout.id(), entry).await?,
            };
            let from = (offset + done as u64 - entry.start) as usize;
            let count = (chunk.len() - from).min(out.len() - done);
            out[done..done + count].copy_from_slice(&chunk[from..from + count]);
            done += count;
            place += 1;
        }
        Ok(done)
    }

    /// Fills `out` from `offset`; fails if the object ends before.
    pub async fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let count = self.read_at(offset, out).await?;
        match count == out.len() {
            true => Ok(()),
            false => Err(Error::DamagedObject {
                id: self.layout.id().to_string(),
                reason: format!(
                    "it ends at {} where {} bytes from {offset} on are needed",
                    self.len(),
                    out.len()
                ),
            }),
        }
    }

    /// The chunk at `place`; the following ones are started.
    async fn chunk(&mut self, place: usize) -> Result<Bytes> {
        if let Some((current, chunk)) = &self.current
            && *current == place
        {
            return Ok(chunk.clone());
        }
        // A seek leaves chunks behind that are not needed any more.
        while self.ahead.front().is_some_and(|fetch| fetch.place != place) {
            self.ahead.pop_front();
        }
        let fetched = self.ahead.pop_front();
        self.fetch_ahead(place + 1);
        let chunk = match fetched {
            Some(mut fetch) => (&mut fetch.task).await.map_err(|e| Error::Worker(e.to_string()))??,
            None => read_part(&self.objects, self.layout.id(), &self.layout.entries()[place]).await?,
        };
        self.current = Some((place, chunk.clone()));
        Ok(chunk)
    }

    fn fetch_ahead(&mut self, from: usize) {
        let mut place = self.ahead.back().map_or(from, |fetch| fetch.place + 1);
        while self.ahead.len() < READ_AHEAD
            && let Some(entry) = self.layout.entries().get(place)
        {
            // Ahead of time means: only from memory that nobody else needs. Sealed and opened bytes count.
            let Some(memory) = self.objects.budget.try_reserve(entry.length.saturating_mul(2)) else { break };
            let (objects, id, entry): (Objects, ObjectId, LayoutEntry) =
                (self.objects.clone(), self.layout.id(), *entry);
            let task = self.objects.runtime.spawn(async move { read_part(&objects, id, &entry).await });
            self.ahead.push_back(Fetch { place, task, memory });
            place += 1;
        }
    }

    /// How much memory is held for chunks that are being fetched ahead.
    pub fn memory_ahead(&self) -> u64 {
        self.ahead.iter().map(|fetch| fetch.memory.bytes()).sum()
    }
}
