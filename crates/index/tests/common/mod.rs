//! A catalogue beside a model of it: index blobs in a map, merged by brute force.

#![allow(dead_code)]

use lifeboat_index::{
    Catalog, CatalogOptions, ContentId, Deleted, Error, IdRange, IndexBlobName, IndexBuilder, IndexEntry,
    IndexReader, IndexSource, IndexVersion, PackName, Prefix, Snapshot, supersedes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Merges few segments often, sweeps at once, checks files lazily.
pub fn eager_options() -> CatalogOptions {
    CatalogOptions { max_segments: 3, check_limit: 0, grace: Duration::ZERO, ..CatalogOptions::default() }
}

pub fn entry(id: ContentId, timestamp_seconds: i64, pack: &str) -> IndexEntry {
    IndexEntry {
        id,
        pack: pack.into(),
        pack_offset: 32,
        packed_length: 128,
        original_length: 100,
        timestamp_seconds,
        format_version: 3,
        compression: 0,
        encryption_key_id: 0,
        deleted: false,
    }
}

pub fn id(prefix: u8, hash: &[u8]) -> ContentId {
    ContentId::new(Prefix::new(prefix).unwrap(), hash).unwrap()
}

/// What should be true.
#[derive(Default)]
pub struct Model {
    pub blobs: BTreeMap<IndexBlobName, Vec<u8>>,
    pub entries: BTreeMap<IndexBlobName, Vec<IndexEntry>>,
    pub active: BTreeSet<IndexBlobName>,
    pub watermark: i64,
    pub loads: usize,
}

impl Model {
    pub fn new() -> Self {
        Model { watermark: i64::MIN, ..Model::default() }
    }

    /// Uploads an index blob and makes it active.
    pub fn upload(&mut self, name: &str, entries: impl IntoIterator<Item = IndexEntry>) {
        let mut builder = IndexBuilder::new();
        builder.extend(entries);
        let name = IndexBlobName::from(name);
        let bytes = if builder.is_empty() {
            [&[2, 255][..], &[0; 15]].concat()
        } else {
            builder.encode(IndexVersion::V2, b"suffix").unwrap()
        };
        self.blobs.insert(name.clone(), bytes);
        self.entries.insert(name.clone(), builder.iter().cloned().collect());
        self.active.insert(name);
    }

    pub fn merged(&self) -> BTreeMap<ContentId, IndexEntry> {
        let mut merged = BTreeMap::<ContentId, IndexEntry>::new();
        for entry in self.active.iter().flat_map(|name| &self.entries[name]) {
            if merged.get(&entry.id).is_none_or(|found| supersedes(entry, found)) {
                merged.insert(entry.id, entry.clone());
            }
        }
        merged.retain(|_, entry| !entry.deleted || entry.timestamp_seconds > self.watermark);
        merged
    }

    pub fn update(&mut self, catalog: &Catalog) -> Result<Snapshot, Error> {
        let (blobs, loads) = (&self.blobs, &mut self.loads);
        catalog.update(&self.active, self.watermark, &mut |name| {
            *loads += 1;
            let bytes = blobs[name].clone();
            if *loads % 2 == 0 {
                return Ok(IndexSource::memory(bytes));
            }
            let mut file = tempfile::tempfile()?;
            file.write_all(&bytes)?;
            Ok(IndexSource::File(file))
        })
    }

    /// Asserts that the catalogue says what it should, repairing it as often as it says that it is damaged.
    pub fn check(&mut self, catalog: &Catalog) {
        for _ in 0..50 {
            let outcome = self.update(catalog).and_then(|snapshot| self.compare(&snapshot));
            match outcome {
                Err(error) if error.is_damaged_cache() => continue,
                other => return other.unwrap(),
            }
        }
        panic!("the catalogue is still damaged after 50 repairs");
    }

    pub fn compare(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let merged = self.merged();
        let all_ids: BTreeSet<ContentId> = self.entries.values().flatten().map(|entry| entry.id).collect();
        for id in &all_ids {
            let found = snapshot.get(id)?;
            assert_eq!(found.as_ref(), merged.get(id), "{id}");
            assert_eq!(snapshot.contains_live(id)?, found.is_some_and(|entry| !entry.deleted));
        }
        let listed: Vec<_> = snapshot.iter(IdRange::all(), Deleted::Include).collect::<Result<_, _>>()?;
        assert!(listed.iter().eq(merged.values()));
        assert_eq!(snapshot.count()?, merged.len() as u64);
        assert!(snapshot.len_upper_bound() >= merged.len() as u64);
        self.compare_ranges(snapshot, &merged, all_ids.iter().nth(all_ids.len() / 2))?;
        self.compare_packs(snapshot, &merged)
    }

    fn compare_ranges(
        &self,
        snapshot: &Snapshot,
        merged: &BTreeMap<ContentId, IndexEntry>,
        middle: Option<&ContentId>,
    ) -> Result<(), Error> {
        let living = |range| snapshot.iter(range, Deleted::Skip).collect::<Result<Vec<_>, _>>();
        let expected = |wanted: &dyn Fn(&ContentId) -> bool| -> Vec<IndexEntry> {
            merged.values().filter(|entry| !entry.deleted && wanted(&entry.id)).cloned().collect()
        };
        for prefix in [Prefix::NONE, Prefix::DIRECTORY, Prefix::MANIFEST, Prefix::new(b'z').unwrap()] {
            assert_eq!(living(IdRange::prefix(prefix))?, expected(&|id| id.prefix() == prefix));
        }
        assert_eq!(living(IdRange::prefixed())?, expected(&|id| !id.prefix().is_none()));
        if let Some(middle) = middle {
            assert_eq!(living(IdRange::starting_at(middle))?, expected(&|id| id >= middle));
            assert_eq!(living(IdRange::all().ending_before(middle))?, expected(&|id| id < middle));
        }
        Ok(())
    }

    fn compare_packs(
        &self,
        snapshot: &Snapshot,
        merged: &BTreeMap<ContentId, IndexEntry>,
    ) -> Result<(), Error> {
        let mut expected: BTreeMap<PackName, [u64; 4]> = BTreeMap::new();
        for entry in self.active.iter().flat_map(|name| &self.entries[name]) {
            expected.entry(entry.pack.clone()).or_default();
        }
        for entry in merged.values() {
            let usage = expected.get_mut(&entry.pack).unwrap();
            let kind = if entry.deleted { 2 } else { 0 };
            usage[kind] += 1;
            usage[kind + 1] += u64::from(entry.packed_length);
        }
        let names: Vec<PackName> = snapshot.pack_names()?.collect::<Result<_, _>>()?;
        assert!(names.iter().eq(expected.keys()));
        let mut usage = BTreeMap::new();
        for pack in snapshot.pack_usage()? {
            let pack = pack?;
            let numbers = [pack.live_contents, pack.live_bytes, pack.deleted_contents, pack.deleted_bytes];
            usage.insert(pack.pack, numbers);
        }
        assert_eq!(usage, expected);
        Ok(())
    }
}

/// Reads all entries of an index plaintext.
pub fn decode(bytes: &[u8]) -> Vec<IndexEntry> {
    IndexReader::parse(bytes, 28).unwrap().iter().collect::<Result<_, _>>().unwrap()
}

/// The names of the files in a folder, sorted.
pub fn files(directory: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
