//! From windows to fetches: several regions are under way at a time, as many as memory allows.

use super::compare::compare;
use super::window::{Piece, Region, regions};
use super::{Destination, PATIENCE, Ready, Run, Work};
use crate::Result;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use tokio::task::JoinSet;

/// Takes windows until there are no more.
pub(super) fn launch<D: Destination>(
    run: &Run<'_, D>,
    windows: &Receiver<Vec<Piece<D>>>,
    ready: &Sender<Ready>,
) -> Result<()> {
    // Dropping it ends what is still under way.
    let mut fetches = JoinSet::new();
    loop {
        let window = match windows.recv_timeout(PATIENCE) {
            Ok(window) => window,
            Err(RecvTimeoutError::Timeout) if !run.is_over() => continue,
            Err(_) => break,
        };
        let Some(window) = compare(run, window, ready) else { break };
        let (here, stored): (Vec<_>, Vec<_>) =
            window.into_iter().partition(|piece| piece.location.in_memory().is_some());
        if !here.is_empty() {
            let _ = ready.send((run.put(Work::Here(here)), None));
        }
        for mut region in regions(stored, run.room.limit) {
            let Some(memory) = run.room.take(region.len() + region.opened, || run.is_over()) else {
                return Ok(());
            };
            region.memory = memory;
            start(run, region, &mut fetches, ready.clone());
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
    fetches: &mut JoinSet<()>,
    ready: Sender<Ready>,
) {
    let store = run.objects.contents().store().clone();
    let (pack, range) = (region.pack.clone(), region.range.clone());
    run.reads.fetch_add(1, Ordering::Relaxed);
    run.bytes.fetch_add(region.len(), Ordering::Relaxed);
    let number = run.put(Work::Region(region));
    let fetch = async move {
        let fetched = store.get_range(&pack, range).await;
        let _ = ready.send((number, Some(fetched)));
    };
    fetches.spawn_on(fetch, &run.objects.runtime);
}
