//! What a listing of the index blobs means: the write epoch, the watermark, and which blobs are in force.

use super::names::{self, Epoch, IndexKind};
use super::sets::{RangeCheckpoint, complete_sets, longest_chain};
use crate::format::EpochParameters;
use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobMetadata};
use std::collections::{BTreeMap, BTreeSet};

/// So many markers may be lost in a row; index blobs of an epoch beyond that have a name that nobody gave them.
const MAX_LOST_MARKERS: Epoch = 100;

/// The index as one listing of the `x` blobs shows it.
#[derive(Debug, Clone, Default)]
pub struct EpochState {
    /// The epoch that clients write into now.
    pub write_epoch: Epoch,
    /// Contents deleted at or before this time (unix seconds) are gone.
    pub watermark: Option<i64>,
    /// The chain of range checkpoints in force, starting at epoch 0.
    pub chain: Vec<RangeCheckpoint>,
    /// One complete compacted set for each epoch that has any.
    pub singles: BTreeMap<Epoch, Vec<BlobMetadata>>,
    /// What clients wrote, by epoch.
    pub uncompacted: BTreeMap<Epoch, Vec<BlobMetadata>>,
    /// The epoch markers.
    pub markers: BTreeMap<Epoch, BlobMetadata>,
    /// The deletion watermarks.
    pub watermarks: BTreeMap<i64, BlobMetadata>,
    /// All that was listed, in order of the names.
    listing: Vec<BlobMetadata>,
}

impl EpochState {
    /// Reads a complete listing of the prefix [`names::ALL`], in any order. Names that mean nothing are passed over.
    pub fn from_listing(mut blobs: Vec<BlobMetadata>) -> Self {
        blobs.sort_by(|a, b| a.id.cmp(&b.id));
        let mut state = EpochState::default();
        let mut singles: BTreeMap<Epoch, Vec<BlobMetadata>> = BTreeMap::new();
        let mut ranges: BTreeMap<(Epoch, Epoch), Vec<BlobMetadata>> = BTreeMap::new();
        for blob in blobs.iter().cloned() {
            let name = blob.id.as_str();
            if name.starts_with(names::WATERMARK) {
                if let Some(time) = names::watermark_of(name) {
                    state.watermarks.insert(time, blob);
                }
            } else if name.starts_with(names::RANGE) {
                if let Some(range) = names::range_of(name) {
                    ranges.entry(range).or_default().push(blob);
                }
            } else if let Some(epoch) = names::epoch_of(name) {
                match name.get(..2) {
                    Some(names::MARKER) => drop(state.markers.insert(epoch, blob)),
                    Some(names::SINGLE) => singles.entry(epoch).or_default().push(blob),
                    // The underscore is part of the prefix: `xn1` would otherwise hold the blobs of epoch 10.
                    Some(names::UNCOMPACTED) if name.contains('_') => {
                        state.uncompacted.entry(epoch).or_default().push(blob);
                    }
                    _ => {}
                }
            }
        }
        let first_complete = |blobs: Vec<BlobMetadata>| complete_sets(&blobs).into_iter().next();
        let complete = |(epoch, blobs)| first_complete(blobs).map(|set| (epoch, set));
        state.singles = singles.into_iter().filter_map(complete).collect();
        let ranges: Vec<_> = ranges
            .into_iter()
            .filter_map(|((first, last), blobs)| {
                first_complete(blobs).map(|blobs| RangeCheckpoint { first, last, blobs })
            })
            .collect();
        state.chain = longest_chain(&ranges);
        state.write_epoch = state.current_epoch();
        state.watermark = state.watermarks.keys().next_back().copied();
        state.listing = blobs;
        state
    }

    /// The epoch of the last marker, or a later one that the other blobs give away: a marker that got lost must not
    /// make what was written since invisible, least of all to those who decide what to delete.
    fn current_epoch(&self) -> Epoch {
        let marked = self.markers.keys().next_back().copied().unwrap_or(0);
        // Only epochs that nobody writes into any more are compacted: those up to two before the current one.
        let chained = self.chain.last().map_or(0, |range| range.last + 2);
        let compacted = self.singles.keys().next_back().map_or(0, |epoch| epoch + 2);
        let known = marked.max(chained).max(compacted).min(names::MAX_EPOCH);
        let written = self.uncompacted.range(..=known.saturating_add(MAX_LOST_MARKERS));
        written.map(|(epoch, _)| *epoch).next_back().unwrap_or(0).max(known)
    }

    /// The current epoch, if its marker is missing: other clients may know of an earlier one only.
    pub fn missing_marker(&self) -> Option<Epoch> {
        let is_missing = self.write_epoch > 0 && !self.markers.contains_key(&self.write_epoch);
        is_missing.then_some(self.write_epoch)
    }

    /// Epochs before the current one of which no index blob is there. An epoch ends because something was written
    /// into it, so what was there is lost.
    pub fn holes(&self) -> Vec<Hole> {
        let mut holes = Vec::new();
        let mut next = self.first_unchained();
        let singles = self.singles.keys().filter(|epoch| self.is_settled(**epoch));
        let covered: BTreeSet<Epoch> = self.uncompacted.keys().chain(singles).copied().collect();
        for epoch in covered.range(next..self.write_epoch).copied().chain([self.write_epoch]) {
            if epoch > next {
                holes.push(Hole { first: next, last: epoch - 1 });
            }
            next = next.max(epoch + 1);
        }
        holes
    }

    /// The state as it would be without the blobs in `left_out`, which cannot be used: what they had replaced is in
    /// force again, as far as it is still there.
    #[must_use]
    pub fn without(&self, left_out: &BTreeSet<BlobId>) -> Self {
        let usable = |blob: &&BlobMetadata| !left_out.contains(&blob.id);
        EpochState::from_listing(self.listing.iter().filter(usable).cloned().collect())
    }

    /// All blobs that hold index entries, in force or not.
    pub fn indexes(&self) -> impl Iterator<Item = &BlobMetadata> {
        let kinds = [names::UNCOMPACTED, names::SINGLE, names::RANGE];
        self.listing.iter().filter(move |blob| kinds.iter().any(|kind| blob.id.as_str().starts_with(kind)))
    }

    /// The first epoch that no range checkpoint in force covers.
    pub fn first_unchained(&self) -> Epoch {
        self.chain.last().map_or(0, |range| range.last + 1)
    }

    /// Whether nobody can still be writing into `epoch`.
    pub fn is_settled(&self, epoch: Epoch) -> bool {
        self.write_epoch.checked_sub(2).is_some_and(|last| epoch <= last)
    }

    /// The blobs whose merge is the index.
    pub fn active(&self) -> Vec<BlobMetadata> {
        let ranges = self.chain.iter().flat_map(|range| &range.blobs);
        let epochs = self.active_between(self.first_unchained(), self.write_epoch + 1);
        ranges.cloned().chain(epochs).collect()
    }

    /// The blobs in force of the epochs `first..=last`, range checkpoints aside.
    pub fn active_between(&self, first: Epoch, last: Epoch) -> Vec<BlobMetadata> {
        if first > last {
            return Vec::new();
        }
        let compacted = |epoch: &Epoch| self.is_settled(*epoch) && self.singles.contains_key(epoch);
        let singles = self.singles.range(first..=last).filter(|(epoch, _)| compacted(epoch));
        let plain = self.uncompacted.range(first..=last).filter(|(epoch, _)| !compacted(epoch));
        singles.chain(plain).flat_map(|(_, blobs)| blobs.iter().cloned()).collect()
    }

    /// Whether enough was written into the write epoch, over a long enough time, to start the next one.
    /// Times are the storage's, never a clock's.
    pub fn should_advance(&self, parameters: &EpochParameters) -> bool {
        let Some(blobs) = self.uncompacted.get(&self.write_epoch) else { return false };
        let oldest = blobs.iter().map(|blob| blob.modified).min();
        let newest = blobs.iter().map(|blob| blob.modified).max();
        let (Some(oldest), Some(newest)) = (oldest, newest) else { return false };
        let total: u64 = blobs.iter().map(|blob| blob.size).sum();
        let long_enough = nanos_between(oldest, newest) >= i128::from(parameters.min_epoch_duration);
        let count = u64::try_from(parameters.epoch_advance_on_count_threshold).unwrap_or(u64::MAX);
        let size = u64::try_from(parameters.epoch_advance_on_total_size_bytes_threshold).unwrap_or(u64::MAX);
        long_enough && (blobs.len() as u64 >= count || total >= size)
    }

    /// The settled epoch that is to be compacted next, and its blobs.
    ///
    /// Always the lowest one without a compacted set, so that the sequence has no gaps: older releases of Kopia
    /// fail on those.
    pub fn next_to_compact(&self) -> Option<(Epoch, Vec<BlobMetadata>)> {
        let epoch = self.oldest_uncompacted();
        let blobs = self.uncompacted.get(&epoch).filter(|_| self.is_settled(epoch))?;
        Some((epoch, blobs.clone()))
    }

    /// The lowest epoch above the chain of ranges that has no compacted set.
    pub fn oldest_uncompacted(&self) -> Epoch {
        let start = self.first_unchained();
        let compacted = self.singles.range(start..).map(|(epoch, _)| *epoch);
        compacted
            .zip(start..)
            .take_while(|(have, want)| have == want)
            .last()
            .map_or(start, |(have, _)| have + 1)
    }

    /// Whether a compacted set or a range holds what was written into `epoch`.
    pub fn is_compacted(&self, epoch: Epoch) -> bool {
        epoch < self.first_unchained() || self.singles.contains_key(&epoch)
    }

    /// The epochs that are to be merged into the next range checkpoint, and their blobs.
    pub fn next_range(&self, parameters: &EpochParameters) -> Option<(Epoch, Epoch, Vec<BlobMetadata>)> {
        let first = self.first_unchained();
        let last = self.write_epoch.checked_sub(2)?;
        let wanted = u64::try_from(parameters.full_checkpoint_frequency).ok()?;
        if last.checked_sub(first)? < wanted {
            return None;
        }
        let blobs = self.active_between(first, last);
        (!blobs.is_empty()).then_some((first, last, blobs))
    }

    /// Blobs that nothing needs any more and whose replacements are older than the safety margin. Judged by the
    /// newest timestamp that the storage gave to recently written index blobs; without one, nothing is deleted.
    pub fn superseded(&self, parameters: &EpochParameters) -> Superseded {
        let recent = self.uncompacted.range(self.write_epoch.saturating_sub(1)..=self.write_epoch + 1);
        let Some(now) = recent.flat_map(|(_, blobs)| blobs.iter().map(|blob| blob.modified)).max() else {
            return Superseded::default();
        };
        let old = |blob: &BlobMetadata| {
            nanos_between(blob.modified, now) > i128::from(parameters.cleanup_safety_margin)
        };
        let replaced = |epoch: &Epoch| self.singles.get(epoch).is_some_and(|set| set.iter().all(old));
        let ids = |blobs: &[BlobMetadata]| blobs.iter().map(|blob| blob.id.clone()).collect::<Vec<_>>();
        Superseded {
            indexes: self
                .uncompacted
                .iter()
                .filter(|(epoch, _)| self.is_settled(**epoch) && replaced(epoch))
                .flat_map(|(_, blobs)| ids(blobs))
                .collect(),
            markers: self
                .markers
                .range(..self.write_epoch.saturating_sub(1))
                .map(|(_, blob)| blob.id.clone())
                .collect(),
            watermarks: self
                .watermarks
                .iter()
                .filter(|(time, blob)| Some(**time) != self.watermark && old(blob))
                .map(|(_, blob)| blob.id.clone())
                .collect(),
        }
    }
}

/// Epochs whose index blobs are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// The first of them.
    pub first: Epoch,
    /// The last of them, included.
    pub last: Epoch,
}

impl Hole {
    /// What the names of the blobs began with.
    pub fn blobs(&self) -> String {
        match self.first == self.last {
            true => IndexKind::Single(self.first).to_string(),
            false => IndexKind::Range(self.first, self.last).to_string(),
        }
    }

    /// What is wrong.
    pub fn reason(&self) -> String {
        match self.first == self.last {
            true => format!("no index blob of epoch {} is left", self.first),
            false => format!("no index blob of epochs {} to {} is left", self.first, self.last),
        }
    }
}

/// Blobs that may be deleted, by kind: indexes go before the markers that order them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Superseded {
    /// Index blobs that compacted sets have replaced.
    pub indexes: Vec<BlobId>,
    /// Markers of epochs long past.
    pub markers: Vec<BlobId>,
    /// Watermarks that a later one has overtaken.
    pub watermarks: Vec<BlobId>,
}

fn nanos_between(earlier: Timestamp, later: Timestamp) -> i128 {
    later.as_nanosecond() - earlier.as_nanosecond()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use jiff::ToSpan;

    fn listing(names: &[&str]) -> EpochState {
        timed(&names.iter().map(|name| (*name, 0, 1)).collect::<Vec<_>>())
    }

    fn timed(blobs: &[(&str, i64, u64)]) -> EpochState {
        let base = Timestamp::from_second(1_700_000_000).unwrap();
        EpochState::from_listing(
            blobs
                .iter()
                .map(|&(name, hours, size)| BlobMetadata {
                    id: BlobId::new(name).unwrap(),
                    size,
                    modified: base + hours.hours(),
                })
                .collect(),
        )
    }

    fn active(state: &EpochState) -> Vec<String> {
        state.active().iter().map(|blob| blob.id.to_string()).collect()
    }

    #[test]
    fn a_compaction_that_cannot_be_used_gives_way_to_what_it_replaced() {
        let state =
            listing(&["xe5", "xn3_a-s1-c1", "xr0_2_b-s2-c1", "xs3_c-s3-c1", "xs2_d-s4-c1", "xn5_e-s5-c1"]);
        assert_eq!(active(&state), ["xr0_2_b-s2-c1", "xs3_c-s3-c1", "xn5_e-s5-c1"]);
        let without = |names: &[&str]| {
            active(&state.without(&names.iter().map(|name| BlobId::new(name).unwrap()).collect()))
        };
        assert_eq!(without(&["xs3_c-s3-c1"]), ["xr0_2_b-s2-c1", "xn3_a-s1-c1", "xn5_e-s5-c1"]);
        assert_eq!(without(&["xr0_2_b-s2-c1"]), ["xs2_d-s4-c1", "xs3_c-s3-c1", "xn5_e-s5-c1"]);
        assert_eq!(state.indexes().count(), 5);
    }

    #[test]
    fn a_lost_marker_hides_nothing() {
        let state = listing(&["xn0_a-s1-c1", "xn1_b-s1-c1", "xn2_c-s1-c1", "xn5000_d-s1-c1"]);
        assert_eq!((state.write_epoch, state.watermark), (2, None));
        assert_eq!(active(&state), ["xn0_a-s1-c1", "xn1_b-s1-c1", "xn2_c-s1-c1"]);
        assert_eq!(state.missing_marker(), Some(2));
        assert_eq!(listing(&["xn0_a-s1-c1"]).missing_marker(), None);
        assert_eq!(listing(&["xe3", "xr0_4_a-s1-c1", "xs5_b-s1-c1"]).write_epoch, 7);
        assert_eq!(listing(&["xe7", "xr0_4_a-s1-c1", "xs5_b-s1-c1"]).missing_marker(), None);
    }

    #[test]
    fn epochs_without_any_index_blob_are_noticed() {
        let holes = |names: &[&str]| {
            listing(names).holes().iter().map(|hole| (hole.first, hole.last)).collect::<Vec<_>>()
        };
        assert_eq!(holes(&[]), []);
        assert_eq!(holes(&["xe1", "xn0_a-s1-c1"]), []);
        assert_eq!(holes(&["xe1"]), [(0, 0)]);
        assert_eq!(holes(&["xe9", "xr0_3_a-s1-c1", "xs5_b-s1-c1", "xn8_a-s1-c1"]), [(4, 4), (6, 7)]);
        assert_eq!(
            holes(&["xe9", "xr0_3_a-s1-c2", "xs5_b-s1-c1"]),
            [(0, 4), (6, 8)],
            "a set without one of its two"
        );
        assert_eq!(holes(&["xe4503599627370496"]), [(0, 4_503_599_627_370_495)]);
        assert_eq!(Hole { first: 3, last: 4 }.blobs(), "xr3_4_");
    }

    #[test]
    fn compacted_sets_count_only_if_they_are_complete() {
        let state = listing(&[
            "xe1",
            "xe2",
            "xe4",
            "xn0_a-s1-c1",
            "xs0_m-s9-c1",
            "xn1_b-s1-c1",
            "xs1_n-s8-c2",
            "xn2_c-s1-c1",
            "xs2_o-s7-c1",
            "xn3_d-s1-c1",
            "xn4_e-s1-c1",
            "xw7",
            "xw1700",
            "xwx",
        ]);
        assert_eq!((state.write_epoch, state.watermark), (4, Some(1700)));
        let expected = ["xs0_m-s9-c1", "xs2_o-s7-c1", "xn1_b-s1-c1", "xn3_d-s1-c1", "xn4_e-s1-c1"];
        assert_eq!(active(&state), expected);
    }

    #[test]
    fn a_range_checkpoint_replaces_the_epochs_below() {
        let state = listing(&[
            "xe5",
            "xr0_2_h-s1-c2",
            "xr0_2_i-s1-c2",
            "xr0_9_j-s2-c2",
            "xs1_x-s3-c1",
            "xs3_y-s4-c1",
            "xn2_k-s1-c1",
            "xn3_l-s1-c1",
            "xn5_m-s1-c1",
        ]);
        assert_eq!(active(&state), ["xr0_2_h-s1-c2", "xr0_2_i-s1-c2", "xs3_y-s4-c1", "xn5_m-s1-c1"]);
    }

    #[test]
    fn the_largest_epoch_number_neither_overflows_nor_loops() {
        let state =
            listing(&["xe4503599627370496", "xn4503599627370496_a-s1-c1", "xr0_4503599627370496_q-s1-c1"]);
        assert_eq!(state.write_epoch, 1 << 52);
        assert_eq!(active(&state), ["xr0_4503599627370496_q-s1-c1"]);
        assert_eq!(state.next_to_compact(), None);
    }

    #[test]
    fn the_oldest_epoch_without_a_set_is_compacted_first() {
        let oldest = |names: &[&str]| listing(names).oldest_uncompacted();
        assert_eq!(oldest(&[]), 0);
        assert_eq!(oldest(&["xs0_a"]), 1);
        assert_eq!(oldest(&["xs1_a"]), 0);
        assert_eq!(oldest(&["xs0_a", "xs2_a"]), 1);
        assert_eq!(oldest(&["xs0_a", "xs1_a", "xs4_a", "xs5_a"]), 2);
        assert_eq!(oldest(&["xr0_2_a"]), 3);
        assert_eq!(oldest(&["xr0_2_a", "xs1_a", "xs2_a"]), 3);
        let state = listing(&["xe3", "xn1_a-s1-c1", "xn0_b-s1-c1", "xs0_c"]);
        assert_eq!(state.next_to_compact().map(|(epoch, blobs)| (epoch, blobs.len())), Some((1, 1)));
        assert_eq!(listing(&["xe2", "xn1_a-s1-c1", "xs0_c"]).next_to_compact(), None);
    }

    #[test]
    fn an_epoch_advances_when_old_and_full_enough() {
        let parameters = EpochParameters::default();
        let many: Vec<String> = (0..20).map(|i| format!("xn0_{i:02}-s1-c1")).collect();
        let blobs = |hours: i64, size: u64, count: usize| {
            let names = many.iter().take(count).enumerate();
            let blobs: Vec<_> =
                names.map(|(i, n)| (n.as_str(), if i == 0 { 0 } else { hours }, size)).collect();
            timed(&blobs).should_advance(&parameters)
        };
        assert!(blobs(24, 1, 20));
        assert!(!blobs(23, 1, 20));
        assert!(!blobs(24, 1, 19));
        assert!(blobs(24, 5 << 20, 2));
        assert!(!listing(&["xe4"]).should_advance(&parameters));
    }

    #[test]
    fn ranges_are_due_after_the_checkpoint_frequency() {
        let parameters = EpochParameters::default();
        assert_eq!(listing(&["xe8", "xn0_a-s1-c1"]).next_range(&parameters), None);
        let state = listing(&["xe9", "xn0_a-s1-c1", "xn8_b-s1-c1", "xs3_c-s1-c1"]);
        let (first, last, blobs) = state.next_range(&parameters).unwrap();
        assert_eq!((first, last, blobs.len()), (0, 7, 2));
    }

    #[test]
    fn clean_up_waits_for_the_margin_and_keeps_what_is_in_force() {
        let parameters = EpochParameters::default();
        let state = timed(&[
            ("xe1", 0, 1),
            ("xe2", 0, 1),
            ("xe3", 0, 1),
            ("xn0_a-s1-c1", 0, 1),
            ("xs0_b-s2-c1", 5, 1),
            ("xn1_c-s1-c1", 0, 1),
            ("xs1_d-s2-c1", 7, 1),
            ("xn3_e-s1-c1", 10, 1),
            ("xw1", 0, 1),
            ("xw2", 0, 1),
        ]);
        let gone = state.superseded(&parameters);
        let names = |ids: &[BlobId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&gone.indexes), ["xn0_a-s1-c1"]);
        assert_eq!(names(&gone.markers), ["xe1"]);
        assert_eq!(names(&gone.watermarks), ["xw1"]);
        let quiet = timed(&[("xe3", 0, 1), ("xn0_a-s1-c1", 0, 1), ("xs0_b-s2-c1", 5, 1)]);
        assert_eq!(quiet.superseded(&parameters), Superseded::default());
    }
}
