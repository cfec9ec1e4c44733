//! The tasks `full-delete-blobs` and `quick-delete-blobs`: packs and session markers that nothing names any more leave
//! the store. This is the only place where data is taken away for good.

use super::locks::Locks;
use super::report::{Amount, Obstacle, Obstacles, Waiting};
use super::stats::{DeleteUnreferencedPacksStats, count32};
use super::{Done, Result, Session};
use crate::session::{MARKER_PREFIX, SessionId, SessionMarker};
use crate::sort::{RunWriter, Scratch, Sorted};
use crate::worker::blocking;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, ErrorKind};
use lifeboat_index::{PackUsage, Snapshot};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many listings and deletions are under way at once, unless the repository's parameters say otherwise.
const PARALLEL: usize = 16;
/// Blobs that are this much younger than the start are as old as it: clocks do not tick evenly.
const CUTOFF_SLACK: SignedDuration = SignedDuration::from_secs(1);
/// So many packs are looked up singly if a listing does not have them; more are not needed to know that it is wrong.
const MAX_LOOKED_UP: usize = 20_000;
/// The tail of a listed blob: its size and its time in nanoseconds.
const TAIL: usize = 8 + 16;
/// Session markers are small; a larger one is none.
const MAX_MARKER: u64 = 1 << 20;

/// What a full deletion looks at. Names have a hexadecimal digit in the second place, by which they are listed side
/// by side.
pub(super) const ALL_KINDS: [&str; 3] = ["p", "q", MARKER_PREFIX];
/// What a quick deletion looks at.
pub(super) const METADATA_ONLY: [&str; 1] = ["q"];

/// What the join of blobs and index found.
#[derive(Debug)]
struct Survey {
    /// What may go; the tails are those of the listing.
    doomed: Sorted,
    unreferenced: Amount,
    retained: Amount,
    /// When the last of the retained ones may go.
    release: Timestamp,
    /// What could go but for its lock.
    locked: Amount,
    /// When the last of these locks ends.
    unlocked: Timestamp,
    /// Packs of living contents that were not listed, and markers of sessions that were not listed at first.
    unlisted: Vec<String>,
}

/// Decides by age and session what may go.
#[derive(Debug, Clone)]
struct Rules {
    kinds: &'static [&'static str],
    cutoff: Timestamp,
    min_age: SignedDuration,
    session_expiration: SignedDuration,
    /// Sessions that may be alive, and when they last gave a sign of it.
    sessions: Arc<HashMap<SessionId, Timestamp>>,
    locks: Locks,
}

impl Rules {
    /// From when on a blob that nothing names may go.
    fn release(&self, name: &str, modified: Timestamp) -> Timestamp {
        let later = |time: Timestamp, by| time.saturating_add(by).unwrap_or(Timestamp::MAX);
        let by_age = later(modified, self.min_age);
        let session = SessionId::of_blob(name).and_then(|session| self.sessions.get(&session).copied());
        session.map_or(by_age, |sign| by_age.max(later(sign, self.session_expiration)))
    }

    /// Whether the session of a marker is among those that were found, if it is one.
    fn knows_session_of(&self, name: &str) -> bool {
        let session = SessionId::of_blob(name).filter(|_| name.starts_with(MARKER_PREFIX));
        session.is_none_or(|session| self.sessions.contains_key(&session))
    }
}

impl Session {
    /// Deletes what nothing names, of the blobs with these prefixes.
    pub(super) async fn delete_blobs(&mut self, kinds: &'static [&'static str]) -> Result<Done> {
        // The order makes it safe beside writers. A writer puts its marker, its packs, the index that names them,
        // and then removes the marker. So a pack that was listed belongs to a session whose marker was seen before,
        // or is named by the index that is loaded after, or was written since this run began.
        let sessions = Arc::new(self.sessions().await?);
        let listed = self.list(kinds).await?;
        self.load_index().await?;
        let rules = Rules {
            kinds,
            cutoff: self.start.saturating_add(CUTOFF_SLACK).unwrap_or(Timestamp::MAX),
            min_age: self.safety.min_pack_age,
            session_expiration: self.safety.session_expiration,
            sessions,
            locks: self.locks()?,
        };
        let survey = match self.lists_settled_packs(&listed).await? {
            true => Survey::of_settled(&self.scratch),
            false => self.survey_packs(listed, rules).await?,
        };
        let mut obstacles = self.check_unlisted(survey.unlisted).await?;
        obstacles.extend(self.check_index());
        self.stop_at(obstacles)?;
        let release = self.next_full_after(survey.release);
        self.report.wait(Waiting::UnreferencedBlobs, survey.retained, release);
        let unlocked = self.next_full_after(survey.unlocked);
        self.report.wait(Waiting::LockedBlobs, survey.locked, unlocked);
        let mut stats = DeleteUnreferencedPacksStats {
            unreferenced_pack_count: count32(survey.unreferenced.count),
            unreferenced_total_size: survey.unreferenced.bytes,
            retained_pack_count: count32(survey.retained.count + survey.locked.count),
            retained_total_size: survey.retained.bytes + survey.locked.bytes,
            ..DeleteUnreferencedPacksStats::default()
        };
        let mut deleted = survey.unreferenced;
        if !self.options.dry_run && deleted.count > 0 {
            self.ledger.fence(&self.repository).await?;
            deleted = self.delete_doomed(survey.doomed).await?;
        }
        (stats.deleted_pack_count, stats.deleted_total_size) = (count32(deleted.count), deleted.bytes);
        self.report.reclaimed.count += deleted.count;
        self.report.reclaimed.bytes += deleted.bytes;
        let locked = match survey.locked.count {
            0 => String::new(),
            _ => format!(", locked: {}", survey.locked),
        };
        Done::with(&stats, format!("unused blobs deleted: {deleted}, kept back: {}{locked}", survey.retained))
    }

    /// Deletes blobs of the index that nothing needs any more, but for those that are locked; returns how much it was.
    pub(super) async fn delete_replaced(
        &mut self,
        blobs: &[BlobMetadata],
        parallel: usize,
    ) -> Result<Amount> {
        let locks = self.locks()?;
        let (mut held, mut unlocked, mut free) = (Amount::default(), Timestamp::MIN, Vec::new());
        for blob in blobs {
            let lock = locks.of(blob.id.as_str(), blob.modified);
            match lock <= self.start {
                true => free.push(blob.clone()),
                false => {
                    held.add(blob.size);
                    unlocked = unlocked.max(lock);
                }
            }
        }
        let (deleted, refused) = delete_all(&**self.repository.store(), free, parallel).await?;
        if refused.count > 0 {
            unlocked = unlocked.max(locks.latest(self.start));
        }
        let held = Amount { count: held.count + refused.count, bytes: held.bytes + refused.bytes };
        let unlocked = self.next_full_after(unlocked);
        self.report.wait(Waiting::LockedBlobs, held, unlocked);
        self.report.reclaimed.count += deleted.count;
        self.report.reclaimed.bytes += deleted.bytes;
        Ok(deleted)
    }

    /// The time of the newest blob: the store's clock is at least there.
    pub(super) async fn newest_blob(&self) -> Result<Timestamp> {
        let times = self.repository.store().list("").map_ok(|blob| blob.modified);
        Ok(times.try_fold(Timestamp::MIN, |newest, time| async move { Ok(newest.max(time)) }).await?)
    }

    fn list_parallelism(&self) -> usize {
        usize::try_from(self.params.list_parallelism).ok().filter(|count| *count > 0).unwrap_or(PARALLEL)
    }

    /// The sessions that have a marker, and when each last gave a sign of life. A marker that cannot be read counts
    /// as one: its session may be alive.
    async fn sessions(&self) -> Result<HashMap<SessionId, Timestamp>> {
        let store = self.repository.store();
        let sealer = self.repository.contents().sealer();
        let mut signs: HashMap<SessionId, Timestamp> = HashMap::new();
        let mut markers = store
            .list(MARKER_PREFIX)
            .map_ok(|blob| {
                async move {
                    let bytes = match blob.size <= MAX_MARKER {
                        true => store.get(&blob.id).await.map(Some),
                        false => Ok(None),
                    };
                    match bytes {
                        Err(error) if error.is_not_found() => Ok(None),
                        bytes => Ok(Some((blob, bytes?))),
                    }
                }
                .boxed()
            })
            .try_buffer_unordered(self.options.parallel.max(1));
        while let Some(marker) = markers.try_next().await? {
            let Some((blob, bytes)) = marker else { continue };
            let plain = bytes.and_then(|bytes| sealer.open_blob(blob.id.as_str(), &bytes).ok());
            let parsed = plain.and_then(|plain| serde_json::from_slice::<SessionMarker>(&plain).ok());
            let sign = parsed.map_or(blob.modified, |marker| marker.checkpoint_time.max(blob.modified));
            if let Some(session) = SessionId::of_blob(blob.id.as_str()) {
                let known = signs.entry(session).or_insert(sign);
                *known = sign.max(*known);
            }
        }
        Ok(signs)
    }

    /// Lists all blobs of these kinds.
    async fn list(&self, kinds: &[&str]) -> Result<Sorted> {
        let sorter = Mutex::new(self.scratch.sorter(TAIL));
        let store = self.repository.store();
        let prefixes = kinds.iter().flat_map(|kind| (0..16).map(move |digit| format!("{kind}{digit:x}")));
        stream::iter(prefixes)
            .map(Ok::<_, crate::Error>)
            .try_for_each_concurrent(self.list_parallelism(), |prefix| {
                let sorter = &sorter;
                async move {
                    let mut blobs = store.list(&prefix);
                    while let Some(blob) = blobs.try_next().await? {
                        // Once in a million blobs this writes some megabytes to a local file.
                        sorter.lock().push(blob.id.as_str().as_bytes(), &tail(&blob))?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await?;
        Ok(blocking(move || sorter.into_inner().finish()).await??)
    }

    async fn survey_packs(&self, listed: Sorted, rules: Rules) -> Result<Survey> {
        let index = self.repository.contents().snapshot();
        let scratch = self.scratch.clone();
        Ok(blocking(move || Survey::take(&index, &listed, &rules, &scratch)).await??)
    }

    /// Packs that the index names and the listing does not have: they are gone, or the listing is wrong, or they
    /// were written after it. The same goes for markers that only one of two listings has.
    async fn check_unlisted(&self, unlisted: Vec<String>) -> Result<Obstacles> {
        let store = self.repository.store();
        let start = self.start;
        let looked_up = stream::iter(unlisted)
            .map(|pack| {
                async move {
                    match store.head(&BlobId::new(&pack)?).await {
                        Ok(blob) if blob.modified >= start || !is_listable(&pack) => Ok(None),
                        Ok(_) => Ok(Some(Obstacle::IncompleteListing { blob: pack })),
                        // A session that has ended takes its marker along.
                        Err(error) if error.is_not_found() && pack.starts_with(MARKER_PREFIX) => Ok(None),
                        Err(error) if error.is_not_found() => Ok(Some(Obstacle::MissingPack { pack })),
                        Err(error) => Err(crate::Error::from(error)),
                    }
                }
                .boxed()
            })
            .buffer_unordered(self.list_parallelism())
            .try_filter_map(|found| async move { Ok(found) });
        let mut obstacles = Obstacles::default();
        let found: Vec<Obstacle> = looked_up.try_collect().await?;
        found.into_iter().for_each(|obstacle| obstacles.add(obstacle));
        Ok(obstacles)
    }

    /// Deletes the blobs. Those under a lock stay; a failure ends the task when the others are through.
    async fn delete_doomed(&mut self, doomed: Sorted) -> Result<Amount> {
        let store = self.repository.store();
        let mut read = doomed.read()?;
        let (mut deleted, mut locked, mut failed) = (Amount::default(), Amount::default(), None);
        loop {
            let mut batch = Vec::new();
            while batch.len() < 1000 && read.advance()? {
                let name =
                    std::str::from_utf8(read.key()).map_err(|e| crate::Error::Worker(e.to_string()))?;
                batch.push((BlobId::new(name)?, size(read.tail())));
            }
            if batch.is_empty() {
                break;
            }
            let mut outcomes = stream::iter(batch)
                .map(|(id, size)| async move { (store.delete(&id).await, size) }.boxed())
                .buffer_unordered(self.list_parallelism());
            while let Some((outcome, size)) = outcomes.next().await {
                match outcome {
                    Ok(()) => deleted.add(size),
                    Err(error) if error.kind() == ErrorKind::Locked => locked.add(size),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        let unlocked = self.next_full_after(self.locks()?.latest(self.start));
        self.report.wait(Waiting::LockedBlobs, locked, unlocked);
        failed.map_or(Ok(deleted), |error| Err(error.into()))
    }
}

impl Survey {
    /// What there is to be found where exactly those packs are listed that are in use.
    fn of_settled(scratch: &Scratch) -> Survey {
        Survey {
            doomed: Sorted::empty(scratch, TAIL),
            unreferenced: Amount::default(),
            retained: Amount::default(),
            release: Timestamp::MIN,
            locked: Amount::default(),
            unlocked: Timestamp::MIN,
            unlisted: Vec::new(),
        }
    }

    /// Goes through the listed blobs and the packs of the index side by side.
    fn take(index: &Snapshot, listed: &Sorted, rules: &Rules, scratch: &Scratch) -> crate::Result<Survey> {
        let packs = index.pack_names()?.count() as u64;
        let _memory = scratch.budget.reserve((packs * 64).min(scratch.budget.total() / 8))?;
        let mut out = RunWriter::create(scratch, TAIL)?;
        let (mut unreferenced, mut retained, mut unlisted) =
            (Amount::default(), Amount::default(), Vec::new());
        let mut locked = Amount::default();
        let (mut release, mut unlocked) = (Timestamp::MIN, Timestamp::MIN);
        let mut blobs = listed.read()?;
        let mut listed_any = blobs.advance()?;
        let mut usages = index.pack_usage()?.peekable();
        loop {
            let usage = usages.next_if(|usage| match usage {
                Ok(usage) => !listed_any || usage.pack.as_str().as_bytes() <= blobs.key(),
                Err(_) => true,
            });
            let usage = usage.transpose()?;
            let is_listed = |usage: &PackUsage| listed_any && usage.pack.as_str().as_bytes() == blobs.key();
            match usage {
                Some(usage) if is_listed(&usage) => {
                    if usage.live_contents + usage.deleted_contents > 0 {
                        listed_any = blobs.advance()?;
                    }
                    // A pack that only superseded entries name is named by nothing: the blob comes round again.
                }
                Some(usage) => {
                    let of_kind = rules.kinds.iter().any(|kind| usage.pack.as_str().starts_with(kind));
                    if usage.live_contents > 0 && of_kind && unlisted.len() < MAX_LOOKED_UP {
                        unlisted.push(usage.pack.to_string());
                    }
                }
                None if listed_any => {
                    let (name, size) = (String::from_utf8_lossy(blobs.key()), size(blobs.tail()));
                    let written = modified(blobs.tail());
                    let (free, lock) = (rules.release(&name, written), rules.locks.of(&name, written));
                    if !rules.knows_session_of(&name) && unlisted.len() < MAX_LOOKED_UP {
                        unlisted.push(name.to_string());
                    }
                    if free > rules.cutoff {
                        retained.add(size);
                        release = release.max(free);
                    } else if lock > rules.cutoff {
                        locked.add(size);
                        unlocked = unlocked.max(lock);
                    } else {
                        unreferenced.add(size);
                        out.push(blobs.key(), blobs.tail())?;
                    }
                    listed_any = blobs.advance()?;
                }
                None => break,
            }
        }
        let mut doomed = Sorted::empty(scratch, TAIL);
        doomed.add(out.finish()?)?;
        Ok(Survey { doomed, unreferenced, retained, release, locked, unlocked, unlisted })
    }
}

/// Whether a listing by the second character of the name would show the blob.
fn is_listable(name: &str) -> bool {
    name.as_bytes().get(1).is_some_and(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn tail(blob: &BlobMetadata) -> [u8; TAIL] {
    let mut tail = [0; TAIL];
    tail[..8].copy_from_slice(&blob.size.to_be_bytes());
    tail[8..].copy_from_slice(&blob.modified.as_nanosecond().to_be_bytes());
    tail
}

fn size(tail: &[u8]) -> u64 {
    tail.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn modified(tail: &[u8]) -> Timestamp {
    let nanos = tail.last_chunk().map_or(0, |bytes| i128::from_be_bytes(*bytes));
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

/// Deletes blobs side by side; returns how much that was, and how much is under a lock and stays.
async fn delete_all(
    store: &dyn BlobStore,
    blobs: Vec<BlobMetadata>,
    parallel: usize,
) -> lifeboat_blobs::Result<(Amount, Amount)> {
    stream::iter(blobs)
        .map(|blob| {
            async move {
                match store.delete(&blob.id).await {
                    Ok(()) => Ok((blob.size, true)),
                    Err(error) if error.kind() == ErrorKind::Locked => Ok((blob.size, false)),
                    Err(error) => Err(error),
                }
            }
            .boxed()
        })
        .buffer_unordered(parallel.max(1))
        .try_fold(
            (Amount::default(), Amount::default()),
            |(mut deleted, mut locked), (size, is_gone)| async move {
                if is_gone { &mut deleted } else { &mut locked }.add(size);
                Ok((deleted, locked))
            },
        )
        .await
}
