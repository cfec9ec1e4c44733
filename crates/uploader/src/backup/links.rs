//! Files with several names: what was read under one of them is not read again under the others.

use lifeboat_kopia::snapshot::{DirEntry, ExactTime};
use parking_lot::Mutex;
use std::collections::HashMap;

/// So many files are remembered, about ten megabytes. Beyond that they are read again, which costs time only: their
/// data is found to be there already.
const MOST: usize = 50_000;

/// What is known about files with several names.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<HashMap<(u64, u64), Linked>>);

#[derive(Debug)]
struct Linked {
    object: String,
    size: u64,
    time: ExactTime,
    /// How many names have not come by yet.
    names: u64,
}

impl Links {
    /// The object of a file that was read under another name and has not changed since.
    pub(super) fn find(&self, entry: &DirEntry) -> Option<String> {
        let link = entry.extras.as_ref()?.hard_link.as_ref()?;
        let mut known = self.0.lock();
        let linked = known.get_mut(&link.group())?;
        if linked.size != entry.size || linked.time != entry.file_time() {
            return None;
        }
        linked.names = linked.names.saturating_sub(1);
        if linked.names > 0 {
            return Some(linked.object.clone());
        }
        known.remove(&link.group()).map(|linked| linked.object)
    }

    /// Remembers the object of a file if it has other names.
    pub(super) fn remember(&self, entry: &DirEntry) {
        let Some(link) = entry.extras.as_ref().and_then(|extras| extras.hard_link.as_ref()) else { return };
        let mut known = self.0.lock();
        if known.len() < MOST {
            let linked = Linked {
                object: entry.object.clone(),
                size: entry.size,
                time: entry.file_time(),
                names: link.names.saturating_sub(1),
            };
            known.insert(link.group(), linked);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::{Extras, HardLink};

    #[test]
    fn a_file_is_known_until_all_its_names_came_by_or_it_changed() {
        let link = HardLink { inode: 1, names: 3, ..HardLink::default() };
        let extras = Some(Box::new(Extras { hard_link: Some(link), ..Extras::default() }));
        let entry = DirEntry { object: "o".into(), size: 5, extras, ..DirEntry::default() };
        let links = Links::default();
        assert_eq!(links.find(&entry), None);
        links.remember(&entry);
        let changed = DirEntry { size: 6, ..entry.clone() };
        assert_eq!(links.find(&changed), None);
        assert_eq!(links.find(&entry).as_deref(), Some("o"));
        assert_eq!(links.find(&entry).as_deref(), Some("o"));
        assert_eq!(links.find(&entry), None);
        links.remember(&DirEntry { extras: None, ..entry.clone() });
        assert_eq!(links.find(&entry), None);
    }
}
