//! The merged view of all manifests, and the changes to it that are not written yet.

use super::codec::{self, Decoded, StoredEntry};
use super::{Labels, ManifestContents, ManifestId, TYPE_LABEL};
use crate::env::Environment;
use crate::gojson::{self, GoTime};
use crate::{Error, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use lifeboat_index::ContentId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Mutex;

/// From this many manifest contents on, [`ManifestStore::compact_if_needed`] joins them, as Kopia does.
pub const COMPACTION_THRESHOLD: usize = 16;

/// How many contents are read at once while loading.
const LOAD_PARALLELISM: usize = 8;

/// How often loading starts over because a content vanished under it (another client compacted).
const LOAD_ATTEMPTS: usize = 5;

/// A tombstone must be later than what it deletes, even if this machine's clock is behind the one that wrote it.
const TOMBSTONE_MARGIN: SignedDuration = SignedDuration::from_millis(1);

/// A manifest: its name, its labels and its document. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Manifest(Arc<StoredEntry>);

impl Manifest {
    /// Its name.
    pub fn id(&self) -> &ManifestId {
        &self.0.id
    }

    /// Its labels.
    pub fn labels(&self) -> &Labels {
        static NONE: Labels = Labels::new();
        self.0.labels.as_ref().unwrap_or(&NONE)
    }

    /// When it was written.
    pub fn modified(&self) -> Timestamp {
        self.0.modified.0
    }

    /// The document as JSON text.
    pub fn data(&self) -> &str {
        self.0.data.as_ref().map_or("null", |data| data.get())
    }

    /// The document as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.data()).map_err(|source| Error::DamagedManifest {
            id: self.id().to_string(),
            reason: source.to_string(),
        })
    }
}

/// A manifest content (or a part of one) that could not be read, and was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The content.
    pub content: ContentId,
    /// What is wrong with it.
    pub reason: String,
}

/// All manifests of a repository.
///
/// Changes ([`put`](Self::put), [`delete`](Self::delete), [`replace`](Self::replace)) are visible at once through
/// this value, and to others after [`flush`](Self::flush) and the index flush that follows it.
///
/// One damaged content does not hide the others: it is left out and reported by [`damage`](Self::damage).
#[derive(Debug)]
pub struct ManifestStore {
    contents: Arc<dyn ManifestContents>,
    env: Environment,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loaded: bool,
    /// The merge of all contents; tombstones stay, for a damaged content may hold what they delete.
    committed: BTreeMap<ManifestId, Arc<StoredEntry>>,
    /// Contents whose entries are all in `committed`.
    contents: Vec<ContentId>,
    damage: Vec<Damage>,
    pending: BTreeMap<ManifestId, Arc<StoredEntry>>,
}

impl ManifestStore {
    /// The manifests in `contents`; nothing is read before the first question.
    pub fn new(contents: Arc<dyn ManifestContents>, env: Environment) -> Self {
        ManifestStore { contents, env, state: Mutex::default() }
    }

    /// Reads all manifest contents again, as the index stands now. Changes that are not flushed stay.
    pub async fn reload(&self) -> Result<()> {
        self.state.lock().await.load(&*self.contents).await
    }

    /// What could not be read.
    pub async fn damage(&self) -> Result<Vec<Damage>> {
        Ok(self.loaded().await?.damage.clone())
    }

    /// The manifest `id`.
    pub async fn get(&self, id: &ManifestId) -> Result<Manifest> {
        let state = self.loaded().await?;
        let entry = state.entry(id).ok_or_else(|| Error::ManifestNotFound { id: id.to_string() })?;
        Ok(Manifest(entry.clone()))
    }

    /// All manifests that have every one of `labels`, the earliest `modified` first.
    pub async fn find(&self, labels: &Labels) -> Result<Vec<Manifest>> {
        let state = self.loaded().await?;
        let mut found: Vec<_> = state.live().filter(|entry| has_labels(entry, labels)).cloned().collect();
        found.sort_by(|a, b| (a.modified, &a.id).cmp(&(b.modified, &b.id)));
        Ok(found.into_iter().map(Manifest).collect())
    }

    /// Adds a manifest under a new random id.
    pub async fn put<T: ?Sized + Serialize>(&self, labels: Labels, payload: &T) -> Result<ManifestId> {
        let data = encode_payload(&labels, payload)?;
        let mut state = self.loaded().await?;
        self.put_locked(&mut state, labels, data, self.env.clock.now())
    }

    /// Removes a manifest; one that does not exist is no error.
    pub async fn delete(&self, id: &ManifestId) -> Result<()> {
        self.loaded().await?.delete(id, self.env.clock.now());
        Ok(())
    }

    /// Removes all manifests that have exactly or more than `labels` and adds one with them: how policies,
    /// maintenance parameters and users are changed.
    pub async fn replace<T: ?Sized + Serialize>(&self, labels: Labels, payload: &T) -> Result<ManifestId> {
        let data = encode_payload(&labels, payload)?;
        let mut state = self.loaded().await?;
        let mut now = self.env.clock.now();
        let old: Vec<_> = state.live().filter(|e| has_labels(e, &labels)).map(|e| e.id.clone()).collect();
        for id in old {
            now = now.max(state.delete(&id, now));
        }
        self.put_locked(&mut state, labels, data, now)
    }

    /// Writes all changes into one new content. On failure they stay and can be flushed again.
    ///
    /// They are safe once the layer of contents has flushed its index.
    pub async fn flush(&self) -> Result<Option<ContentId>> {
        let mut state = self.state.lock().await;
        if state.pending.is_empty() {
            return Ok(None);
        }
        let entries: Vec<_> = state.pending.values().map(|entry| &**entry).collect();
        let id = self.contents.write(codec::encode(&entries)?.into(), &[]).await?;
        for (_, entry) in std::mem::take(&mut state.pending) {
            state.merge(entry);
        }
        if !state.contents.contains(&id) {
            state.contents.push(id);
        }
        Ok(Some(id))
    }

    /// Joins all manifest contents into one if there are [`COMPACTION_THRESHOLD`] or more; returns whether it did.
    ///
    /// Call it with a fresh index only, before a session of writing: it reads the manifests again, for what it
    /// writes from an old view could bring back a manifest that another client deleted and compacted meanwhile.
    pub async fn compact_if_needed(&self) -> Result<bool> {
        let mut state = self.state.lock().await;
        state.load(&*self.contents).await?;
        if state.contents.len() < COMPACTION_THRESHOLD {
            return Ok(false);
        }
        state.compact(&*self.contents).await?;
        Ok(true)
    }

    async fn loaded(&self) -> Result<tokio::sync::MutexGuard<'_, State>> {
        let mut state = self.state.lock().await;
        if !state.loaded {
            state.load(&*self.contents).await?;
        }
        Ok(state)
    }

    fn put_locked(
        &self,
        state: &mut State,
        labels: Labels,
        data: Box<RawValue>,
        modified: Timestamp,
    ) -> Result<ManifestId> {
        let id = ManifestId(hex::encode(self.env.random_array::<16>()?));
        let entry = StoredEntry {
            id: id.clone(),
            labels: Some(labels),
            modified: GoTime(modified),
            data: Some(data),
            ..StoredEntry::default()
        };
        state.pending.insert(id.clone(), Arc::new(entry));
        Ok(id)
    }
}

impl State {
    /// Own changes win over what is committed.
    fn entry(&self, id: &ManifestId) -> Option<&Arc<StoredEntry>> {
        self.pending.get(id).or_else(|| self.committed.get(id)).filter(|entry| !entry.deleted)
    }

    fn live(&self) -> impl Iterator<Item = &Arc<StoredEntry>> {
        let committed = self.committed.iter().filter(|(id, _)| !self.pending.contains_key(*id));
        committed.chain(&self.pending).map(|(_, entry)| entry).filter(|entry| !entry.deleted)
    }

    /// Buffers a tombstone and returns its time.
    fn delete(&mut self, id: &ManifestId, now: Timestamp) -> Timestamp {
        let Some(entry) = self.entry(id) else { return now };
        let after = entry.modified.0.checked_add(TOMBSTONE_MARGIN).unwrap_or(Timestamp::MAX);
        let modified = now.max(after);
        if self.pending.contains_key(id) && !self.committed.contains_key(id) {
            // Nobody has seen it: no tombstone is needed.
            self.pending.remove(id);
            return modified;
        }
        let tombstone = StoredEntry {
            id: id.clone(),
            modified: GoTime(modified),
            deleted: true,
            ..StoredEntry::default()
        };
        self.pending.insert(id.clone(), Arc::new(tombstone));
        modified
    }

    fn merge(&mut self, entry: Arc<StoredEntry>) {
        match self.committed.get(&entry.id) {
            Some(old) if old.modified >= entry.modified => {}
            _ => drop(self.committed.insert(entry.id.clone(), entry)),
        }
    }

    async fn load(&mut self, contents: &dyn ManifestContents) -> Result<()> {
        let mut attempt = 1;
        let loaded = loop {
            let ids = contents.list().await?;
            let loaded: Vec<(ContentId, Loaded)> = stream::iter(ids)
                .map(|id| async move { Ok::<_, Error>((id, load_content(contents, &id).await?)) })
                .buffer_unordered(LOAD_PARALLELISM)
                .try_collect()
                .await?;
            let vanished = loaded.iter().any(|(_, content)| matches!(content, Loaded::Vanished));
            if !vanished || attempt == LOAD_ATTEMPTS {
                break loaded;
            }
            attempt += 1;
        };
        self.committed.clear();
        self.contents.clear();
        self.damage.clear();
        for (id, content) in loaded {
            self.add_content(id, content);
        }
        self.loaded = true;
        Ok(())
    }

    fn add_content(&mut self, id: ContentId, content: Loaded) {
        let mut damage = match content {
            Loaded::Vanished => vec!["it is listed in the index but cannot be found".to_owned()],
            Loaded::Unreadable(reason) => vec![reason],
            Loaded::Content(decoded) => {
                for entry in decoded.entries {
                    self.merge(Arc::new(entry));
                }
                decoded.damage
            }
        };
        if damage.is_empty() {
            self.contents.push(id);
        }
        for reason in damage.drain(..) {
            tracing::warn!(content = %id, reason, "a manifest content is damaged; what it held is left out");
            self.damage.push(Damage { content: id, reason });
        }
    }

    /// Writes everything into one content and deletes the ones it came from. Damaged contents stay as they are, and
    /// as long as there are any, so do the tombstones: the damaged content may hold what they delete.
    async fn compact(&mut self, contents: &dyn ManifestContents) -> Result<()> {
        if self.damage.is_empty() {
            self.committed.retain(|_, entry| !entry.deleted);
        }
        let entries: Vec<_> = self.committed.values().map(|entry| &**entry).collect();
        let joined = contents.write(codec::encode(&entries)?.into(), &self.contents).await?;
        self.contents = vec![joined];
        Ok(())
    }
}

/// What became of a content while loading.
enum Loaded {
    Content(Decoded),
    Vanished,
    Unreadable(String),
}

/// Reads one content. Damage is a result, not an error; what may pass (the storage) is an error.
async fn load_content(contents: &dyn ManifestContents, id: &ContentId) -> Result<Loaded> {
    let data = match contents.read(id).await {
        Ok(data) => data,
        Err(Error::ContentNotFound { .. }) => return Ok(Loaded::Vanished),
        Err(
            error @ (Error::DamagedContent { .. } | Error::DamagedBlob { .. } | Error::MissingBlob { .. }),
        ) => {
            return Ok(Loaded::Unreadable(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    Ok(codec::decode(&data).map_or_else(Loaded::Unreadable, Loaded::Content))
}

fn has_labels(entry: &StoredEntry, wanted: &Labels) -> bool {
    let labels = entry.labels.as_ref();
    wanted.iter().all(|(name, value)| labels.and_then(|labels| labels.get(name)) == Some(value))
}

fn encode_payload<T: ?Sized + Serialize>(labels: &Labels, payload: &T) -> Result<Box<RawValue>> {
    if labels.get(TYPE_LABEL).is_none_or(String::is_empty) {
        return Err(Error::Invalid("a manifest needs a label \"type\"".to_owned()));
    }
    let encode = || RawValue::from_string(gojson::to_string(payload)?);
    encode().map_err(|source| Error::Invalid(format!("the manifest cannot be encoded: {source}")))
}
