//! From windows to fetches: as many regions arrive at a time as memory allows, and some more are asked for.

use super::compare::compare;
use super::window::{Region, Window, regions};
use super::{Destination, Fetched, PATIENCE, Ready, Run, Work};
use crate::Result;
use lifeboat_blobs::arrival::with_admission;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// So many regions are asked for beyond those that arrive: a far storage would have nothing to send otherwise.
const AHEAD: usize = 16;

/// Takes windows until there are no more.
pub(super) fn launch<D: Destination>(
    run: &Run<'_, D>,
    windows: &Receiver<Window<D>>,
    ready: &Sender<Ready>,
) -> Result<()> {
    // Dropping it ends what is still under way.
    let mut fetches = JoinSet::new();
    let ahead = Arc::new(Semaphore::new(AHEAD));
    loop {
        let Window { pieces, mut room } = match windows.recv_timeout(PATIENCE) {
            Ok(window) => window,
            Err(RecvTimeoutError::Timeout) if !run.is_over() => continue,
            Err(_) => break,
        };
        let Some(pieces) = compare(run, pieces, ready) else { break };
        let (here, stored): (Vec<_>, Vec<_>) =
            pieces.into_iter().partition(|piece| piece.location.in_memory().is_some());
        if !here.is_empty() {
            let room = room.split(here.len());
            let _ = ready.send((run.put(Work::Here(here, room)), None));
        }
        for region in regions(stored, run.room.region()) {
            let Some(turn) = run.wait(ahead.clone().acquire_owned()) else { return Ok(()) };
            let room = room.split(region.pieces.len());
            start(run, region, [turn.ok(), room], &mut fetches, ready.clone());
            while fetches.try_join_next().is_some() {}
        }
    }
    // The workers end when the last fetch has told them its outcome.
    while !fetches.is_empty() && !run.is_over() {
        run.objects.runtime.block_on(async {
            let _ = tokio::time::timeout(PATIENCE, fetches.join_next()).await;
        });
    }
    Ok(())
}

fn start<D: Destination>(
    run: &Run<'_, D>,
    region: Region<D>,
    [turn, room]: [Option<OwnedSemaphorePermit>; 2],
    fetches: &mut JoinSet<()>,
    ready: Sender<Ready>,
) {
    let store = run.objects.contents().store().clone();
    let (pack, range) = (region.pack.clone(), region.range.clone());
    run.reads.fetch_add(1, Ordering::Relaxed);
    run.bytes.fetch_add(region.len(), Ordering::Relaxed);
    let arrival = run.room.arrival(region.len(), region.opened, turn);
    let number = run.put(Work::Region(region, room));
    let fetch = async move {
        let bytes = with_admission(arrival.clone(), store.get_range(&pack, range)).await;
        let _ = ready.send((number, Some(Fetched { bytes, room: arrival.into_room() })));
    };
    fetches.spawn_on(fetch, &run.objects.runtime);
}
