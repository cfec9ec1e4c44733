//! An open restic repository.

use crate::errors::{CHECK, of_engine, read_only};
use crate::listing;
use crate::reader::{Contents, FileReader, Held};
use crate::scatter;
use crate::snapshots::{self, SnapshotList};
use crate::storage::Storage;
use aws_lc_rs::digest;
use bytes::Bytes;
use jiff::Timestamp;
use lifeboat_blobs::BlobStore;
use lifeboat_budget::Budget;
use lifeboat_kopia::snapshot::TYPE_LABEL;
use lifeboat_repository::{
    Error, ErrorKind, Features, Id, Manifest, ManifestFilter, ManifestMetadata, ObjectReader,
    ObjectWriteOptions, ObjectWriter, Repository, Result, ScatterOptions, ScatterTotals, Secret, Wanted,
};
use parking_lot::Mutex;
use rustic_core::repofile::{BlobType, Node, Tree};
use rustic_core::{
    BlobId, Credentials, DataId, IndexedFullStatus, OpenStatus, PackedId, RepositoryBackends,
    RepositoryOptions, TreeId,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Nodes of trees that are kept for another use: while a directory is restored, its files are asked for one by one.
const KEPT_NODES: usize = 50_000;
/// The versions of the format that are read.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

type Indexed = rustic_core::Repository<IndexedFullStatus>;

/// A restic repository behind the Unified Repository Interface. Clones share their state.
///
/// Everything that would write fails with [`ErrorKind::Unsupported`].
#[derive(Clone)]
pub struct ResticRepository {
    shared: Arc<Shared>,
}

impl fmt::Debug for ResticRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResticRepository").field("storage", &self.shared.storage).finish_non_exhaustive()
    }
}

/// What readers share.
pub(crate) struct Shared {
    storage: Arc<Storage>,
    budget: Budget,
    open: rustic_core::Repository<OpenStatus>,
    /// With the index, which is read when data is first asked for.
    indexed: Mutex<Option<Arc<Indexed>>>,
    /// The trees that were used last, the latest first.
    trees: Mutex<Vec<(TreeId, Arc<Tree>)>>,
}

/// What an id of the interface stands for.
enum Named {
    Tree(TreeId),
    Node(TreeId, usize),
}

impl Named {
    fn parse(id: &Id) -> Result<Self> {
        let parse = || {
            let (tree, place) = match id.as_str().split_once('/') {
                Some((tree, place)) => (tree, Some(place.parse().ok()?)),
                None => (id.as_str(), None),
            };
            let tree: TreeId = tree.parse().ok()?;
            Some(place.map_or(Named::Tree(tree), |place| Named::Node(tree, place)))
        };
        parse().ok_or_else(|| {
            let text =
                format!("{id:?} is not the id of a tree of a restic repository, nor of an entry in one");
            Error::new(ErrorKind::InvalidInput, text)
        })
    }
}

impl ResticRepository {
    /// Opens the repository in `store`. Storage calls run on `runtime`; what restores buffer draws on `budget`.
    pub fn open(
        store: Arc<dyn BlobStore>,
        password: &Secret,
        runtime: Handle,
        budget: Budget,
    ) -> Result<Self> {
        let storage = Arc::new(Storage::new(store, runtime));
        let place = storage.describe();
        if !storage.has_config()? {
            let text = format!(
                "there is no restic repository in {place}: it has no file \"config\"; check the path, bucket and prefix"
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let open = open(&storage, &Credentials::password(password.reveal()))?;
        let version = open.config().version;
        if !VERSIONS.contains(&version) {
            let text =
                format!("the restic repository in {place} has format {version}; only 1 and 2 are read");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let shared = Shared { storage, budget, open, indexed: Mutex::default(), trees: Mutex::default() };
        Ok(ResticRepository { shared: Arc::new(shared) })
    }

    /// All snapshots.
    pub fn snapshots(&self) -> Result<SnapshotList> {
        snapshots::list(&self.shared)
    }
}

fn open(storage: &Arc<Storage>, credentials: &Credentials) -> Result<rustic_core::Repository<OpenStatus>> {
    let place = storage.describe();
    let backends = RepositoryBackends::new(storage.clone(), None);
    // A cache of rustic's own would be one more thing on this machine that nobody looks after.
    let options = RepositoryOptions::default().no_cache(true);
    let opened =
        rustic_core::Repository::new(&options, &backends).and_then(|closed| closed.open(credentials));
    opened.map_err(|error| match error.is_incorrect_password() {
        true => {
            let text = format!(
                "the password is not that of any key of the restic repository in {place}; check it, and which \
                 repository it is for"
            );
            Error::new(ErrorKind::WrongPassword, text)
        }
        false => of_engine(&format!("cannot open the restic repository in {place}"), &error),
    })
}

impl Shared {
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn open(&self) -> &rustic_core::Repository<OpenStatus> {
        &self.open
    }

    fn indexed(&self) -> Result<Arc<Indexed>> {
        let mut indexed = self.indexed.lock();
        if let Some(indexed) = &*indexed {
            return Ok(indexed.clone());
        }
        let credentials = Credentials::Masterkey(self.open.key());
        let read = open(&self.storage, &credentials)?.to_indexed().map_err(|error| {
            let what = "cannot read the index of the restic repository (`restic repair index` makes it new)";
            of_engine(what, &error)
        })?;
        Ok(indexed.insert(Arc::new(read)).clone())
    }

    /// The bytes of a blob, which are what its id says.
    pub(crate) fn blob<T: PackedId>(&self, id: T) -> Result<Bytes> {
        let blob: BlobId = id.into();
        let hex = blob.to_hex();
        let read = self.indexed()?.get_blob_cached(&blob, T::TYPE);
        let kind = match T::TYPE {
            BlobType::Tree => "tree",
            BlobType::Data => "data",
        };
        let bytes =
            read.map_err(|error| of_engine(&format!("cannot read {kind} blob {}", hex.as_str()), &error))?;
        match is_hash_of(&blob, &bytes) {
            true => Ok(bytes),
            false => {
                let text = format!("{kind} blob {} has other bytes than its id says; {CHECK}", hex.as_str());
                Err(Error::new(ErrorKind::Damaged, text))
            }
        }
    }

    /// Where a blob of a file lies.
    pub(crate) fn place(&self, id: &DataId) -> Result<Place> {
        let entry = self.indexed()?.get_index_entry(id).ok();
        let place = entry.and_then(|entry| {
            let location = entry.location;
            // What is shorter than its own seal, or has no end, cannot be read.
            let sealed = location.length.checked_sub(SEAL)?;
            location.offset.checked_add(location.length)?;
            let plain = location.uncompressed_length.map_or(sealed, std::num::NonZeroU32::get);
            Some(Place { pack: *entry.pack, offset: location.offset, length: location.length, plain })
        });
        place.ok_or_else(|| {
            let text = format!("data blob {} is in no index; {CHECK}", id.to_hex().as_str());
            Error::new(ErrorKind::Damaged, text)
        })
    }

    fn tree(&self, id: TreeId) -> Result<Arc<Tree>> {
        let mut trees = self.trees.lock();
        if let Some(at) = trees.iter().position(|(known, _)| *known == id) {
            trees[..=at].rotate_right(1);
            return Ok(trees[0].1.clone());
        }
        drop(trees);
        let bytes = self.blob(id)?;
        let tree: Tree = serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!("tree {} is not understood: {error}; {CHECK}", id.to_hex().as_str());
            Error::new(ErrorKind::Damaged, text)
        })?;
        let tree = Arc::new(tree);
        let mut trees = self.trees.lock();
        trees.insert(0, (id, tree.clone()));
        let mut kept = 0;
        trees.retain(|(_, tree)| {
            let is_first = kept == 0;
            kept += tree.nodes.len().max(1);
            is_first || kept <= KEPT_NODES
        });
        Ok(tree)
    }

    /// What the object `id` has in it.
    pub(crate) fn contents(&self, id: &Id) -> Result<Contents> {
        let (tree, place) = match Named::parse(id)? {
            Named::Tree(id) => return Ok(Contents::Held(listing::encode(id, &*self.tree(id)?)?)),
            Named::Node(tree, place) => (tree, place),
        };
        let tree = self.tree(tree)?;
        match tree.nodes.get(place) {
            Some(Node { content: Some(content), .. }) => Ok(Contents::Blobs(content.clone())),
            Some(node) => Ok(Contents::Held(listing::link_target(node).to_vec())),
            None => {
                let text = format!("there is no object {id}: its tree has {} entries", tree.nodes.len());
                Err(Error::new(ErrorKind::NotFound, text))
            }
        }
    }
}

/// What encryption adds to a blob: a nonce and an authentication code.
const SEAL: u32 = 32;

/// Where a blob lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pack: rustic_core::Id,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// How many bytes it has when it is decrypted and decompressed.
    pub(crate) plain: u32,
}

/// Whether a blob of this id has these bytes.
pub(crate) fn is_hash_of(id: &BlobId, bytes: &[u8]) -> bool {
    let hash = digest::digest(&digest::SHA256, bytes);
    <[u8; 32]>::try_from(hash.as_ref()).is_ok_and(|hash| rustic_core::Id::new(hash) == **id)
}

impl Repository for ResticRepository {
    fn open_object(&self, id: &Id) -> Result<Box<dyn ObjectReader>> {
        Ok(match self.shared.contents(id)? {
            Contents::Held(bytes) => Box::new(Held::new(bytes)),
            Contents::Blobs(blobs) => Box::new(FileReader::new(self.shared.clone(), &blobs)?),
        })
    }

    fn read_scattered<'a>(
        &self,
        wanted: &mut dyn Iterator<Item = Wanted<'a>>,
        options: ScatterOptions<'_>,
    ) -> Result<ScatterTotals> {
        scatter::read(&self.shared, wanted, options)
    }

    fn new_object(&self, _: &ObjectWriteOptions) -> Result<Box<dyn ObjectWriter>> {
        Err(read_only("write an object"))
    }

    fn is_whole(&self, id: &Id) -> Result<bool> {
        match self.shared.contents(id) {
            Ok(Contents::Held(_)) => Ok(true),
            Ok(Contents::Blobs(blobs)) => Ok(blobs.iter().all(|blob| self.shared.place(blob).is_ok())),
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn concatenate(&self, _: &[Id]) -> Result<Id> {
        Err(read_only("join objects"))
    }

    fn manifest(&self, id: &Id) -> Result<Manifest> {
        self.snapshots()?.find(id.as_str())?.manifest()
    }

    fn find_manifests(&self, filter: &ManifestFilter) -> Result<Vec<ManifestMetadata>> {
        // There are no others than snapshots: do not read them all to find that out.
        let kind = filter.labels.get(TYPE_LABEL).map(String::as_str);
        if kind.is_some_and(|kind| kind != lifeboat_kopia::snapshot::SNAPSHOT_TYPE) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for snapshot in &self.snapshots()?.snapshots {
            let metadata = snapshot.manifest()?.metadata;
            if filter.labels.iter().all(|(name, value)| metadata.labels.get(name) == Some(value)) {
                found.push(metadata);
            }
        }
        Ok(found)
    }

    fn put_manifest(&self, _: BTreeMap<String, String>, _: &[u8]) -> Result<Id> {
        Err(read_only("save a manifest"))
    }

    fn delete_manifest(&self, _: &Id) -> Result<()> {
        Err(read_only("delete a manifest"))
    }

    /// Nothing was written, so nothing is left to do.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn interrupt_reads(&self) {
        self.shared.storage.interrupt();
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
