//! From objects to windows of pieces.

use super::super::indirect::{self, Entry};
use super::super::layout::MAX_DEPTH;
use super::super::{ObjectId, ObjectReader};
use super::window::{Piece, Window};
use super::{Destination, Object, Room, Run, Wanted};
use crate::content::ContentLocation;
use crate::{Error, Result};
use bytes::{Buf, Bytes};
use lifeboat_index::ContentId;
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

/// A window ends when it has all pieces that there is room for, or when its contents have so many bytes: much more than a
/// pack, and enough to keep everybody busy while the next one is planned.
const WINDOW_BYTES: u64 = 256 << 20;
/// The first windows are shorter, so that reading starts early.
const FIRST_WINDOW_BYTES: u64 = 16 << 20;

/// Turns objects into windows.
pub(super) struct Planner<'a, D: Destination> {
    run: &'a Run<'a, D>,
    out: SyncSender<Window<D>>,
    window: Option<Window<D>>,
    bytes: u64,
    limit: u64,
    /// Whether the index was loaded again because something was not in it. Once is enough: what a snapshot needs was
    /// there before the snapshot was.
    refreshed: bool,
}

impl<'a, D: Destination> Planner<'a, D> {
    pub(super) fn new(run: &'a Run<'a, D>, out: SyncSender<Window<D>>) -> Self {
        Planner { run, out, window: None, bytes: 0, limit: FIRST_WINDOW_BYTES, refreshed: false }
    }

    /// Plans all of `wanted`, until the call is over.
    pub(super) fn plan(mut self, wanted: impl IntoIterator<Item = Wanted<D>>) -> Result<()> {
        for wanted in wanted {
            if self.run.is_over() {
                return Ok(());
            }
            let object = Object::new(wanted);
            if let Err(error) = self.add(&object, object.id, None, 0) {
                if is_outage(&error) {
                    return Err(error);
                }
                object.failed(error);
            }
            object.release();
        }
        self.hand_on();
        Ok(())
    }

    /// Adds the parts of `part`, which is all of `object` or, by an index, `expected` bytes of it.
    fn add(
        &mut self,
        object: &Arc<Object<D>>,
        part: ObjectId,
        expected: Option<u64>,
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(damaged(object, "its indexes are nested too deeply".to_owned()));
        }
        let Some(index) = part.index_object() else {
            return self.add_content(object, part, expected);
        };
        let run = self.run;
        let start = object.length.load(Ordering::Relaxed);
        let mut failure = None;
        let mut each = |entry: Entry| {
            let added = self.add(object, entry.object, Some(entry.length), depth + 1);
            added.map_err(|error| failure = Some(error)).is_ok() && !run.is_over()
        };
        let visited = if index.levels() == 0 && !index.is_compressed() {
            let content = index.content();
            let Some(json) = run.wait(run.objects.contents().read(&content)) else { return Ok(()) };
            indirect::visit_slice(&json?, &mut each)
        } else {
            // The index of a huge object is itself too large for memory.
            let Some(reader) = run.wait(run.objects.open(index)) else { return Ok(()) };
            let mut chunks = Chunks { run, reader: reader?, chunk: Bytes::new(), error: None };
            let visited = indirect::visit_reader(BufReader::new(&mut chunks), &mut each);
            match chunks.error {
                Some(error) => return Err(error),
                None => visited,
            }
        };
        match (failure, visited) {
            (Some(error), _) => return Err(error),
            (None, Err(_)) if run.is_over() => return Ok(()),
            (None, Err(reason)) => return Err(damaged(object, reason)),
            (None, Ok(())) => {}
        }
        match expected {
            Some(expected) if expected != object.length.load(Ordering::Relaxed) - start => Err(damaged(
                object,
                format!("its part {part} does not have the {expected} bytes that its index says"),
            )),
            _ => Ok(()),
        }
    }

    fn add_content(&mut self, object: &Arc<Object<D>>, part: ObjectId, expected: Option<u64>) -> Result<()> {
        let location = self.locate(&part.content())?;
        let length = match part.is_compressed() {
            true => expected,
            false => Some(expected.unwrap_or(location.entry.original_length.into())),
        };
        let offset = object.length.load(Ordering::Relaxed);
        let end = offset.checked_add(length.unwrap_or(0)).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| damaged(object, "it is too long".to_owned()))?;
        object.length.store(end, Ordering::Relaxed);
        if length == Some(0) {
            return Ok(());
        }
        let total = self.run.objects.budget.total();
        let requested = u64::from(location.entry.packed_length.max(location.entry.original_length));
        if requested > total {
            return Err(lifeboat_budget::TooLarge { requested, total }.into());
        }
        let Some(window) = self.window() else { return Ok(()) };
        object.outstanding.fetch_add(1, Ordering::Relaxed);
        let compressed = part.is_compressed();
        let bytes = u64::from(location.entry.packed_length);
        window.pieces.push(Piece { object: object.clone(), offset, length, compressed, location });
        let is_full = window.pieces.len() == self.run.room.window;
        self.bytes += bytes;
        if is_full || self.bytes >= self.limit {
            self.limit = (self.limit * 2).min(WINDOW_BYTES);
            self.hand_on();
        }
        Ok(())
    }

    /// The window that pieces go to; waits until there is room for another one. `None` if the call is over.
    fn window(&mut self) -> Option<&mut Window<D>> {
        if self.window.is_none() {
            let Room { pieces, window, .. } = &self.run.room;
            // The semaphore is never closed.
            if let Some(Ok(room)) = self.run.wait(pieces.clone().acquire_many_owned(*window as u32)) {
                self.window = Some(Window { pieces: Vec::new(), room });
            }
        }
        self.window.as_mut()
    }

    fn locate(&mut self, id: &ContentId) -> Result<ContentLocation> {
        let contents = self.run.objects.contents();
        match contents.resolve(id) {
            Err(Error::ContentNotFound { .. } | Error::IndexCache(_)) if !self.refreshed => {
                self.refreshed = true;
                match self.run.wait(contents.refresh()) {
                    Some(refreshed) => refreshed.and_then(|()| contents.resolve(id)),
                    None => Err(Error::ContentNotFound { id: *id }),
                }
            }
            found => found,
        }
    }

    /// Gives the window to the launcher, waiting until it has taken the one before.
    fn hand_on(&mut self) {
        self.bytes = 0;
        if let Some(window) = self.window.take() {
            // It fails only if the launcher is gone, and then everything is over.
            let _ = self.out.send(window);
        }
    }
}

fn damaged<D>(object: &Object<D>, reason: String) -> Error {
    Error::DamagedObject { id: object.id.to_string(), reason }
}

/// Whether a failure will meet every other object as well.
pub(super) fn is_outage(error: &Error) -> bool {
    use lifeboat_blobs::ErrorKind as Kind;
    match error {
        Error::Storage(error) => !matches!(
            error.kind(),
            Kind::NotFound | Kind::InvalidRange | Kind::PermissionDenied | Kind::Corrupt
        ),
        Error::IndexCache(_) | Error::LocalFile { .. } | Error::Worker(_) => true,
        _ => false,
    }
}

/// The bytes of an object, for a parser that reads them one after another.
struct Chunks<'a, D: Destination> {
    run: &'a Run<'a, D>,
    reader: ObjectReader,
    chunk: Bytes,
    error: Option<Error>,
}

impl<D: Destination> Read for Chunks<'_, D> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.chunk.is_empty() {
            match self.run.wait(self.reader.next_chunk()) {
                Some(Ok(chunk)) => self.chunk = chunk,
                None => return Err(std::io::Error::other("stopped")),
                Some(Err(error)) => {
                    let text = error.to_string();
                    self.error = Some(error);
                    return Err(std::io::Error::other(text));
                }
            }
        }
        let count = out.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}
