//! Remembering that there is nothing to do.
//!
//! At its end a full run looks once more at what it leaves behind. If all is *settled* (every content holds manifests or
//! is needed by a snapshot, none that is needed is missing, and no packs are worth gathering), that is kept on this machine
//! together with what it depends on. A later run that finds all of that unchanged takes it from there, instead of marking
//! everything and going through the whole index again.
//!
//! # Why that is safe
//!
//! * What a snapshot needs is determined by its root, since objects are named by what they hold. The ids and roots of
//!   all snapshots are compared; one that is new, gone or cannot be read is a difference.
//! * What the index says is determined by the blobs in force and the watermark. The names of the blobs are compared, and
//!   the same name always stands for the same bytes: whatever anybody writes, deletes, brings back or compacts changes
//!   the set. A later watermark only hides deletions, of which a settled repository shows none; an earlier one is a difference.
//! * Time changes nothing: only contents that nothing needs have to be old for something to happen to them, and there
//!   are none.
//! * Packs may vanish or appear with nobody touching the index. So they are listed in every run, and only if exactly
//!   those are there that contents live in, the usage of each is not looked at.
//! * Blobs of the index and manifests that cannot be read are obstacles as in any other run.
//!
//! What is remembered is sealed with the keys of the repository. If it is damaged or gone, everything is looked at.

use super::collect::{Join, Verdict};
use super::mark::Marks;
use super::recall::Shelf;
use super::report::Amount;
use super::rewrite::{choose, short_pack};
use super::{Result, Session};
use crate::pack::PackKind;
use crate::snapshot::SnapshotList;
use crate::sort::Sorted;
use crate::worker::blocking;
use aws_lc_rs::digest;
use lifeboat_index::{Deleted, IdRange, Snapshot};
use serde::{Deserialize, Serialize};

const FILE_NAME: &str = "settled";
/// What the file is sealed under. Changes whenever it means something else.
const SEAL: &[u8; 16] = b"settled-1       ";

/// That there was nothing to do, and under which circumstances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settled {
    /// [`Names`] of the snapshots and their roots.
    snapshots: String,
    index: [u8; 16],
    watermark: i64,
    max_pack_size: u64,
    /// [`Names`] of the packs with contents.
    packs: String,
    /// What the snapshots need.
    pub(super) in_use: Amount,
    /// What holds manifests.
    pub(super) system: Amount,
}

impl Settled {
    /// Whether `index` says what it said then.
    fn holds_for(&self, index: &Snapshot) -> bool {
        self.index == index.identity() && self.watermark <= index.watermark()
    }

    /// Finds out whether all is settled.
    fn find(
        marks: &Marks,
        snapshots: String,
        index: &Snapshot,
        max_pack_size: u64,
    ) -> crate::Result<Option<Settled>> {
        let entries = index.iter(IdRange::all(), Deleted::Include);
        let needed = amounts_needed(Join::new(entries, marks.contents.read()?, i64::MAX)?)?;
        let Some((in_use, system)) = needed else { return Ok(None) };
        let (mut packs, mut short) = (Names::new(), Vec::new());
        for usage in index.pack_usage()? {
            let usage = usage?;
            if usage.live_contents > 0 {
                packs.add(usage.pack.as_str().as_bytes());
            }
            short.extend(short_pack(&usage, &PackKind::ALL, max_pack_size));
        }
        if !choose(short, u64::MAX).is_empty() {
            return Ok(None);
        }
        Ok(Some(Settled {
            snapshots,
            index: index.identity(),
            watermark: index.watermark(),
            max_pack_size,
            packs: packs.finish(),
            in_use,
            system,
        }))
    }
}

/// What snapshots need and what holds manifests, if there is nothing else and nothing is missing. Ends at the first content
/// that says otherwise: right after a deletion that is soon.
fn amounts_needed(mut join: Join) -> crate::Result<Option<(Amount, Amount)>> {
    let (mut in_use, mut system) = (Amount::default(), Amount::default());
    let mut missing = false;
    while let Some((entry, verdict)) = join.next(&mut |_, _| missing = true)? {
        let amount = match verdict {
            Verdict::InUse if !missing => &mut in_use,
            Verdict::System if !missing => &mut system,
            _ => return Ok(None),
        };
        amount.add(entry.packed_length.into());
    }
    Ok((!missing).then_some((in_use, system)))
}

impl Session {
    /// What an earlier run remembered, if it holds for the repository as it was loaded last.
    pub(super) async fn recall_settled(&self) -> Result<Option<Settled>> {
        let Some(shelf) = Shelf::of(&self.repository) else { return Ok(None) };
        let Some(snapshots) = self.names_of_snapshots().await? else { return Ok(None) };
        let file = blocking(move || shelf.get(FILE_NAME, SEAL)).await?;
        let settled = file.and_then(|file| serde_json::from_slice::<Settled>(&file).ok());
        let max_pack_size = self.format.repository().max_pack_size();
        let index = self.repository.contents().snapshot();
        Ok(settled.filter(|settled| {
            settled.snapshots == snapshots
                && settled.holds_for(&index)
                && settled.max_pack_size == max_pack_size
        }))
    }

    /// What was recalled, as long as the index has not changed since.
    pub(super) fn settled(&self) -> Option<&Settled> {
        let index = self.repository.contents().snapshot();
        self.settled.as_ref().filter(|settled| settled.holds_for(&index))
    }

    /// Whether exactly those packs are listed that are known to be in use, and nothing else.
    pub(super) async fn lists_settled_packs(&self, listed: &Sorted) -> Result<bool> {
        let Some(settled) = self.settled() else { return Ok(false) };
        let (listed, packs) = (listed.clone(), settled.packs.clone());
        let compare = move || -> crate::Result<bool> {
            let (mut names, mut listed) = (Names::new(), listed.read()?);
            while listed.advance()? {
                names.add(listed.key());
            }
            Ok(names.finish() == packs)
        };
        Ok(blocking(compare).await??)
    }

    /// Looks at what this run leaves behind, and remembers it if all is settled. The next run only takes longer without,
    /// so that a failure is no failure.
    pub(super) async fn remember_settled(&self) {
        if let Err(error) = self.look_back().await {
            tracing::warn!(%error, "the next run has to look at everything again");
        }
    }

    async fn look_back(&self) -> Result<()> {
        let (Some(shelf), Some(marks)) = (Shelf::of(&self.repository), self.marks.clone()) else {
            return Ok(());
        };
        self.repository.contents().refresh().await?;
        self.repository.manifests().reload().await?;
        let snapshots = self.names_of_snapshots().await?;
        let Some(snapshots) = snapshots.filter(|names| *names == marks.names) else { return Ok(()) };
        if !self.check_index().is_empty() {
            return Ok(());
        }
        let index = self.repository.contents().snapshot();
        let max_pack_size = self.format.repository().max_pack_size();
        let look = move || -> crate::Result<()> {
            let Some(settled) = Settled::find(&marks, snapshots, &index, max_pack_size)? else {
                return Ok(());
            };
            let file = serde_json::to_vec(&settled).map_err(|e| crate::Error::Worker(e.to_string()))?;
            shelf.put(FILE_NAME, SEAL, &file)
        };
        Ok(blocking(look).await??)
    }

    /// [`Names`] of the snapshots and their roots; `None` if there may be some that nobody can read.
    async fn names_of_snapshots(&self) -> Result<Option<String>> {
        let list = self.repository.snapshots().await?;
        let whole = list.damaged.is_empty() && self.repository.manifests().damage().await?.is_empty();
        Ok(whole.then(|| names_of(&list)))
    }
}

/// [`Names`] of snapshots and their roots.
pub(super) fn names_of(list: &SnapshotList) -> String {
    let root = |root: &Option<crate::snapshot::DirEntry>| root.as_ref().map(|root| root.object.clone());
    let mut all: Vec<_> = list.snapshots.iter().map(|one| (&one.id, root(&one.root_entry))).collect();
    all.sort();
    let mut names = Names::new();
    for (id, root) in all {
        names.add(id.as_str().as_bytes());
        names.add(root.unwrap_or_default().as_bytes());
    }
    names.finish()
}

/// Tells lists of names apart.
struct Names(digest::Context);

impl Names {
    fn new() -> Self {
        Names(digest::Context::new(&digest::SHA256))
    }

    fn add(&mut self, name: &[u8]) {
        self.0.update(&(name.len() as u64).to_be_bytes());
        self.0.update(name);
    }

    fn finish(self) -> String {
        hex::encode(self.0.finish())
    }
}
