//! The tasks `full-rewrite-contents` and `quick-rewrite-contents`: what is left in short packs is gathered in full
//! ones. The old packs are then named by nothing, and are deleted later.
//!
//! Packs are emptied one after the other, the shortest first. Whatever stops it, a limit or a crash, leaves packs that
//! are empty and packs that are as they were, and the next run goes on with those.

use super::copy::{Copy, copy};
use super::report::Amount;
use super::stats::RewriteContentsStats;
use super::{Done, Result, Session};
use crate::content::{ContentRange, ContentStore};
use crate::pack::PackKind;
use crate::sort::{Merge, Sorted, Sorter};
use crate::worker::blocking;
use jiff::Timestamp;
use lifeboat_index::{ContentId, Deleted, IndexEntry, PackName, PackUsage, Snapshot};
use std::collections::HashMap;
use std::sync::Arc;

/// A pack is short if what the index names in it is less than so many percent of the largest pack.
const SHORT_PERCENT: u64 = 60;
/// So many contents are rewritten at a time.
const WINDOW: usize = 10_000;
/// So many may wait for being published: until then they are in memory, and lost in a crash.
const MAX_UNPUBLISHED: u64 = 100_000;
/// So many packs may wait for it.
const MAX_UNPUBLISHED_PACKS: u64 = 16;

/// A pack that is to be emptied.
struct ShortPack {
    name: PackName,
    kind: PackKind,
    bytes: u64,
}

/// The packs whose contents are to be gathered, the shortest first, up to `limit` bytes of each kind. One pack
/// alone has nobody to share a new one with.
fn choose(mut short: Vec<ShortPack>, limit: u64) -> Vec<PackName> {
    short.sort_by(|a, b| (a.bytes, &a.name).cmp(&(b.bytes, &b.name)));
    let mut chosen = Vec::new();
    for kind in PackKind::ALL {
        let mut total = 0u64;
        let of_kind = short.iter().filter(|pack| pack.kind == kind);
        let within: Vec<_> = of_kind
            .take_while(|pack| {
                total = total.saturating_add(pack.bytes);
                total <= limit
            })
            .collect();
        if within.len() >= 2 {
            chosen.extend(within.into_iter().map(|pack| pack.name.clone()));
        }
    }
    chosen
}

/// The short packs of the wanted kinds. Those that hold nothing but deletions are left alone: they go by themselves
/// when these are dropped.
fn short_packs(index: &Snapshot, kinds: &[PackKind], threshold: u64) -> crate::Result<Vec<ShortPack>> {
    let mut short = Vec::new();
    for usage in index.pack_usage()? {
        let PackUsage { pack, live_contents, live_bytes, deleted_bytes, .. } = usage?;
        let kind = kinds.iter().copied().find(|kind| pack.as_str().starts_with(kind.blob_prefix()));
        let bytes = live_bytes + deleted_bytes;
        if let Some(kind) = kind.filter(|_| live_contents > 0 && bytes < threshold) {
            short.push(ShortPack { name: pack, kind, bytes });
        }
    }
    Ok(short)
}

/// Finds the contents of these packs and puts them in order of the packs, and of their place in them.
fn in_order(
    packs: &[PackName],
    contents: impl Iterator<Item = crate::Result<IndexEntry>>,
    mut sorter: Sorter,
) -> crate::Result<Sorted> {
    let ranks: HashMap<&PackName, u32> = packs.iter().zip(0..).collect();
    for entry in contents {
        let entry = entry?;
        if let Some(rank) = ranks.get(&entry.pack) {
            let place = (u64::from(*rank) << 32) | u64::from(entry.pack_offset);
            sorter.push(&[&place.to_be_bytes(), entry.id.key()].concat(), &[])?;
        }
    }
    sorter.finish()
}

/// Contents that are rewritten together.
#[derive(Debug, Default)]
struct Window {
    entries: Vec<IndexEntry>,
    /// Those that have to stay for now.
    young: Amount,
    is_last: bool,
}

impl Window {
    /// The next contents of `packs`; what has left its pack meanwhile is passed over.
    fn take(
        places: &mut Merge,
        packs: &[PackName],
        contents: &ContentStore,
        old: i64,
    ) -> crate::Result<Window> {
        let mut window = Window::default();
        while window.entries.len() < WINDOW {
            if !places.advance()? {
                window.is_last = true;
                break;
            }
            let (place, id) = places.key().split_first_chunk().unwrap_or((&[0; 8], &[]));
            let pack = packs.get((u64::from_be_bytes(*place) >> 32) as usize);
            let id = ContentId::from_key(id).map_err(|e| crate::Error::Worker(e.to_string()))?;
            match contents.lookup(&id)?.filter(|entry| Some(&entry.pack) == pack) {
                Some(entry) if entry.timestamp_seconds <= old => window.entries.push(entry),
                Some(entry) => window.young.add(entry.packed_length.into()),
                None => {}
            }
        }
        Ok(window)
    }
}

/// Whether it is time to publish what was written. That closes the open pack, so there has to be a full one's worth of
/// bytes first, however many contents these are: else small contents would never get out of short packs.
fn is_due(unpublished: &Amount, max_pack_size: u64) -> bool {
    let packs = unpublished.bytes / max_pack_size.max(1);
    packs >= MAX_UNPUBLISHED_PACKS || (packs >= 1 && unpublished.count >= MAX_UNPUBLISHED)
}

/// What a rewrite has done.
#[derive(Debug, Default)]
struct Rewritten {
    wanted: Amount,
    written: Amount,
    retained: Amount,
    /// Whether time was up before everything was done.
    stopped: bool,
}

impl Session {
    /// Rewrites the contents of short packs of these kinds; `None` if there is nothing to do.
    pub(super) async fn rewrite(&mut self, kinds: &'static [PackKind]) -> Result<Option<Done>> {
        let contents = self.repository.contents();
        let threshold = self.format.repository().max_pack_size() * SHORT_PERCENT / 100;
        let (index, limit) = (contents.snapshot(), self.options.rewrite_bytes);
        let chosen =
            blocking(move || Ok::<_, crate::Error>(choose(short_packs(&index, kinds, threshold)?, limit)));
        let chosen = chosen.await??;
        let packs = chosen.len();
        if packs == 0 {
            return Ok(None);
        }
        let sorter = self.scratch.sorter(0);
        let all = contents.iterate(ContentRange::All, Deleted::Include);
        let chosen = Arc::new(chosen);
        let packs_in_order = chosen.clone();
        let places = blocking(move || in_order(&packs_in_order, all, sorter)).await??;
        let done = self.rewrite_all(chosen, places.read()?).await?;
        let Rewritten { wanted, written, retained, stopped } = done;
        if wanted.count == 0 {
            return Ok(None);
        }
        let stats = RewriteContentsStats {
            to_rewrite_content_count: wanted.count,
            to_rewrite_content_size: wanted.bytes,
            rewritten_content_count: written.count,
            rewritten_content_size: written.bytes,
            retained_content_count: retained.count,
            retained_content_size: retained.bytes,
        };
        let rest = if stopped { "; time was up, the rest is left to the next run" } else { "" };
        let summary = format!("short packs: {packs}, contents moved to new packs: {written}{rest}");
        Done::with(&stats, summary).map(Some)
    }

    async fn rewrite_all(&self, packs: Arc<Vec<PackName>>, mut places: Merge) -> Result<Rewritten> {
        let begun = self.now();
        let old = begun
            .saturating_sub(self.safety.min_content_age_for_rewrite)
            .unwrap_or(Timestamp::MIN)
            .as_second();
        let is_late = |now: Timestamp| {
            self.options.rewrite_time.is_some_and(|limit| now.duration_since(begun) >= limit)
        };
        let max_pack_size = self.format.repository().max_pack_size();
        let (mut done, mut unpublished) = (Rewritten::default(), Amount::default());
        loop {
            let (contents, packs) = (self.repository.contents().clone(), packs.clone());
            let take = move || -> crate::Result<_> {
                let window = Window::take(&mut places, &packs, &contents, old)?;
                Ok((places, window))
            };
            let (same, window) = blocking(take).await??;
            places = same;
            done.retained.count += window.young.count;
            done.retained.bytes += window.young.bytes;
            window.entries.iter().for_each(|entry| done.wanted.add(entry.packed_length.into()));
            if !self.options.dry_run {
                let copied =
                    copy(&self.repository, window.entries, Copy::AsItIs, self.options.parallel).await?;
                done.written.count += copied.written.count;
                done.written.bytes += copied.written.bytes;
                unpublished.count += copied.written.count;
                unpublished.bytes += copied.written.bytes;
                for (content, reason) in copied.damaged {
                    tracing::warn!(%content, reason, "a content cannot be read and stays in its pack");
                }
            }
            done.stopped = !window.is_last && is_late(self.now());
            let is_last = window.is_last || done.stopped;
            if !self.options.dry_run && (is_last || is_due(&unpublished, max_pack_size)) {
                self.repository.flush().await?;
                unpublished = Amount::default();
            }
            if is_last {
                return Ok(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(name: &str, bytes: u64) -> ShortPack {
        let kind = if name.starts_with('p') { PackKind::Data } else { PackKind::Metadata };
        ShortPack { name: name.into(), kind, bytes }
    }

    fn chosen(packs: &[(&str, u64)], limit: u64) -> Vec<String> {
        let chosen = choose(packs.iter().map(|(name, bytes)| pack(name, *bytes)).collect(), limit);
        let mut names: Vec<String> = chosen.iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn short_packs_are_gathered_if_there_are_two_of_a_kind() {
        assert_eq!(chosen(&[("p1", 5), ("q1", 5), ("q2", 5)], u64::MAX), ["q1", "q2"]);
        assert_eq!(chosen(&[("p1", 5), ("p2", 5), ("p3", 7), ("q1", 1)], u64::MAX), ["p1", "p2", "p3"]);
        assert!(chosen(&[("p1", 5), ("q1", 5)], u64::MAX).is_empty());
    }

    #[test]
    fn what_was_gathered_is_published_in_full_packs_and_before_it_is_too_much() {
        let due = |count, bytes| is_due(&Amount { count, bytes }, 20 << 20);
        assert!(!due(MAX_UNPUBLISHED * 2, 19 << 20), "the pack would be short");
        assert!(due(MAX_UNPUBLISHED, 20 << 20));
        assert!(!due(100, 300 << 20));
        assert!(due(100, 320 << 20), "so much is not put at stake");
    }

    #[test]
    fn the_shortest_packs_come_first_when_there_is_a_limit() {
        assert_eq!(chosen(&[("p1", 50), ("p2", 5), ("p3", 7), ("p4", 30)], 45), ["p2", "p3", "p4"]);
        assert!(chosen(&[("p1", 50), ("p2", 5)], 45).is_empty());
    }
}
