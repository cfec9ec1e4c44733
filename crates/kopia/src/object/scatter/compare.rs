//! Finding out which pieces are where they should be already, so that they need not be read.

use super::window::Piece;
use super::{Destination, PATIENCE, Ready, Run, Work};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// A worker compares about so many bytes at a time.
const BATCH: u64 = 4 << 20;

/// Takes out of `window` what its destination has already, with the help of the workers; `None` if the call is over.
pub(super) fn compare<D: Destination>(
    run: &Run<'_, D>,
    window: Vec<Piece<D>>,
    ready: &Sender<Ready>,
) -> Option<Vec<Piece<D>>> {
    // What the object layer compressed is named by the hash of its compressed bytes.
    let is_comparable = |piece: &Piece<D>| piece.object.compare && !piece.compressed;
    if !window.iter().any(is_comparable) {
        return Some(window);
    }
    let (comparable, mut missing): (Vec<_>, Vec<_>) = window.into_iter().partition(is_comparable);
    let (answer_out, answers) = channel();
    let mut batch = Vec::new();
    let mut bytes = 0;
    let send = |batch: &mut Vec<Piece<D>>| {
        let work = Work::Compare(std::mem::take(batch), answer_out.clone());
        let _ = ready.send((run.put(work), None));
    };
    for piece in comparable {
        bytes += piece.length.unwrap_or(0);
        batch.push(piece);
        if bytes >= BATCH {
            bytes = 0;
            send(&mut batch);
        }
    }
    if !batch.is_empty() {
        send(&mut batch);
    }
    drop(answer_out);
    loop {
        match answers.recv_timeout(PATIENCE) {
            Ok(different) => missing.extend(different),
            Err(RecvTimeoutError::Timeout) if !run.is_over() => {}
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => return Some(missing),
        }
    }
}

/// Compares pieces; returns those that differ.
pub(super) fn different<D: Destination>(
    run: &Run<'_, D>,
    pieces: Vec<Piece<D>>,
    buffer: &mut Vec<u8>,
) -> Vec<Piece<D>> {
    let mut different = Vec::new();
    for piece in pieces {
        if run.is_over() {
            break;
        }
        if !piece.object.is_wanted() {
            piece.object.release();
        } else if is_there(run, &piece, buffer) {
            piece.object.heard(piece.object.to.kept(piece.offset, buffer.len() as u64));
            piece.object.release();
        } else {
            different.push(piece);
        }
    }
    different
}

/// Whether the bytes at the place of `piece` have the hash that is the name of its content.
fn is_there<D: Destination>(run: &Run<'_, D>, piece: &Piece<D>, buffer: &mut Vec<u8>) -> bool {
    let entry = &piece.location.entry;
    if piece.length != Some(entry.original_length.into()) {
        return false;
    }
    buffer.resize(entry.original_length as usize, 0);
    piece.object.to.read_back(piece.offset, buffer)
        && run.objects.contents().sealer().hash(buffer).as_slice() == entry.id.hash()
}
