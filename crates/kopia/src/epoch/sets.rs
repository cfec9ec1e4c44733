//! Which of several index blobs belong together, and which of several ranges reach furthest.

use super::names::{Epoch, Suffix};
use lifeboat_blobs::BlobMetadata;
use std::collections::{BTreeMap, HashMap};

/// The complete sets among `blobs`, in the order in which the last member of each appears.
///
/// A set is complete when as many blobs share its `-s<set>` as its `-c<count>` says. A name that does not follow
/// the pattern is a complete set of its own.
pub fn complete_sets(blobs: &[BlobMetadata]) -> Vec<Vec<BlobMetadata>> {
    let mut growing: HashMap<String, Vec<BlobMetadata>> = HashMap::new();
    let mut complete = Vec::new();
    for blob in blobs {
        let Some(suffix) = Suffix::of_name(blob.id.as_str()) else {
            complete.push(vec![blob.clone()]);
            continue;
        };
        let members = growing.entry(suffix.set().to_owned()).or_default();
        members.push(blob.clone());
        if members.len() == suffix.count() {
            complete.push(std::mem::take(members));
        }
    }
    complete
}

/// Index blobs that together hold all epochs from `first` to `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeCheckpoint {
    /// The first epoch.
    pub first: Epoch,
    /// The last epoch, included.
    pub last: Epoch,
    /// The blobs of one complete set.
    pub blobs: Vec<BlobMetadata>,
}

/// The longest chain of ranges that starts at epoch 0 and has no gap; among equally long ones the shortest list.
pub fn longest_chain(ranges: &[RangeCheckpoint]) -> Vec<RangeCheckpoint> {
    // For each epoch that a chain can end at: how many ranges it takes, and the last of them. Ranges are visited in
    // order of their first epoch, so every chain that a range could extend is known when it is reached.
    let mut sorted: Vec<&RangeCheckpoint> = ranges.iter().filter(|r| r.first <= r.last).collect();
    sorted.sort_by_key(|range| (range.first, range.last));
    let mut reached: BTreeMap<Epoch, (usize, &RangeCheckpoint)> = BTreeMap::new();
    for range in sorted {
        let before = match range.first.checked_sub(1) {
            None => 0,
            Some(previous) => match reached.get(&previous) {
                Some((links, _)) => *links,
                None => continue,
            },
        };
        let best = reached.entry(range.last).or_insert((before + 1, range));
        if before + 1 < best.0 {
            *best = (before + 1, range);
        }
    }
    let mut chain = Vec::new();
    let mut end = reached.keys().next_back().copied();
    while let Some((_, range)) = end.and_then(|last| reached.get(&last)) {
        chain.push((*range).clone());
        end = range.first.checked_sub(1);
    }
    chain.reverse();
    chain
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_blobs::BlobId;

    fn blob(name: &str) -> BlobMetadata {
        BlobMetadata { id: BlobId::new(name).unwrap(), size: 1, modified: jiff::Timestamp::UNIX_EPOCH }
    }

    fn sets(names: &[&str]) -> Vec<Vec<String>> {
        let blobs: Vec<_> = names.iter().map(|name| blob(name)).collect();
        let names = |set: Vec<BlobMetadata>| set.into_iter().map(|b| b.id.to_string()).collect();
        complete_sets(&blobs).into_iter().map(names).collect()
    }

    fn chain(ranges: &[(Epoch, Epoch)]) -> Vec<(Epoch, Epoch)> {
        let ranges: Vec<_> =
            ranges.iter().map(|&(first, last)| RangeCheckpoint { first, last, blobs: Vec::new() }).collect();
        longest_chain(&ranges).iter().map(|r| (r.first, r.last)).collect()
    }

    #[test]
    fn incomplete_sets_are_ignored() {
        let names = [
            "foo-s0-c2",
            "aaa-s1-c3",
            "bar-s0-c2",
            "bbb-s1-c3",
            "foo-s2-c2",
            "aaa-s3-c3",
            "bar-s2-c2",
            "bbb-s3-c3",
        ];
        assert_eq!(sets(&names), [["foo-s0-c2", "bar-s0-c2"], ["foo-s2-c2", "bar-s2-c2"]]);
    }

    #[test]
    fn a_name_without_a_set_is_complete_by_itself() {
        assert_eq!(
            sets(&["a-s0-c2", "malformed", "b-s0-c2"]),
            [vec!["malformed"], vec!["a-s0-c2", "b-s0-c2"]]
        );
    }

    #[test]
    fn chains_reach_as_far_as_they_can_with_few_links() {
        assert_eq!(chain(&[(0, 9), (10, 19), (20, 29), (50, 59)]), [(0, 9), (10, 19), (20, 29)]);
        assert_eq!(chain(&[(0, 9), (20, 29), (50, 59)]), [(0, 9)]);
        assert_eq!(chain(&[(0, 9), (0, 29), (10, 19), (30, 39)]), [(0, 29), (30, 39)]);
        assert_eq!(chain(&[(0, 9), (0, 29), (10, 59), (30, 39)]), [(0, 9), (10, 59)]);
        assert_eq!(chain(&[(1, 9)]), []);
        assert_eq!(chain(&[(0, 0), (1, 1), (0, 1)]), [(0, 1)]);
    }
}
