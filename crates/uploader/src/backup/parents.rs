//! Earlier snapshots of the same source: what has not changed since is taken over from them.
//!
//! A parent's listing is read along with the names in the directory, in the same order, and never kept.

use jiff::{SignedDuration, Timestamp};
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, EntryType, SnapshotManifest};
use lifeboat_repository::{Id, ObjectReader, Repository};
use std::cmp::Ordering;
use tracing::warn;

/// How far the clock of another machine that changed a file may be behind that of the one that backed it up.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);
/// How far the time that our own kernel gives a change may be behind its clock: it counts in ticks of a few
/// milliseconds.
const TICKS: SignedDuration = SignedDuration::from_secs(1);

/// A directory of an earlier snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParentDir {
    /// Its listing.
    pub(super) object: String,
    /// When the snapshot was begun; `None` if it was taken without looking for what an entry has beyond Kopia's fields.
    pub(super) recorded: Option<Timestamp>,
}

/// The roots of earlier snapshots, without repetitions.
pub(super) fn roots(snapshots: &[SnapshotManifest]) -> Vec<(ParentDir, &DirEntry)> {
    let mut roots: Vec<(ParentDir, &DirEntry)> = Vec::new();
    for snapshot in snapshots {
        let Some(root) = &snapshot.root_entry else { continue };
        let extras = root.extras.as_ref().filter(|extras| extras.recorded);
        let recorded = extras.map(|extras| extras.begun.unwrap_or(snapshot.start_time));
        let is_new = roots.iter().all(|(known, _)| known.object != root.object);
        if root.entry_type == EntryType::Directory && is_new {
            roots.push((ParentDir { object: root.object.clone(), recorded }, root));
        }
    }
    roots
}

/// Until when what a parent says about extras holds for whatever did not change since; see [`ParentListing::open`].
pub(super) fn extras_until(recorded: Option<Timestamp>, own_clock: bool) -> Option<Timestamp> {
    let behind = if own_clock { TICKS } else { CLOCK_SKEW };
    recorded.and_then(|begun| begun.checked_sub(behind).ok())
}

/// The entries of a parent's listing, one after another.
pub(super) struct ParentListing {
    /// That of the [`ParentDir`].
    pub(super) recorded: Option<Timestamp>,
    /// What an entry has beyond Kopia's fields is known, and still true, if nothing about it changed since then.
    pub(super) extras_until: Option<Timestamp>,
    /// `None` when it is at its end, or not readable from here on.
    entries: Option<DirEntries<Box<dyn ObjectReader>>>,
    head: Head,
    /// Whether entries were passed over because nothing asked for them.
    passed_over: bool,
}

/// The entry that is next.
#[derive(Debug, Default)]
struct Head {
    loaded: bool,
    name: Vec<u8>,
    is_dir: bool,
    json: Vec<u8>,
}

impl ParentListing {
    /// Opens a listing. One that cannot be read is as good as none: the files are read again. `own_clock` says whether
    /// it is our own kernel that notes when a file changes.
    pub(super) fn open(repository: &dyn Repository, parent: &ParentDir, own_clock: bool) -> Option<Self> {
        match repository.open_object(&Id::new(parent.object.clone())) {
            Ok(reader) => Some(ParentListing {
                recorded: parent.recorded,
                extras_until: extras_until(parent.recorded, own_clock),
                entries: Some(DirEntries::with_length(parent.object.clone(), reader.length(), reader)),
                head: Head::default(),
                passed_over: false,
            }),
            Err(error) => {
                warn!(object = parent.object, %error, "a directory of an earlier snapshot cannot be read; all below is read again");
                None
            }
        }
    }

    /// Appends the JSON of the entry `name` to `out`; says whether there is one. Names must be asked for in the order
    /// of a listing.
    pub(super) fn find(&mut self, is_dir: bool, name: &[u8], out: &mut Vec<u8>) -> bool {
        while self.load() {
            let order = is_dir.cmp(&self.head.is_dir).then_with(|| (*self.head.name).cmp(name));
            match order {
                Ordering::Greater => return false,
                Ordering::Equal => {
                    self.head.loaded = false;
                    out.extend_from_slice(&self.head.json);
                    return true;
                }
                Ordering::Less => {
                    self.head.loaded = false;
                    self.passed_over = true;
                }
            }
        }
        false
    }

    /// Whether every entry was asked for.
    pub(super) fn is_used_up(&mut self) -> bool {
        let has_more = self.load();
        !has_more && !self.passed_over
    }

    /// Makes sure that the next entry is known, if there is one.
    fn load(&mut self) -> bool {
        while !self.head.loaded {
            let Some(entries) = &mut self.entries else { return false };
            match entries.next_raw() {
                Ok(Some(raw)) => {
                    // An entry that is not understood cannot be asked for.
                    let Some((name, is_dir)) = raw.head() else {
                        self.passed_over = true;
                        continue;
                    };
                    self.head.name.clear();
                    self.head.name.extend_from_slice(&name);
                    self.head.is_dir = is_dir;
                    self.head.json.clear();
                    self.head.json.extend_from_slice(raw.bytes());
                    self.head.loaded = true;
                }
                Ok(None) => self.entries = None,
                Err(error) => {
                    warn!(%error, "a directory of an earlier snapshot is damaged; what it lists from there on is read again");
                    self.passed_over = true;
                    self.entries = None;
                }
            }
        }
        true
    }
}

impl std::fmt::Debug for ParentListing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParentListing").field("next", &self.head).finish_non_exhaustive()
    }
}
