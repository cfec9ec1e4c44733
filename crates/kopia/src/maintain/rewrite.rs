//! The tasks `full-rewrite-contents` and `quick-rewrite-contents`: what is left in short packs is gathered in full
//! ones. The old packs are then named by nothing, and are deleted later.

use super::copy::{Copy, copy};
use super::mark::blocking;
use super::report::Amount;
use super::stats::RewriteContentsStats;
use super::{Done, Result, Session};
use crate::content::ContentRange;
use crate::pack::PackKind;
use jiff::Timestamp;
use lifeboat_index::{Deleted, IndexEntry, PackName, PackUsage, Snapshot};
use std::collections::HashSet;

/// A pack is short if what the index names in it is less than so many percent of the largest pack.
const SHORT_PERCENT: u64 = 60;
/// So many contents are rewritten at a time.
const WINDOW: usize = 10_000;
/// After so many they are published.
const FLUSH_EVERY: u64 = 100_000;

/// A pack that is to be emptied.
struct ShortPack {
    name: PackName,
    kind: PackKind,
    bytes: u64,
}

/// The packs whose contents are to be gathered, the shortest first, up to `limit` bytes of each kind. One pack
/// alone has nobody to share a new one with.
fn choose(mut short: Vec<ShortPack>, limit: u64) -> HashSet<PackName> {
    short.sort_by(|a, b| (a.bytes, &a.name).cmp(&(b.bytes, &b.name)));
    let mut chosen = HashSet::new();
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
        let now = self.repository.environment().clock.now();
        let old =
            now.saturating_sub(self.safety.min_content_age_for_rewrite).unwrap_or(Timestamp::MIN).as_second();
        let entries = contents
            .iterate(ContentRange::All, Deleted::Include)
            .filter(move |entry| entry.as_ref().map_or(true, |entry| chosen.contains(&entry.pack)));
        let stats = self.rewrite_all(Box::new(entries), old).await?;
        if stats.to_rewrite_content_count == 0 {
            return Ok(None);
        }
        let rewritten = Amount { count: stats.rewritten_content_count, bytes: stats.rewritten_content_size };
        let summary = format!("short packs: {packs}, contents moved to new packs: {rewritten}");
        Done::with(&stats, summary).map(Some)
    }

    async fn rewrite_all(&self, mut entries: Entries, old: i64) -> Result<RewriteContentsStats> {
        let (mut wanted, mut written, mut retained) =
            (Amount::default(), Amount::default(), Amount::default());
        let mut unpublished = 0;
        loop {
            let take = move || -> crate::Result<_> {
                let (mut window, mut young) = (Vec::new(), Amount::default());
                while window.len() < WINDOW {
                    let Some(entry) = entries.next().transpose()? else { break };
                    match entry.timestamp_seconds <= old {
                        true => window.push(entry),
                        false => young.add(entry.packed_length.into()),
                    }
                }
                Ok((entries, window, young))
            };
            let (same, window, young) = blocking(take).await??;
            entries = same;
            retained.count += young.count;
            retained.bytes += young.bytes;
            let is_last = window.len() < WINDOW;
            window.iter().for_each(|entry| wanted.add(entry.packed_length.into()));
            if !self.options.dry_run {
                let copied = copy(&self.repository, window, Copy::AsItIs, self.options.parallel).await?;
                written.count += copied.written.count;
                written.bytes += copied.written.bytes;
                unpublished += copied.written.count;
                for (content, reason) in copied.damaged {
                    tracing::warn!(%content, reason, "a content cannot be read and stays in its pack");
                }
                if is_last || unpublished >= FLUSH_EVERY {
                    self.repository.flush().await?;
                    unpublished = 0;
                }
            }
            if is_last {
                return Ok(RewriteContentsStats {
                    to_rewrite_content_count: wanted.count,
                    to_rewrite_content_size: wanted.bytes,
                    rewritten_content_count: written.count,
                    rewritten_content_size: written.bytes,
                    retained_content_count: retained.count,
                    retained_content_size: retained.bytes,
                });
            }
        }
    }
}

type Entries = Box<dyn Iterator<Item = crate::Result<IndexEntry>> + Send>;

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
    fn the_shortest_packs_come_first_when_there_is_a_limit() {
        assert_eq!(chosen(&[("p1", 50), ("p2", 5), ("p3", 7), ("p4", 30)], 45), ["p2", "p3", "p4"]);
        assert!(chosen(&[("p1", 50), ("p2", 5)], 45).is_empty());
    }
}
