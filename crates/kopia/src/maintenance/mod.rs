//! What the repository knows about its maintenance: who runs it, how often, and when it ran. Not the tasks.

use crate::format::{Format, Secret};
use crate::gojson::{self, GoTime, Nanos, go_object};
use crate::manifest::{Labels, Manifest, ManifestStore, TYPE_LABEL};
use crate::{Environment, Error, Result};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use lifeboat_blobs::{BlobId, BlobStore};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// The blob with the schedule.
pub const SCHEDULE_BLOB: &str = "kopia.maintenance";
/// How many runs of each task the schedule remembers.
pub const MAX_RUNS: usize = 50;

const MANIFEST_TYPE: &str = "maintenance";
const KEY_PURPOSE: &str = "maintenance schedule";
const ADDITIONAL_DATA: &[u8] = b"maintenance";

go_object! {
    /// How often a kind of maintenance runs.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Cycle {
        /// Whether it runs at all.
        pub enabled: bool => "enabled",
        /// From one start to the next.
        pub interval: Nanos => "interval",
    }
}

go_object! {
    /// How many diagnostic logs are kept.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct LogRetention {
        /// Bytes.
        pub max_total_size: i64 => "maxTotalSize",
        /// Blobs.
        pub max_count: i64 => "maxCount",
        /// Age.
        pub max_age: Nanos => "maxAge",
    }
}

impl LogRetention {
    /// 1 GiB, 10 000 blobs, 30 days.
    pub fn kopia_default() -> Self {
        LogRetention {
            max_total_size: 1 << 30,
            max_count: 10_000,
            max_age: Nanos::from_hours(30 * 24),
            ..LogRetention::default()
        }
    }

    /// These limits, or the default ones if none is set.
    pub fn or_default(&self) -> Self {
        let unset = self.max_total_size == 0 && self.max_count == 0 && self.max_age.0 == 0;
        if unset { LogRetention::kopia_default() } else { self.clone() }
    }
}

go_object! {
    /// The parameters of maintenance, a manifest.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Params {
        /// The `user@host` that runs it; empty means nobody does.
        pub owner: String => "owner",
        /// The cheap part.
        pub quick: Cycle => "quick",
        /// All of it.
        pub full: Cycle => "full",
        /// How many logs are kept.
        pub log_retention: LogRetention => "logRetention",
        /// Whether object locks are extended.
        pub extend_object_locks: bool => "extendObjectLocks",
        /// How many listings run at once; 0 lets the program choose.
        pub list_parallelism: i64 => "listParallelism",
    }
}

impl Default for Params {
    /// Quick every hour, full every day, run by nobody.
    fn default() -> Self {
        let every = |hours| Cycle { enabled: true, interval: Nanos::from_hours(hours), ..Cycle::default() };
        Params {
            owner: String::new(),
            quick: every(1),
            full: every(24),
            log_retention: LogRetention::kopia_default(),
            extend_object_locks: false,
            list_parallelism: 0,
            unknown: Default::default(),
        }
    }
}

impl Params {
    fn labels() -> Labels {
        Labels::from([(TYPE_LABEL.to_owned(), MANIFEST_TYPE.to_owned())])
    }

    /// The parameters in the repository, or `None` if nobody has set any.
    pub async fn load(manifests: &ManifestStore) -> Result<Option<Params>> {
        let found = manifests.find(&Params::labels()).await?;
        // There should be one; of several that two clients wrote at once the latest counts.
        found.last().map(Manifest::parse).transpose()
    }

    /// Replaces the parameters in the repository.
    pub async fn save(&self, manifests: &ManifestStore) -> Result<()> {
        manifests.replace(Params::labels(), self).await.map(drop)
    }
}

/// The tasks that maintenance consists of, by the names under which their runs are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Task {
    SnapshotGc,
    QuickDeleteBlobs,
    FullDeleteBlobs,
    QuickRewriteContents,
    FullRewriteContents,
    FullDropDeletedContent,
    IndexCompaction,
    ExtendBlobRetentionTime,
    CleanupLogs,
    AdvanceEpoch,
    DeleteSupersededEpochIndexes,
    CleanupEpochMarkers,
    GenerateEpochRangeIndex,
    CompactSingleEpoch,
}

impl Task {
    /// The name in the schedule.
    pub fn name(self) -> &'static str {
        match self {
            Task::SnapshotGc => "snapshot-gc",
            Task::QuickDeleteBlobs => "quick-delete-blobs",
            Task::FullDeleteBlobs => "full-delete-blobs",
            Task::QuickRewriteContents => "quick-rewrite-contents",
            Task::FullRewriteContents => "full-rewrite-contents",
            Task::FullDropDeletedContent => "full-drop-deleted-content",
            Task::IndexCompaction => "index-compaction",
            Task::ExtendBlobRetentionTime => "extend-blob-retention-time",
            Task::CleanupLogs => "cleanup-logs",
            Task::AdvanceEpoch => "advance-epoch",
            Task::DeleteSupersededEpochIndexes => "delete-superseded-epoch-indexes",
            Task::CleanupEpochMarkers => "cleanup-epoch-markers",
            Task::GenerateEpochRangeIndex => "generate-epoch-range-index",
            Task::CompactSingleEpoch => "compact-single-epoch",
        }
    }
}

go_object! {
    /// What a task reports about a run (since Kopia 0.22).
    #[derive(Debug, Clone, Default)]
    pub struct RunExtra {
        /// Which statistics.
        pub kind: String => "kind" omitempty,
        /// The statistics.
        pub data: Option<Box<RawValue>> => "data" omitempty,
    }
}

go_object! {
    /// One run of a task.
    #[derive(Debug, Clone, Default)]
    pub struct Run {
        /// When it began.
        pub start: GoTime => "start",
        /// When it ended.
        pub end: GoTime => "end",
        /// Whether it did what it should.
        pub success: bool => "success" omitempty,
        /// What went wrong.
        pub error: String => "error" omitempty,
        /// What it reports.
        pub extra: Vec<RunExtra> => "extra" omitempty,
    }
}

go_object! {
    /// When maintenance is due, and what ran. Read and written as a whole; only the owner writes it.
    #[derive(Debug, Clone, Default)]
    pub struct Schedule {
        /// When the next full maintenance is due.
        pub next_full: GoTime => "nextFullMaintenance",
        /// When the next quick maintenance is due.
        pub next_quick: GoTime => "nextQuickMaintenance",
        /// By task, the newest run first.
        pub runs: Option<BTreeMap<String, Vec<Run>>> => "runs",
    }
}

impl Schedule {
    /// The runs of `task`, the newest first.
    pub fn runs_of(&self, task: Task) -> &[Run] {
        self.runs.as_ref().and_then(|runs| runs.get(task.name())).map_or(&[], Vec::as_slice)
    }

    /// Adds a run and forgets the oldest ones.
    pub fn report(&mut self, task: Task, run: Run) {
        let runs = self.runs.get_or_insert_default().entry(task.name().to_owned()).or_default();
        runs.insert(0, run);
        runs.truncate(MAX_RUNS);
    }

    /// Decrypts a schedule.
    pub fn open(key: &Secret, sealed: &[u8]) -> Result<Schedule> {
        let damaged =
            |reason: &str| Error::DamagedBlob { blob: SCHEDULE_BLOB.to_owned(), reason: reason.to_owned() };
        let (nonce, body) = sealed.split_first_chunk().ok_or_else(|| damaged("it is too short"))?;
        let mut body = body.to_vec();
        let plain = aead(key)?
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(ADDITIONAL_DATA), &mut body)
            .map_err(|_| damaged("it does not decrypt with the repository's key"))?;
        serde_json::from_slice(plain).map_err(|source| damaged(&source.to_string()))
    }

    /// Encrypts the schedule.
    pub fn seal(&self, key: &Secret, env: &Environment) -> Result<Vec<u8>> {
        let mut body = gojson::to_vec(self).map_err(|source| Error::Invalid(source.to_string()))?;
        let nonce = env.random_array::<NONCE_LEN>()?;
        aead(key)?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(ADDITIONAL_DATA),
                &mut body,
            )
            .map_err(|_| Error::Invalid("the maintenance schedule cannot be encrypted".to_owned()))?;
        Ok([&nonce, body.as_slice()].concat())
    }

    /// The schedule in `store`; an empty one if there is none.
    pub async fn load(store: &dyn BlobStore, format: &Format) -> Result<Schedule> {
        match store.get(&BlobId::new(SCHEDULE_BLOB)?).await {
            Ok(sealed) => Schedule::open(&format.purpose_key(KEY_PURPOSE)?, &sealed),
            Err(error) if error.is_not_found() => Ok(Schedule::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the schedule to `store`.
    pub async fn save(&self, store: &dyn BlobStore, format: &Format, env: &Environment) -> Result<()> {
        let id = BlobId::new(SCHEDULE_BLOB)?;
        let sealed = self.seal(&format.purpose_key(KEY_PURPOSE)?, env)?;
        Ok(store.put(&id, sealed.into(), &format.put_options(&id)?).await?)
    }
}

fn aead(key: &Secret) -> Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, key.expose());
    key.map(LessSafeKey::new)
        .map_err(|_| Error::Invalid("the key of the schedule has a wrong length".to_owned()))
}

#[cfg(test)]
mod tests;
