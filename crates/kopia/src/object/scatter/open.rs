//! From fetched regions to delivered bytes.

use super::super::layout::decode;
use super::compare::different;
use super::plan::is_outage;
use super::window::{Piece, Region};
use super::{Destination, Fetched, PATIENCE, Ready, Run, Work};
use crate::{Error, Result};
use bytes::BytesMut;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Does what is ready until there is nothing more to come.
pub(super) fn work<D: Destination>(run: &Run<'_, D>, ready: &Mutex<Receiver<Ready>>) -> Result<()> {
    let mut buffer = Vec::new();
    loop {
        let next = ready.lock().recv_timeout(PATIENCE);
        if run.is_over() {
            return Ok(());
        }
        let (number, fetched) = match next {
            Ok(ready) => ready,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let Some(work) = run.work.lock().remove(&number) else { continue };
        match (work, fetched) {
            (Work::Region(region, _room), Some(fetched)) => take(run, region, fetched)?,
            (Work::Region(..), None) => {}
            (Work::Here(pieces, _room), _) => {
                pieces.into_iter().try_for_each(|piece| fetch_and_open(run, piece))?;
            }
            (Work::Compare(pieces, answer), _) => {
                let _ = answer.send(different(run, pieces, &mut buffer));
            }
        }
    }
}

fn take<D: Destination>(run: &Run<'_, D>, region: Region<D>, fetched: Fetched) -> Result<()> {
    let Fetched { bytes, room: _room } = fetched;
    match bytes.map_err(Error::from) {
        Ok(bytes) => {
            // Nobody else has them, unless the store is in memory.
            let mut bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            open_region(run, region, &mut bytes);
            run.room.reclaim(bytes);
            Ok(())
        }
        Err(error) if is_outage(&error) => Err(error),
        // The pack is gone or short: the contents may be elsewhere by now, or some of them still here.
        Err(_) => region.pieces.into_iter().try_for_each(|piece| fetch_and_open(run, piece)),
    }
}

fn open_region<D: Destination>(run: &Run<'_, D>, region: Region<D>, bytes: &mut [u8]) {
    let sealer = run.objects.contents().sealer();
    let mut pieces = region.pieces.into_iter().peekable();
    while let Some(first) = pieces.next() {
        if run.is_over() {
            return;
        }
        let entry = first.location.entry.clone();
        let mut same = vec![first];
        while let Some(next) = pieces.next_if(|next| next.location.entry == entry) {
            same.push(next);
        }
        let from = (u64::from(entry.pack_offset) - region.range.start) as usize;
        let sealed = &mut bytes[from..from + entry.packed_length as usize];
        let opened =
            sealer.open_content_in_place(&entry.id, entry.compression, entry.original_length, sealed);
        match opened {
            Ok(data) => hand_out(&data, same),
            Err(reason) => {
                let blob = entry.pack.as_str();
                let damaged =
                    || Error::DamagedContent { id: entry.id, blob: blob.to_owned(), reason: reason.clone() };
                same.into_iter().for_each(|piece| piece.fail(damaged()));
            }
        }
    }
}

/// Delivers a content to all places.
fn hand_out<D: Destination>(data: &[u8], places: Vec<Piece<D>>) {
    let zeros = is_zero(data);
    for piece in places {
        if piece.object.is_wanted() {
            match deliver(&piece, data, zeros) {
                Ok(()) => {}
                Err(error) => piece.object.failed(error),
            }
        }
        piece.object.release();
    }
}

fn deliver<D: Destination>(piece: &Piece<D>, data: &[u8], zeros: bool) -> Result<()> {
    let object = &piece.object;
    let decoded = match piece.compressed {
        true => Cow::Owned(decode(object.id, data, piece.length)?.into()),
        false => Cow::Borrowed(data),
    };
    let length = decoded.len() as u64;
    match piece.length {
        Some(expected) if expected != length => {
            let content = piece.location.entry.id;
            let reason = format!("its part {content} has {length} bytes, its index says {expected}");
            return Err(Error::DamagedObject { id: object.id.to_string(), reason });
        }
        Some(_) => {}
        None => drop(object.length.fetch_add(length, Ordering::Relaxed)),
    }
    object.heard(match zeros && !piece.compressed {
        true => object.to.zeros(piece.offset, length),
        false => object.to.deliver(piece.offset, &decoded),
    });
    Ok(())
}

/// Reads a single content, wherever it is now.
fn fetch_and_open<D: Destination>(run: &Run<'_, D>, piece: Piece<D>) -> Result<()> {
    if run.is_over() {
        return Ok(());
    }
    let contents = run.objects.contents();
    // Others before it may have made the index load again.
    let location = contents.resolve(&piece.location.entry.id);
    let fetched = match location.map(|location| run.wait(contents.fetch(location))) {
        Ok(None) => return Ok(()),
        Ok(Some(fetched)) => fetched.and_then(|(location, sealed)| contents.open_raw(&location, &sealed)),
        Err(error) => Err(error),
    };
    match fetched {
        Ok(data) => hand_out(&data, vec![piece]),
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => piece.fail(error),
    }
    Ok(())
}

/// Whether all bytes are zero; data that is not shows it at once.
fn is_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.split_at(data.len() / 64 * 64);
    blocks.chunks_exact(64).all(|block| block == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
