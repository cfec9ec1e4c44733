//! The catalogue: one committed view of all contents over a set of index blobs, kept in local files.
//!
//! # How it is kept
//!
//! A *segment* holds the merged entries of one or several index blobs in one sorted, immutable file. What the
//! catalogue answers is determined by exactly the blobs that are active, so a segment is used only if **all** of the
//! blobs it was made from are: an entry that was only in a blob that is gone must be gone too, and nothing in a
//! merged segment tells where an entry came from.
//!
//! * Every active blob has its *own* segment, kept for as long as the blob is active. A blob is therefore loaded
//!   once, whatever happens to the merged segments it went into.
//! * When there are too many segments to look into, the smallest are merged into one. Compaction of the index
//!   replaces a group of blobs by one; merged segments that contain one of the group are then no longer used and what
//!   is left of them is merged anew from the blobs' own segments, locally. As small (recent) ones are merged with
//!   small ones, the large rest is not touched by that.
//! * The *cover* of a set of blobs is the list of segments that together answer for it, in a file that is named by
//!   the set. Opening an unchanged set reads that list and maps the segments.
//!
//! Files are named by what they are made from, complete when they get their name and never changed afterwards, so
//! any number of processes may share the folder without locks: at worst two build the same file, and the later one
//! replaces the earlier by an equal one. A file that is torn, damaged or missing is built again.
//!
//! The disk space taken is 44 bytes (for 128-bit hashes) and a few bits per entry and segment, at most about twice
//! that of all entries. Building takes memory in proportion to the number of packs (16 bytes each), not of entries.

mod files;
mod layout;
mod merge;
mod pages;
mod segment;
mod snapshot;
mod write;

pub use snapshot::{Contents, Deleted, IdRange, PackUsage, Since, Snapshot};

use crate::codec::IndexReader;
use crate::map::MappedFile;
use crate::{Error, LoadError};
use layout::Digest;
use lifeboat_budget::Budget;
use segment::Segment;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The most segments merged at once: each costs a mapping and a read-ahead of 1 MiB.
const MERGE_WIDTH: usize = 64;

/// The name of an index blob. The same name must always stand for the same bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexBlobName(Arc<str>);

impl IndexBlobName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for IndexBlobName {
    fn from(name: &str) -> Self {
        IndexBlobName(name.into())
    }
}

impl From<String> for IndexBlobName {
    fn from(name: String) -> Self {
        IndexBlobName(name.into())
    }
}

impl fmt::Display for IndexBlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for IndexBlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The plaintext of an index blob, on its way into the catalogue.
pub enum IndexSource {
    /// In memory, which whoever hands it in accounts for.
    Memory(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// In a file that nobody writes to any more, for blobs too large to hold in memory.
    File(File),
}

impl IndexSource {
    /// A plaintext in memory.
    pub fn memory(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        IndexSource::Memory(Box::new(bytes))
    }
}

impl fmt::Debug for IndexSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexSource::Memory(bytes) => {
                write!(f, "IndexSource::Memory({} bytes)", (**bytes).as_ref().len())
            }
            IndexSource::File(file) => write!(f, "IndexSource::File({file:?})"),
        }
    }
}

/// How a catalogue works.
#[derive(Debug, Clone)]
pub struct CatalogOptions {
    /// What merging draws its memory from, at most the whole of it. Whoever calls [`Catalog::update`] must hold no
    /// reservation of this budget, and the loader must have given up its own when the source that it returned is
    /// dropped.
    pub budget: Option<Budget>,
    /// What encryption adds to each content; see [`IndexReader::parse`].
    pub v1_overhead: u32,
    /// How many segments a look-up may have to ask before they are merged.
    pub max_segments: usize,
    /// Files up to this size are checked as a whole when they are opened, and rebuilt unnoticed when they are
    /// damaged. Larger ones are checked page by page as they are used, and damage surfaces as [`Error::Damaged`].
    pub check_limit: u64,
    /// For how long a file that this process does not need is left to others that share the folder.
    pub grace: Duration,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        CatalogOptions {
            budget: None,
            // AES-GCM and ChaCha20-Poly1305: a nonce of 12 bytes and a tag of 16.
            v1_overhead: 28,
            max_segments: 8,
            // Checking takes about 10 ms from memory; a repository of half a million contents has less.
            check_limit: 32 << 20,
            // Readers of a repository learn of new index blobs within twenty minutes.
            grace: Duration::from_secs(30 * 60),
        }
    }
}

/// The catalogue of a repository in a local folder.
///
/// All methods may be called from several threads and processes at once.
#[derive(Debug)]
pub struct Catalog {
    directory: PathBuf,
    options: CatalogOptions,
    /// Keeps the folder of a temporary catalogue until it is dropped; snapshots do not need it.
    _temporary: Option<TempDir>,
}

impl Catalog {
    /// A catalogue whose files are in `directory`, which is made if need be and must serve this repository alone.
    pub fn open(directory: impl Into<PathBuf>, options: CatalogOptions) -> Result<Self, Error> {
        let catalog = Catalog { directory: directory.into(), options, _temporary: None };
        catalog.create_directory()?;
        Ok(catalog)
    }

    /// A catalogue for one use, in a folder below `parent` that goes when the catalogue is dropped. Snapshots taken
    /// from it stay usable.
    pub fn temporary_in(parent: &Path, options: CatalogOptions) -> Result<Self, Error> {
        let made = tempfile::Builder::new().prefix("lifeboat-index-").tempdir_in(parent);
        let temporary = made.map_err(Error::io("create a folder in", parent))?;
        Ok(Catalog { directory: temporary.path().to_path_buf(), options, _temporary: Some(temporary) })
    }

    /// [`temporary_in`](Catalog::temporary_in) the system's folder for temporary files.
    pub fn temporary(options: CatalogOptions) -> Result<Self, Error> {
        Catalog::temporary_in(&std::env::temp_dir(), options)
    }

    /// The active blobs that [`update`](Catalog::update) would have to load, so that they can be fetched side by side
    /// and [added](Catalog::add) beforehand.
    pub fn missing(&self, active: &BTreeSet<IndexBlobName>) -> Result<Vec<IndexBlobName>, Error> {
        if self.open_cover(&self.digest(active))?.is_some() {
            return Ok(Vec::new());
        }
        let (_, uncovered) = self.usable_merged(active)?;
        let absent =
            |blob: &&IndexBlobName| !files::own_path(&self.directory, &self.digest([*blob])).exists();
        Ok(uncovered.into_iter().filter(absent).cloned().collect())
    }

    /// Takes in an index blob, so that updates need not load it.
    ///
    /// The whole index is checked: one that is damaged is refused with [`Error::Index`].
    pub fn add(&self, blob: &IndexBlobName, source: &IndexSource) -> Result<(), Error> {
        self.create_directory()?;
        self.write_own(blob, source).map(|_| ())
    }

    /// The view over exactly the `active` blobs, in which contents deleted at or before `watermark` (seconds since
    /// 1970; `i64::MIN` for none) are absent.
    ///
    /// `loader` is called for blobs that the folder has nothing of. What was taken in before an error is kept, so
    /// that trying again goes on from there.
    pub fn update(
        &self,
        active: &BTreeSet<IndexBlobName>,
        watermark: i64,
        loader: &mut dyn FnMut(&IndexBlobName) -> Result<IndexSource, LoadError>,
    ) -> Result<Snapshot, Error> {
        let set = self.digest(active);
        if let Some(segments) = self.open_cover(&set)? {
            return Ok(Snapshot::new(segments, watermark, set));
        }
        // Caches get wiped under running processes.
        self.create_directory()?;
        let (mut segments, uncovered) = self.usable_merged(active)?;
        let mut made = HashSet::new();
        for blob in uncovered {
            segments.push(self.own_segment(blob, loader)?);
            if segments.len() >= MERGE_WIDTH.max(self.options.max_segments) {
                self.compact(&mut segments, &mut made)?;
            }
        }
        self.compact(&mut segments, &mut made)?;
        self.commit(&set, active, &segments, &made)?;
        Ok(Snapshot::new(segments, watermark, set))
    }

    fn create_directory(&self) -> Result<(), Error> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        created.map_err(Error::io("create the folder", &self.directory))
    }

    fn digest<'a>(&self, blobs: impl IntoIterator<Item = &'a IndexBlobName>) -> Digest {
        files::digest(blobs, self.options.v1_overhead)
    }

    /// The segments that were found to answer for a set of blobs, if all of them are still there and sound.
    fn open_cover(&self, set: &Digest) -> Result<Option<Vec<Arc<Segment>>>, Error> {
        let Some(paths) = files::read_cover(&self.directory, set) else { return Ok(None) };
        paths.iter().map(|path| self.open_segment(path)).collect()
    }

    fn open_segment(&self, path: &Path) -> Result<Option<Arc<Segment>>, Error> {
        let Some(digest) = files::digest_of(path) else { return Ok(None) };
        Ok(Segment::open(path, &digest, self.options.check_limit)?.map(Arc::new))
    }

    /// Merged segments that have no other inputs than active blobs and none in common, the widest first, and the
    /// active blobs that they leave.
    fn usable_merged<'a>(
        &self,
        active: &'a BTreeSet<IndexBlobName>,
    ) -> Result<(Vec<Arc<Segment>>, BTreeSet<&'a IndexBlobName>), Error> {
        let mut candidates = Vec::new();
        for path in files::merged_paths(&self.directory)? {
            candidates.extend(self.open_segment(&path)?);
        }
        candidates.sort_by_key(|segment| std::cmp::Reverse(segment.input_count()));
        let mut uncovered: BTreeSet<&IndexBlobName> = active.iter().collect();
        let mut chosen = Vec::new();
        for segment in candidates {
            let inputs = match segment.inputs() {
                Ok(inputs) => inputs,
                Err(error) if error.is_damaged_cache() => continue,
                Err(error) => return Err(error),
            };
            if inputs.iter().all(|input| uncovered.contains(input)) {
                inputs.iter().for_each(|input| _ = uncovered.remove(input));
                chosen.push(segment);
            }
        }
        Ok((chosen, uncovered))
    }

    /// The segment of one blob, loading the blob if need be.
    fn own_segment(
        &self,
        blob: &IndexBlobName,
        loader: &mut dyn FnMut(&IndexBlobName) -> Result<IndexSource, LoadError>,
    ) -> Result<Arc<Segment>, Error> {
        let path = files::own_path(&self.directory, &self.digest([blob]));
        if let Some(segment) = self.open_segment(&path)? {
            return Ok(segment);
        }
        let source = loader(blob).map_err(|source| Error::Load { blob: blob.clone(), source })?;
        self.write_own(blob, &source)
    }

    fn write_own(&self, blob: &IndexBlobName, source: &IndexSource) -> Result<Arc<Segment>, Error> {
        let mapped;
        let bytes = match source {
            IndexSource::Memory(bytes) => (**bytes).as_ref(),
            IndexSource::File(file) => {
                let plaintext = Path::new("the plaintext of an index blob");
                mapped = MappedFile::new(file).map_err(Error::io("map", plaintext))?;
                mapped.as_ref()
            }
        };
        let index = IndexReader::parse(bytes, self.options.v1_overhead)
            .map_err(|source| Error::Index { blob: blob.clone(), source })?;
        let digest = self.digest([blob]);
        let path = files::own_path(&self.directory, &digest);
        let file = write::write_own(&self.directory, &path, digest, blob, &index)?;
        Segment::from_file(&file, &path, &digest, self.options.check_limit).map(Arc::new)
    }

    /// Merges until few enough segments are left: the smallest first, into half as many as are allowed, so that it
    /// does not have to be done again for the next few blobs.
    fn compact(&self, segments: &mut Vec<Arc<Segment>>, made: &mut HashSet<PathBuf>) -> Result<(), Error> {
        let max = self.options.max_segments.max(1);
        // Only keys of one length can be merged. A repository has no others, but who knows what was uploaded to it.
        let mut by_key_len: BTreeMap<usize, Vec<Arc<Segment>>> = BTreeMap::new();
        for segment in segments.drain(..) {
            by_key_len.entry(segment.key_len()).or_default().push(segment);
        }
        for mut group in by_key_len.into_values() {
            while group.len() > max {
                group.sort_by_key(|segment| segment.len());
                let count = (group.len() - max / 2 + 1).clamp(2, MERGE_WIDTH.min(group.len()));
                let parts: Vec<_> = group.drain(..count).collect();
                group.push(self.merge(&parts, made)?);
            }
            segments.append(&mut group);
        }
        Ok(())
    }

    fn merge(&self, parts: &[Arc<Segment>], made: &mut HashSet<PathBuf>) -> Result<Arc<Segment>, Error> {
        let mut inputs = Vec::new();
        for part in parts {
            inputs.extend(part.inputs()?);
        }
        inputs.sort_unstable();
        let digest = self.digest(&inputs);
        let path = files::merged_path(&self.directory, &digest);
        // Asking for more than the whole budget would fail; asking for nothing would wait for nobody.
        let memory = self
            .options
            .budget
            .as_ref()
            .map(|budget| budget.reserve(write::merge_memory(parts).min(budget.total())));
        let file = write::write_merged(&self.directory, &path, digest, &inputs, parts)?;
        drop(memory);
        let segment = Segment::from_file(&file, &path, &digest, self.options.check_limit)?;
        made.insert(path);
        Ok(Arc::new(segment))
    }

    /// Remembers the outcome of an update and removes what it made superfluous.
    fn commit(
        &self,
        set: &Digest,
        active: &BTreeSet<IndexBlobName>,
        segments: &[Arc<Segment>],
        made: &HashSet<PathBuf>,
    ) -> Result<(), Error> {
        let used: Vec<&Path> = segments.iter().map(|segment| segment.path()).collect();
        files::write_cover(&self.directory, set, &used)?;
        // Stages of a merge that this very update went through are of no use to anybody.
        made.iter().filter(|path| !used.contains(&path.as_path())).for_each(|path| segment::remove(path));
        let own = active.iter().map(|blob| files::own_path(&self.directory, &self.digest([blob])));
        let keep = own.chain(used.iter().map(|path| path.to_path_buf())).collect();
        files::sweep(&self.directory, &keep, set, self.options.grace)
    }
}
