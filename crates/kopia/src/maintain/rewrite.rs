//! The tasks `full-rewrite-contents` and `quick-rewrite-contents`: what lives in short packs is gathered in full
//! ones. The old packs are then named by nothing, or by deletions that are dropped some day, and are deleted later.
//!
//! Packs are emptied one after the other, the shortest first. Whatever stops it, a limit or a crash, leaves packs that
//! are empty and packs that are as they were, and the next run goes on with those.

use super::copy::copy;
use super::report::Amount;
use super::stats::RewriteContentsStats;
use super::{Done, Result, Session};
use crate::pack::PackKind;
use crate::sort::{Merge, Sorter};
use crate::worker::blocking;
use jiff::Timestamp;
use lifeboat_index::{ContentId, Deleted, IdRange, IndexEntry, PackName, PackUsage, Snapshot};
use std::collections::HashMap;
use std::sync::Arc;

/// A pack is short if what the index names in it is less than so many percent of the largest pack.
const SHORT_PERCENT: u64 = 60;
/// So many contents are rewritten at a time.
const WINDOW: usize = 10_000;
/// A pack that is closed with less than so many percent would soon be a short one.
const FULL_PERCENT: u64 = 80;
/// So many may wait for being published: until then they are in memory, and lost in a crash.
const MAX_UNPUBLISHED: u64 = 100_000;
/// So many packs may wait for it.
const MAX_UNPUBLISHED_PACKS: u64 = 16;

/// A pack that is to be emptied.
pub(super) struct ShortPack {
    name: PackName,
    kind: PackKind,
    bytes: u64,
}

/// The packs whose contents are to be gathered, the shortest first, up to `limit` bytes of each kind. One pack
/// alone has nobody to share a new one with.
pub(super) fn choose(mut short: Vec<ShortPack>, limit: u64) -> Vec<PackName> {
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

/// A pack of one of the wanted kinds, if it is short. One that holds nothing but deletions is left alone: it goes by
/// itself when these are dropped.
pub(super) fn short_pack(usage: &PackUsage, kinds: &[PackKind], max_pack_size: u64) -> Option<ShortPack> {
    let PackUsage { pack, live_contents, live_bytes, deleted_bytes, .. } = usage;
    let kind = kinds.iter().copied().find(|kind| pack.as_str().starts_with(kind.blob_prefix()))?;
    let bytes = live_bytes + deleted_bytes;
    let is_short = *live_contents > 0 && bytes < max_pack_size * SHORT_PERCENT / 100;
    is_short.then(|| ShortPack { name: pack.clone(), kind, bytes })
}

fn short_packs(index: &Snapshot, kinds: &[PackKind], max_pack_size: u64) -> crate::Result<Vec<ShortPack>> {
    let mut short = Vec::new();
    for usage in index.pack_usage()? {
        short.extend(short_pack(&usage?, kinds, max_pack_size));
    }
    Ok(short)
}

/// What a record says of an entry beyond its place and its id.
const TAIL: usize = 3 * size_of::<u32>() + size_of::<i64>() + 2;

/// The living contents of some packs in order of the packs, and of their place in them. Records hold whole entries:
/// looking them up again, in this order, would read the index at random.
#[derive(Debug)]
struct Places {
    packs: Arc<[PackName]>,
    records: Merge,
}

impl Places {
    /// Finds the contents of these packs. What is deleted stays where it is: its pack goes when the deletion is dropped,
    /// whereas among living contents it would soon leave a gap.
    fn find(packs: Vec<PackName>, index: &Snapshot, mut sorter: Sorter) -> crate::Result<Places> {
        let ranks: HashMap<&PackName, u32> = packs.iter().zip(0..).collect();
        for entry in index.iter(IdRange::all(), Deleted::Skip) {
            let entry = entry?;
            if let Some(rank) = ranks.get(&entry.pack) {
                sorter.push(&place(*rank, &entry), &tail(&entry))?;
            }
        }
        Ok(Places { records: sorter.finish()?.read()?, packs: packs.into() })
    }

    fn next(&mut self) -> crate::Result<Option<IndexEntry>> {
        if !self.records.advance()? {
            return Ok(None);
        }
        let entry = decode(self.records.key(), self.records.tail(), &self.packs);
        entry.map(Some).ok_or_else(|| {
            crate::Error::Worker("a temporary file does not hold what was written to it".into())
        })
    }
}

/// What entries are sorted by.
fn place(rank: u32, entry: &IndexEntry) -> Vec<u8> {
    [&rank.to_be_bytes(), &entry.pack_offset.to_be_bytes(), entry.id.key()].concat()
}

fn tail(entry: &IndexEntry) -> [u8; TAIL] {
    let mut tail = [0; TAIL];
    let numbers = [entry.packed_length, entry.original_length, entry.compression];
    let (fields, flags) = tail.split_at_mut(TAIL - 2);
    let (fields, time) = fields.split_at_mut(size_of_val(&numbers));
    fields.as_chunks_mut().0.copy_from_slice(&numbers.map(u32::to_be_bytes));
    time.copy_from_slice(&entry.timestamp_seconds.to_be_bytes());
    flags.copy_from_slice(&[entry.format_version, entry.encryption_key_id]);
    tail
}

/// Reads what [`place`] and [`tail`] wrote.
fn decode(place: &[u8], tail: &[u8], packs: &[PackName]) -> Option<IndexEntry> {
    let (rank, rest) = place.split_first_chunk()?;
    let (offset, id) = rest.split_first_chunk()?;
    let (fields, &[format_version, encryption_key_id]) = tail.split_last_chunk()?;
    let (fields, time) = fields.split_last_chunk()?;
    let [packed_length, original_length, compression] = *fields.as_chunks().0 else { return None };
    Some(IndexEntry {
        id: ContentId::from_key(id).ok()?,
        pack: packs.get(u32::from_be_bytes(*rank) as usize)?.clone(),
        pack_offset: u32::from_be_bytes(*offset),
        packed_length: u32::from_be_bytes(packed_length),
        original_length: u32::from_be_bytes(original_length),
        timestamp_seconds: i64::from_be_bytes(*time),
        format_version,
        compression: u32::from_be_bytes(compression),
        encryption_key_id,
        deleted: false,
    })
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
    fn take(places: &mut Places, old: i64) -> crate::Result<Window> {
        let mut window = Window::default();
        while window.entries.len() < WINDOW {
            match places.next()? {
                Some(entry) if entry.timestamp_seconds <= old => window.entries.push(entry),
                Some(entry) => window.young.add(entry.packed_length.into()),
                None => {
                    window.is_last = true;
                    break;
                }
            }
        }
        Ok(window)
    }
}

/// Whether it is time to publish what was written. That closes the pack that is being filled: it has to be nearly full
/// first, however many contents these are, or it would be among the short ones of the next run and small contents would
/// never get out of those. A pack of another kind that is open, too, gets nothing more in this run and is not waited for.
fn is_due(unpublished: &Amount, open_pack: Option<u64>, max_pack_size: u64) -> bool {
    let packs = unpublished.bytes / max_pack_size.max(1);
    let is_full = open_pack.is_none_or(|bytes| bytes >= max_pack_size * FULL_PERCENT / 100);
    let is_much = unpublished.count >= MAX_UNPUBLISHED || packs >= MAX_UNPUBLISHED_PACKS / 2;
    packs >= MAX_UNPUBLISHED_PACKS || (is_much && is_full)
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
        if self.settled().is_some() {
            return Ok(None);
        }
        let contents = self.repository.contents();
        let max_pack_size = self.format.repository().max_pack_size();
        let (index, limit) = (contents.snapshot(), self.options.rewrite_bytes);
        let (view, sorter) = (index.clone(), self.scratch.sorter(TAIL));
        let find = move || -> crate::Result<_> {
            let chosen = choose(short_packs(&view, kinds, max_pack_size)?, limit);
            let packs = chosen.len();
            Ok((packs, if packs == 0 { None } else { Some(Places::find(chosen, &view, sorter)?) }))
        };
        let (packs, Some(places)) = blocking(find).await?? else { return Ok(None) };
        let done = self.rewrite_all(&index, places).await?;
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

    async fn rewrite_all(&self, index: &Snapshot, mut places: Places) -> Result<Rewritten> {
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
            let take = move || Window::take(&mut places, old).map(|window| (places, window));
            let (same, window) = blocking(take).await??;
            places = same;
            done.retained.count += window.young.count;
            done.retained.bytes += window.young.bytes;
            window.entries.iter().for_each(|entry| done.wanted.add(entry.packed_length.into()));
            let filling = window.entries.last().map(|entry| PackKind::of(entry.id.prefix()));
            if !self.options.dry_run {
                let copied = copy(&self.repository, index, window.entries, self.options.parallel).await?;
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
            let open_pack = filling.and_then(|kind| self.repository.contents().open_pack_len(kind));
            if !self.options.dry_run && (is_last || is_due(&unpublished, open_pack, max_pack_size)) {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_from_their_records() {
        let entry = |offset| IndexEntry {
            id: "k00112233".parse().unwrap(),
            pack: "q1".into(),
            pack_offset: offset,
            packed_length: 5,
            original_length: u32::MAX,
            timestamp_seconds: -1,
            format_version: 3,
            compression: 0x1234_5678,
            encryption_key_id: 7,
            deleted: false,
        };
        let packs = ["p1".into(), "q1".into()];
        for entry in [entry(0), entry(u32::MAX)] {
            assert_eq!(decode(&place(1, &entry), &tail(&entry), &packs).unwrap(), entry);
            assert_eq!(decode(&place(2, &entry), &tail(&entry), &packs), None);
        }
        assert!(place(1, &entry(1 << 20)) < place(2, &entry(0)));
        assert_eq!(decode(&[1, 2, 3], &[0; TAIL], &packs), None);
    }

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
        let due = |count, bytes, open| is_due(&Amount { count, bytes }, open, 20 << 20);
        assert!(!due(MAX_UNPUBLISHED * 2, 10 << 20, Some(10 << 20)), "the pack would be short");
        assert!(due(MAX_UNPUBLISHED, 17 << 20, Some(17 << 20)));
        assert!(!due(100, 150 << 20, None));
        assert!(due(100, 160 << 20, None));
        assert!(due(100, 320 << 20, Some(1)), "so much is not put at stake");
    }

    #[test]
    fn the_shortest_packs_come_first_when_there_is_a_limit() {
        assert_eq!(chosen(&[("p1", 50), ("p2", 5), ("p3", 7), ("p4", 30)], 45), ["p2", "p3", "p4"]);
        assert!(chosen(&[("p1", 50), ("p2", 5)], 45).is_empty());
    }
}
