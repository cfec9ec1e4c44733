//! The names of index blobs under epochs: writing them, and reading the numbers out of them.

use crate::session::SessionId;
use std::fmt;

/// Prefix of everything the epoch rules own; one listing of it shows the whole index.
pub const ALL: &str = "x";
/// Prefix of the markers that start an epoch.
pub const MARKER: &str = "xe";
/// Prefix of index blobs as clients write them.
pub const UNCOMPACTED: &str = "xn";
/// Prefix of range checkpoints.
pub const RANGE: &str = "xr";
/// Prefix of compacted single epochs.
pub const SINGLE: &str = "xs";
/// Prefix of deletion watermarks.
pub const WATERMARK: &str = "xw";
/// What an epoch marker holds.
pub const MARKER_CONTENT: &[u8] = b"epoch-marker";
/// What a deletion watermark holds.
pub const WATERMARK_CONTENT: &[u8] = b"deletion-watermark";

/// The number of an epoch. Numbers that a hostile listing could use to overflow arithmetic are never parsed.
pub type Epoch = u64;

/// Larger numbers are not read: Kopia counts in signed 64 bit, and one epoch lasts a day.
pub(super) const MAX_EPOCH: Epoch = 1 << 52;

/// The name of the marker that starts `epoch`.
pub fn marker(epoch: Epoch) -> String {
    format!("{MARKER}{epoch}")
}

/// The name of the watermark that drops what was deleted up to `unix_seconds`.
pub fn watermark(unix_seconds: i64) -> String {
    format!("{WATERMARK}{unix_seconds}")
}

/// What stands before the hash in the name of an index blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// Written by a client into this epoch.
    Uncompacted(Epoch),
    /// All of one settled epoch.
    Single(Epoch),
    /// All epochs from the first to the last, both included.
    Range(Epoch, Epoch),
}

impl IndexKind {
    /// The whole name, given the hash of the plaintext in hex and the part after it.
    pub fn name(self, hash_hex: &str, suffix: &Suffix) -> String {
        format!("{self}{hash_hex}-{suffix}")
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexKind::Uncompacted(epoch) => write!(f, "{UNCOMPACTED}{epoch}_"),
            IndexKind::Single(epoch) => write!(f, "{SINGLE}{epoch}_"),
            IndexKind::Range(first, last) => write!(f, "{RANGE}{first}_{last}_"),
        }
    }
}

/// What stands after the hash: which blobs belong together, and how many they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suffix {
    set: String,
    count: usize,
}

impl Suffix {
    /// For the `count` shards of one index that a session writes.
    pub fn of_session(session: &SessionId, count: usize) -> Self {
        Suffix { set: session.to_string(), count }
    }

    /// For the `count` shards of a compacted index; `unique` must never have been used before.
    pub fn of_set(unique: [u8; 8], count: usize) -> Self {
        Suffix { set: format!("s{}", hex::encode(unique)), count }
    }

    /// Reads `…-s<set>-c<count>`; `None` if the name does not follow the pattern.
    pub fn of_name(name: &str) -> Option<Suffix> {
        let mut parts = name.rsplit('-');
        let count = parts.next()?.strip_prefix('c')?.parse().ok()?;
        let set = parts.next()?;
        (set.starts_with('s') && parts.next().is_some() && count > 0)
            .then(|| Suffix { set: set.to_owned(), count })
    }

    /// The part that all blobs of the set share.
    pub fn set(&self) -> &str {
        &self.set
    }

    /// How many blobs the set has.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-c{}", self.set, self.count)
    }
}

/// The epoch that a name speaks of: the digits after the leading letters, up to `_` or the end.
pub fn epoch_of(name: &str) -> Option<Epoch> {
    number(name.split('_').next()?.trim_start_matches(|c: char| !c.is_ascii_digit()))
}

/// The first and last epoch that the name of a range checkpoint speaks of.
pub fn range_of(name: &str) -> Option<(Epoch, Epoch)> {
    let mut parts = name.strip_prefix(RANGE)?.splitn(3, '_');
    let (first, last) = (number(parts.next()?)?, number(parts.next()?)?);
    (parts.next().is_some() && first <= last).then_some((first, last))
}

/// The time in unix seconds that the name of a watermark speaks of.
pub fn watermark_of(name: &str) -> Option<i64> {
    let digits = name.strip_prefix(WATERMARK)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn number(digits: &str) -> Option<Epoch> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|&epoch| epoch <= MAX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_numbers_are_read_as_kopia_reads_them() {
        assert_eq!(epoch_of("x7"), Some(7));
        assert_eq!(epoch_of("x01234_1235"), Some(1234));
        assert_eq!(epoch_of("abc1234_xxxx-sadfasd"), Some(1234));
        for invalid in ["_", "a_", "x123x_", "", "x99999999999999999999", "xe9007199254740993"] {
            assert_eq!(epoch_of(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn names_are_written_and_read_back() {
        let suffix = Suffix::of_set([1, 2, 3, 4, 5, 6, 7, 0xff], 2);
        let name = IndexKind::Range(3, 17).name("00ff", &suffix);
        assert_eq!(name, "xr3_17_00ff-s01020304050607ff-c2");
        assert_eq!(range_of(&name), Some((3, 17)));
        assert_eq!(Suffix::of_name(&name), Some(suffix.clone()));
        assert_eq!(IndexKind::Single(4).name("ab", &suffix), "xs4_ab-s01020304050607ff-c2");
        assert_eq!(marker(12), "xe12");
        assert_eq!(watermark_of(&watermark(1_700_000_000)), Some(1_700_000_000));
        for invalid in ["xr1", "xr1_", "xr5_4_ab", "xra_1_b", "xs1_2_ab", "xr1_2"] {
            assert_eq!(range_of(invalid), None, "{invalid:?}");
        }
        for invalid in ["xw", "xw-5", "xw1x", "xe5", "xw99999999999999999999"] {
            assert_eq!(watermark_of(invalid), None, "{invalid:?}");
        }
        for invalid in ["s1-c2", "a-s1-c0", "a-s1-cx", "a-b-c1", "malformed", ""] {
            assert_eq!(Suffix::of_name(invalid), None, "{invalid:?}");
        }
    }
}
