//! What the kernel knows by number: the files and directories that it has asked for and not forgotten.

use lifeboat_kopia::snapshot::DirEntry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The number of the top directory, by FUSE's protocol.
pub const TOP: u64 = 1;

/// Things by their names.
pub type Folder = BTreeMap<Vec<u8>, Arc<Thing>>;

/// Something that can be seen in a mount.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // nearly all of them are entries
pub enum Thing {
    /// A directory that no snapshot has: it leads to the snapshots.
    Folder(Folder),
    /// An entry of a snapshot.
    Entry {
        /// The entry.
        entry: DirEntry,
        /// Which snapshot it is of: files of different ones are not the same, whatever their numbers were.
        snapshot: usize,
    },
}

impl Thing {
    /// Whether it has entries of its own.
    pub fn is_dir(&self) -> bool {
        match self {
            Thing::Folder(_) => true,
            Thing::Entry { entry, .. } => entry.is_dir(),
        }
    }

    /// What tells it apart from everything else: its place, or the file that has several names.
    fn key(&self, parent: u64, name: &[u8]) -> Key {
        let Thing::Entry { entry, snapshot } = self else { return Key::Place(parent, name.to_vec()) };
        match entry.extras.as_ref().and_then(|extras| extras.hard_link.as_ref()) {
            Some(link) if !entry.is_dir() => Key::File(*snapshot, link.group()),
            _ => Key::Place(parent, name.to_vec()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Place(u64, Vec<u8>),
    File(usize, (u64, u64)),
}

/// One thing that the kernel knows.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it is.
    pub thing: Arc<Thing>,
    /// The number of the directory in which it was found first.
    pub parent: u64,
}

/// All things that the kernel knows. A number is never given twice.
#[derive(Debug)]
pub struct Nodes {
    by_number: HashMap<u64, Known>,
    by_key: HashMap<Key, u64>,
    next: u64,
}

#[derive(Debug)]
struct Known {
    node: Node,
    key: Key,
    /// How often the kernel was told of it and has not forgotten it.
    told: u64,
}

impl Nodes {
    /// Only the top is known.
    pub fn new(top: Arc<Thing>) -> Nodes {
        let key = Key::Place(TOP, Vec::new());
        let known = Known { node: Node { thing: top, parent: TOP }, key: key.clone(), told: 1 };
        Nodes { by_number: HashMap::from([(TOP, known)]), by_key: HashMap::from([(key, TOP)]), next: TOP + 1 }
    }

    /// What has this number.
    pub fn get(&self, number: u64) -> Option<Node> {
        self.by_number.get(&number).map(|known| known.node.clone())
    }

    /// The number of something that the kernel is being told of.
    pub fn tell(&mut self, parent: u64, name: &[u8], thing: &Arc<Thing>) -> u64 {
        let key = thing.key(parent, name);
        let number = *self.by_key.entry(key.clone()).or_insert(self.next);
        let fresh = || Known { node: Node { thing: thing.clone(), parent }, key, told: 0 };
        self.by_number.entry(number).or_insert_with(fresh).told += 1;
        self.next = self.next.max(number + 1);
        number
    }

    /// The kernel has forgotten what it was told `times` times.
    pub fn forget(&mut self, number: u64, times: u64) {
        let Some(known) = self.by_number.get_mut(&number).filter(|_| number != TOP) else { return };
        known.told = known.told.saturating_sub(times);
        if known.told == 0
            && let Some(known) = self.by_number.remove(&number)
        {
            self.by_key.remove(&known.key);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::{Extras, HardLink};

    fn file(snapshot: usize, inode: Option<u64>) -> Arc<Thing> {
        let link = inode.map(|inode| HardLink { inode, names: 2, ..HardLink::default() });
        let extras = Box::new(Extras { hard_link: link, ..Extras::default() });
        Arc::new(Thing::Entry { entry: DirEntry { extras: Some(extras), ..DirEntry::default() }, snapshot })
    }

    #[test]
    fn a_number_lasts_until_it_is_forgotten_as_often_as_it_was_told() {
        let mut nodes = Nodes::new(Arc::new(Thing::Folder(BTreeMap::new())));
        let first = nodes.tell(TOP, b"a", &file(0, None));
        assert_eq!(nodes.tell(TOP, b"a", &file(0, None)), first);
        assert_ne!(nodes.tell(TOP, b"b", &file(0, None)), first);
        nodes.forget(first, 1);
        assert!(nodes.get(first).is_some());
        nodes.forget(first, 1);
        assert!(nodes.get(first).is_none());
        assert_ne!(nodes.tell(TOP, b"a", &file(0, None)), first, "a number is never given twice");
        nodes.forget(TOP, 100);
        assert!(nodes.get(TOP).is_some());
    }

    #[test]
    fn names_of_one_file_have_one_number_within_a_snapshot() {
        let mut nodes = Nodes::new(Arc::new(Thing::Folder(BTreeMap::new())));
        let first = nodes.tell(TOP, b"a", &file(0, Some(7)));
        assert_eq!(nodes.tell(5, b"b", &file(0, Some(7))), first);
        assert_ne!(nodes.tell(5, b"b", &file(1, Some(7))), first);
    }
}
