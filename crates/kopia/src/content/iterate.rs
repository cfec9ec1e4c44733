//! Going through contents in order of their ids.

use super::ContentStore;
use super::session::WriteSession;
use crate::Result;
use lifeboat_index::{ContentId, Deleted, IdRange, IndexEntry, Prefix};
use std::collections::BTreeMap;

/// Which contents to go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentRange {
    /// All.
    All,
    /// Those with this prefix; [`Prefix::NONE`] for user data.
    Prefix(Prefix),
    /// Those with any prefix.
    Prefixed,
    /// Those whose ids begin with this text.
    StartingWith(String),
    /// From this id on.
    From(ContentId),
}

impl ContentRange {
    fn contains(&self, id: &ContentId) -> bool {
        match self {
            ContentRange::All => true,
            ContentRange::Prefix(prefix) => id.prefix() == *prefix,
            ContentRange::Prefixed => !id.prefix().is_none(),
            ContentRange::StartingWith(text) => id.to_string().starts_with(text),
            ContentRange::From(first) => id >= first,
        }
    }

    fn ids(&self) -> IdRange {
        match self {
            ContentRange::All => IdRange::all(),
            ContentRange::Prefix(prefix) => IdRange::prefix(*prefix),
            ContentRange::Prefixed => IdRange::prefixed(),
            ContentRange::StartingWith(text) => match text.bytes().next() {
                Some(first) => IdRange::prefix(Prefix::new(first).unwrap_or(Prefix::NONE)),
                None => IdRange::all(),
            },
            ContentRange::From(first) => IdRange::starting_at(first),
        }
    }
}

impl ContentStore {
    /// The contents of `range` in order of their ids: the published index as of now, and on top of it what this
    /// process has written and not published yet. Blocking in the measure of the local disk.
    pub fn iterate(
        &self,
        range: ContentRange,
        deleted: Deleted,
    ) -> impl Iterator<Item = Result<IndexEntry>> + use<> {
        // Pending first: what is published in between shows up twice, not at all never.
        let mut pending: BTreeMap<ContentId, IndexEntry> = BTreeMap::new();
        if let Some(writer) = &self.shared.writer {
            let state = writer.state.lock();
            for session in &state.closing {
                pending.extend(session.lock().index_entries().map(|entry| (entry.id, entry)));
            }
            pending.extend(state.current.iter().flat_map(WriteSession::index_entries).map(|e| (e.id, e)));
        }
        pending.retain(|id, _| range.contains(id));
        let published = self.shared.committed.snapshot().iter(range.ids(), Deleted::Include);
        let keep = move |entry: &IndexEntry| deleted == Deleted::Include || !entry.deleted;
        Merged { published: published.peekable(), pending: pending.into_values().peekable() }.filter(
            move |entry| entry.as_ref().map_or(true, |entry| keep(entry) && range.contains(&entry.id)),
        )
    }
}

/// Two ordered streams as one; where both have an entry, the pending one counts.
struct Merged<P: Iterator, Q: Iterator> {
    published: std::iter::Peekable<P>,
    pending: std::iter::Peekable<Q>,
}

impl<P, Q> Iterator for Merged<P, Q>
where
    P: Iterator<Item = std::result::Result<IndexEntry, lifeboat_index::Error>>,
    Q: Iterator<Item = IndexEntry>,
{
    type Item = Result<IndexEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let (published, pending) = (self.published.peek(), self.pending.peek());
        let take_pending = match (published, pending) {
            (Some(Ok(published)), Some(pending)) => {
                let (published, pending) = (published.id, pending.id);
                if published == pending {
                    self.published.next();
                }
                pending <= published
            }
            (Some(_), _) => false,
            (None, _) => true,
        };
        match take_pending {
            true => self.pending.next().map(Ok),
            false => self.published.next().map(|entry| Ok(entry?)),
        }
    }
}
