//! `repository sync-to`: a copy of the repository in another storage.

use super::repository;
use crate::args::Place;
use crate::commands::client::parse_limit;
use crate::output::{bytes, note};
use crate::progress::State;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use lifeboat_blobs::config::Limits;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, ErrorKind, Payload, PutOptions};
use lifeboat_kopia::format::FORMAT_BLOB;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the copy is, and how it is made.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Where.
    #[command(subcommand)]
    pub to: Place,
    /// Delete what is there and not in this repository
    #[arg(long, global = true)]
    pub delete: bool,
    /// Copy only what is not there at all; without it, also blobs that differ in size or are older are copied
    #[arg(long, global = true)]
    pub no_update: bool,
    /// Say what would be done, and change nothing
    #[arg(long, short = 'n', global = true)]
    pub dry_run: bool,
    /// How many blobs are copied at once; each is in memory meanwhile
    #[arg(long, global = true, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub parallel: u16,
    /// Fail unless there is a copy already
    #[arg(long, global = true)]
    pub must_exist: bool,
    /// Give the copies the times of the blobs; only a folder can
    #[arg(long, global = true)]
    pub times: bool,
    /// Read no more than so many bytes a second from the copy
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_limit)]
    pub max_download_speed: Option<f64>,
    /// Write no more than so many bytes a second to the copy
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_limit)]
    pub max_upload_speed: Option<f64>,
}

/// What is to be done.
#[derive(Debug, Default)]
struct Plan {
    copied: Vec<BlobMetadata>,
    deleted: Vec<BlobId>,
}

pub fn run(session: &Session, args: &SyncArgs) -> Result<()> {
    let connection = session.connection()?;
    let from = session.store(connection.storage()?, connection.throttling, false)?;
    let ((to, _), _) = repository::place(&args.to, None)?;
    let limits = Limits {
        max_download_speed_bytes_per_second: args.max_download_speed.unwrap_or(0.0),
        max_upload_speed_bytes_per_second: args.max_upload_speed.unwrap_or(0.0),
        ..Limits::default()
    };
    let to = session.store(&to, Some(limits), !args.dry_run && !args.must_exist)?;
    session.wait(check_same(&*from, &*to, args.must_exist))?;
    eprintln!("Looking for changes ...");
    let plan = session.wait(plan(&*from, &*to, args))?;
    let total: u64 = plan.copied.iter().map(|blob| blob.size).sum();
    let summary =
        format!("{} blobs ({}) to copy, {} to delete", plan.copied.len(), bytes(total), plan.deleted.len());
    if args.dry_run {
        println!("{summary}.");
        return Ok(());
    }
    let done = AtomicU64::new(0);
    let state = || {
        let done = done.load(Ordering::Relaxed);
        State { text: format!("{summary}: {} copied", bytes(done)), done, total, ..State::default() }
    };
    let copied =
        session.display().during(state, || session.wait(carry_out(&*from, &*to, args, &plan, &done)));
    copied?;
    println!("Copied {} blobs ({}), deleted {}.", plan.copied.len(), bytes(total), plan.deleted.len());
    Ok(())
}

/// Two repositories must not be mixed: the target is empty, or has the same format blob.
async fn check_same(from: &dyn BlobStore, to: &dyn BlobStore, must_exist: bool) -> Result<()> {
    let id = BlobId::new(FORMAT_BLOB)?;
    let ours = from.get(&id).await.context("cannot read the format of this repository")?;
    match to.get(&id).await {
        Ok(theirs) if unique_id(&theirs) == unique_id(&ours) => Ok(()),
        Ok(_) => bail!("{} holds another repository; choose an empty place", to.describe()),
        Err(error) if error.kind() == ErrorKind::NotFound && must_exist => {
            bail!("{} holds no copy yet; leave out --must-exist to make one", to.describe())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("cannot read the format of the copy"),
    }
}

/// The id of the repository that a format blob is of. The rest of it changes with the password.
fn unique_id(format: &[u8]) -> Option<String> {
    let format: serde_json::Value = serde_json::from_slice(format).ok()?;
    format.get("uniqueID")?.as_str().map(str::to_owned)
}

async fn plan(from: &dyn BlobStore, to: &dyn BlobStore, args: &SyncArgs) -> Result<Plan> {
    let mut there: HashMap<BlobId, BlobMetadata> =
        to.list("").map_ok(|blob| (blob.id.clone(), blob)).try_collect().await?;
    let mut plan = Plan::default();
    let mut listing = from.list("");
    while let Some(blob) = listing.try_next().await? {
        let is_there = match there.remove(&blob.id) {
            None => false,
            Some(_) if args.no_update => true,
            Some(copy) => copy.size == blob.size && copy.modified >= blob.modified,
        };
        if !is_there {
            plan.copied.push(blob);
        }
    }
    // What refers to others comes after them, and the format last: an unfinished copy is not taken for a whole one.
    plan.copied.sort_by_key(|blob| match blob.id.as_str().as_bytes().first() {
        _ if blob.id.as_str() == FORMAT_BLOB => 3,
        Some(b'p' | b'q') => 0,
        Some(b'x' | b'n') => 2,
        _ => 1,
    });
    if args.delete {
        plan.deleted = there.into_keys().collect();
    }
    Ok(plan)
}

async fn carry_out(
    from: &dyn BlobStore,
    to: &dyn BlobStore,
    args: &SyncArgs,
    plan: &Plan,
    done: &AtomicU64,
) -> Result<()> {
    let keeps_times = &AtomicBool::new(args.times);
    let copy = |blob: &BlobMetadata| {
        let blob = blob.clone();
        async move {
            match from.get(&blob.id).await {
                Ok(bytes) => put(to, &blob, bytes, keeps_times).await?,
                // Somebody maintains the repository meanwhile; what names the blob is gone, too.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(anyhow::Error::from(error)),
            }
            done.fetch_add(blob.size, Ordering::Relaxed);
            Ok(())
        }
    };
    let is_format = |blob: &&BlobMetadata| blob.id.as_str() == FORMAT_BLOB;
    let (last, rest): (Vec<_>, Vec<_>) = plan.copied.iter().partition(is_format);
    let parallel = usize::from(args.parallel);
    stream::iter(rest.into_iter().map(copy)).buffered(parallel).try_collect::<Vec<()>>().await?;
    for blob in last {
        copy(blob).await?;
    }
    for id in &plan.deleted {
        to.delete(id).await?;
    }
    Ok(())
}

/// Writes a blob with its time, unless the store turns out not to keep times.
async fn put(
    to: &dyn BlobStore,
    blob: &BlobMetadata,
    bytes: impl Into<Payload> + Clone,
    keeps_times: &AtomicBool,
) -> Result<()> {
    let timed = PutOptions { modified: Some(blob.modified), ..PutOptions::default() };
    if keeps_times.load(Ordering::Relaxed) {
        match to.put(&blob.id, bytes.clone().into(), &timed).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                if keeps_times.swap(false, Ordering::Relaxed) {
                    note(&format!(
                        "{} cannot keep the times of blobs; the copies get their own",
                        to.describe()
                    ));
                }
            }
            outcome => return Ok(outcome?),
        }
    }
    Ok(to.put(&blob.id, bytes.into(), &PutOptions::default()).await?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_known_by_its_id_alone() {
        let before = br#"{"uniqueID":"abc=","encryptedBlockFormat":"1"}"#;
        let after = br#"{"uniqueID":"abc=","encryptedBlockFormat":"2"}"#;
        assert_eq!(unique_id(before).unwrap(), unique_id(after).unwrap());
        assert_eq!(unique_id(b"garbage"), None);
    }
}
