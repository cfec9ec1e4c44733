//! What snapshots take in the repository: how much each of them adds to those before it.

use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result};
use lifeboat_index::ContentId;
use lifeboat_kopia::object::{ObjectId, ObjectLayout};
use lifeboat_kopia::snapshot::DirEntry;
use serde::Serialize;
use std::collections::HashSet;
use std::ops::AddAssign;

/// What a snapshot has that those before it have not, and what all of them have together; as Kopia prints it.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageStats {
    /// What only this one has.
    pub new_data: Usage,
    /// What this one and those before it have.
    pub running_total: Usage,
}

/// Objects and contents, each counted once.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Bytes of files.
    pub object_bytes: u64,
    /// Bytes of the contents of files.
    pub original_content_bytes: u64,
    /// The same as they are stored.
    pub packed_content_bytes: u64,
    /// Files and links.
    pub file_objects: u64,
    /// Directories.
    pub dir_objects: u64,
    /// Contents, those of directories too.
    pub contents: u64,
}

impl Usage {
    /// How much compression has saved, in percent.
    pub fn saved(&self) -> f64 {
        match self.original_content_bytes {
            0 => 0.0,
            original => (100.0 * (1.0 - self.packed_content_bytes as f64 / original as f64)).max(0.0),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.object_bytes += other.object_bytes;
        self.original_content_bytes += other.original_content_bytes;
        self.packed_content_bytes += other.packed_content_bytes;
        self.file_objects += other.file_objects;
        self.dir_objects += other.dir_objects;
        self.contents += other.contents;
    }
}

/// Walks one snapshot after another and counts what it has not seen before.
pub struct Meter<'a> {
    session: &'a Session,
    trees: &'a Trees,
    objects: HashSet<ObjectId>,
    contents: HashSet<ContentId>,
    total: Usage,
}

impl<'a> Meter<'a> {
    pub fn new(session: &'a Session, trees: &'a Trees) -> Self {
        let (objects, contents) = (HashSet::new(), HashSet::new());
        Meter { session, trees, objects, contents, total: Usage::default() }
    }

    /// Counts the snapshot with this root.
    pub fn measure(&mut self, root: &DirEntry) -> Result<StorageStats> {
        let mut new_data = Usage::default();
        self.add(root, &mut new_data)?;
        self.total += new_data;
        Ok(StorageStats { new_data, running_total: self.total })
    }

    fn add(&mut self, entry: &DirEntry, usage: &mut Usage) -> Result<()> {
        let object: ObjectId =
            entry.object.parse().with_context(|| format!("cannot measure {:?}", entry.name))?;
        if !self.objects.insert(object) {
            return Ok(());
        }
        match entry.is_dir() {
            true => usage.dir_objects += 1,
            false => {
                usage.file_objects += 1;
                usage.object_bytes += entry.size;
            }
        }
        let layout = self.session.wait(ObjectLayout::load(self.trees.repository.objects(), object))?;
        let parts = layout.entries().iter().map(|part| part.content);
        for content in layout.index_contents().iter().copied().chain(parts) {
            if !self.contents.insert(content) {
                continue;
            }
            usage.contents += 1;
            if !entry.is_dir() {
                let found = self.trees.repository.contents().lookup(&content)?;
                let found = found.with_context(|| format!("the index does not know content {content}"))?;
                usage.original_content_bytes += u64::from(found.original_length);
                usage.packed_content_bytes += u64::from(found.packed_length);
            }
        }
        if entry.is_dir() {
            for child in self.trees.children(entry)? {
                self.add(&child?, usage)?;
            }
        }
        Ok(())
    }
}
