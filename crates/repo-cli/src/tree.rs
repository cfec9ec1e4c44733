//! Finding one's way in snapshots: from what people type to an entry, and from a directory to what is in it.

use crate::session::Session;
use crate::when::When;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::object::ObjectId;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{
    DIRECTORY_PREFIX, DirEntries, DirEntry, EntryType, GoMode, SnapshotList, SnapshotManifest,
};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_repository::{Id, ObjectReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The trees of an open repository.
pub struct Trees {
    /// The repository.
    pub repository: Repository,
    /// Its objects and manifests as the uploader sees them.
    pub interface: KopiaRepository,
    list: SnapshotList,
    /// `user@host` of this connection, for paths without.
    identity: (String, String),
}

impl Trees {
    /// Opens the repository for reading.
    pub fn open(session: &Session) -> Result<Trees> {
        let repository = session.open_for_reading()?;
        Trees::of(session, repository)
    }

    /// The trees of a repository that is open already.
    pub fn of(session: &Session, repository: Repository) -> Result<Trees> {
        let list = session.wait(repository.snapshots())?;
        let identity = repository.identity();
        let identity = (identity.username.clone(), identity.hostname.clone());
        Ok(Trees { interface: KopiaRepository::new(repository.clone()), repository, list, identity })
    }

    /// All snapshots that are understood, the oldest first.
    pub fn snapshots(&self) -> &[SnapshotManifest] {
        &self.list.snapshots
    }

    /// The snapshots with this id or this root object: usually one.
    pub fn snapshots_called(&self, id: &str) -> Result<Vec<SnapshotManifest>> {
        if let Some(damaged) = self.list.damaged.iter().find(|damaged| damaged.id.as_str() == id) {
            bail!("snapshot {id} cannot be used: {}", damaged.error);
        }
        let is_called = |s: &&SnapshotManifest| s.id.as_str() == id || s.root_object() == Some(id);
        let found: Vec<_> = self.snapshots().iter().filter(is_called).cloned().collect();
        if found.is_empty() {
            bail!(
                "there is no snapshot {id}; `lifeboat-repo snapshot list --all --manifest-id` shows their ids"
            );
        }
        Ok(found)
    }

    /// The entry that `text` names: a snapshot, a directory or an object by its id, or a path inside it
    /// (`id/some/path`); or a path of this machine, which stands for its latest snapshot.
    pub fn entry(&self, text: &str) -> Result<DirEntry> {
        self.entry_at(text, When::Latest)
    }

    /// The same, where a path of this machine stands for its snapshot of another time.
    pub fn entry_at(&self, text: &str, when: When) -> Result<DirEntry> {
        let (id, path) = text.split_once('/').unwrap_or((text, ""));
        match self.root(id)? {
            Some(root) => {
                let extras_are_known = knows_extras(&root);
                self.browser().lookup(root, id, path).map(|entry| as_root(entry, extras_are_known))
            }
            None => self.of_path(text, when),
        }
    }

    /// Whether `text` names something by an id, and not by a path of this machine.
    pub fn is_id(&self, text: &str) -> Result<bool> {
        Ok(self.root(text.split_once('/').map_or(text, |(id, _)| id))?.is_some())
    }

    /// Fails if several snapshots have the root object that `text` names, and do not say the same about it.
    pub fn check_consistent(&self, text: &str) -> Result<()> {
        let id = text.split_once('/').map_or(text, |(id, _)| id);
        let found = self.snapshots_called(id).unwrap_or_default();
        match found.windows(2).all(|pair| pair[0].root_entry == pair[1].root_entry) {
            true => Ok(()),
            false => bail!(
                "{} snapshots have the root {id}, with different attributes; name one of them by its own id",
                found.len()
            ),
        }
    }

    fn root(&self, id: &str) -> Result<Option<DirEntry>> {
        if let Ok(found) = self.snapshots_called(id) {
            let latest = found.into_iter().next_back().and_then(|snapshot| snapshot.root_entry);
            return latest.with_context(|| format!("snapshot {id} has no root")).map(Some);
        }
        if self.list.damaged.iter().any(|damaged| damaged.id.as_str() == id) {
            self.snapshots_called(id)?;
        }
        let Ok(object) = id.parse::<ObjectId>() else { return Ok(None) };
        // A manifest id looks like the id of a content, too: only what the index knows is an object.
        if self.repository.contents().lookup(&object.content())?.is_none() {
            return Ok(None);
        }
        let is_dir = object.content().prefix().byte() == DIRECTORY_PREFIX as u8;
        let (entry_type, mode) = match is_dir || id.starts_with("Ik") {
            true => (EntryType::Directory, 0o700),
            false => (EntryType::File, 0o600),
        };
        let mode = GoMode::from_unix(mode);
        Ok(Some(DirEntry { object: id.to_owned(), entry_type, mode, ..DirEntry::default() }))
    }

    /// The entry of a path of this machine in the complete snapshot of that time that has it.
    fn of_path(&self, text: &str, when: When) -> Result<DirEntry> {
        let unknown = || {
            format!(
                "there is no snapshot or object {text}; `lifeboat-repo snapshot list --all --manifest-id` shows ids"
            )
        };
        let path = std::path::absolute(text).with_context(unknown)?;
        let (user, host) = (&self.identity.0, &self.identity.1);
        let own =
            |s: &&SnapshotManifest| s.source.user_name == *user && s.source.host == *host && s.is_complete();
        let above = |s: &SnapshotManifest| path.strip_prefix(Path::new(&s.source.path)).is_ok();
        let wanted = |s: &&SnapshotManifest| match when {
            When::Before(moment) => s.start_time < moment,
            When::Latest | When::Oldest => true,
        };
        let mut found: Vec<_> =
            self.snapshots().iter().filter(own).filter(|s| above(s)).filter(wanted).collect();
        if when != When::Oldest {
            found.reverse();
        }
        for snapshot in found {
            let Some(root) = &snapshot.root_entry else { continue };
            let below = path.strip_prefix(&snapshot.source.path).unwrap_or(Path::new(""));
            if let Some(entry) = self.browser().below(root, below)? {
                return Ok(as_root(entry, knows_extras(root)));
            }
        }
        bail!(unknown())
    }

    /// The trees by themselves.
    pub fn browser(&self) -> Browser<'_> {
        Browser(&self.interface)
    }

    /// The entries of a directory as they come.
    pub fn children(&self, directory: &DirEntry) -> Result<DirEntries<Box<dyn ObjectReader>>> {
        self.browser().children(directory)
    }

    /// The bytes of an entry.
    pub fn read(&self, entry: &DirEntry) -> Result<Box<dyn ObjectReader>> {
        self.browser().read(entry)
    }
}

/// Whether an entry of the tree below `root` that says nothing about extras has none.
fn knows_extras(root: &DirEntry) -> bool {
    root.extras.as_ref().is_some_and(|extras| extras.recorded)
}

/// An entry that stands for itself, and says what else only the root of its snapshot does.
fn as_root(mut entry: DirEntry, extras_are_known: bool) -> DirEntry {
    if extras_are_known {
        entry.extras.get_or_insert_default().recorded = true;
    }
    entry
}

/// The trees of any repository, whoever found their roots.
#[derive(Clone, Copy)]
pub struct Browser<'a>(pub &'a dyn lifeboat_repository::Repository);

impl Browser<'_> {
    /// The entry that people mean by a path below `root`, which they call `id`.
    pub fn lookup(self, root: DirEntry, id: &str, path: &str) -> Result<DirEntry> {
        let mut entry = root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            entry = self
                .child(&entry, name.as_bytes())
                .with_context(|| format!("cannot look up {path:?} in {id}"))?
                .with_context(|| format!("there is no {path:?} in {id}: {name:?} is missing"))?;
        }
        Ok(entry)
    }

    /// The entry of a path below `root`, if there is one.
    pub fn below(self, root: &DirEntry, path: &Path) -> Result<Option<DirEntry>> {
        let mut entry = root.clone();
        for name in path.components() {
            match self.child(&entry, name.as_os_str().as_bytes())? {
                Some(child) => entry = child,
                None => return Ok(None),
            }
        }
        Ok(Some(entry))
    }

    /// The entries of a directory as they come.
    pub fn children(self, directory: &DirEntry) -> Result<DirEntries<Box<dyn ObjectReader>>> {
        Ok(DirEntries::new(directory.object.clone(), self.read(directory)?))
    }

    /// The bytes of an entry.
    pub fn read(self, entry: &DirEntry) -> Result<Box<dyn ObjectReader>> {
        let id = Id::new(entry.object.clone());
        self.0.open_object(&id).with_context(|| format!("unable to open object: {}", entry.object))
    }

    fn child(self, directory: &DirEntry, name: &[u8]) -> Result<Option<DirEntry>> {
        if !directory.is_dir() {
            return Ok(None);
        }
        for entry in self.children(directory)? {
            let entry = entry?;
            if entry.file_name() == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}
