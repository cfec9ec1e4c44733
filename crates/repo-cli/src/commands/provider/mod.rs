//! `repository validate-provider`: whether a storage keeps the promises that repositories rely on.

mod load;

use crate::commands::parse_duration;
use crate::session::Session;
use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, PutMode, PutOptions};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longer than any block that a store would send by itself.
const LARGE: usize = 20 << 20;

/// How much goes on at once when that is checked.
#[derive(Debug, Args)]
pub struct ProviderArgs {
    /// How many connections to the storage are used
    #[arg(long, default_value_t = 5, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub num_storage_connections: u16,
    /// For how long blobs are written, read and listed at once; 0s for not at all
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub concurrency_test_duration: Duration,
    /// How many write blobs meanwhile
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    pub put_blob_workers: u16,
    /// How many read blobs
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    pub get_blob_workers: u16,
    /// How many ask for the sizes of blobs
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    pub get_metadata_workers: u16,
}

pub fn run(session: &Session, args: &ProviderArgs) -> Result<()> {
    let connection = session.connection()?;
    let open = || session.store(connection.storage()?, connection.throttling, false);
    let stores = (0..args.num_storage_connections).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let store = stores.first().context("no connection to the storage")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let prefix = format!("z-lifeboat-validate-{now:x}-");
    let outcome = session.wait(async {
        check(&**store, &prefix).await?;
        if !args.concurrency_test_duration.is_zero() {
            step("it stays so while much goes on at once");
            load::run(&stores, &prefix, now as u64, args).await?;
        }
        anyhow::Ok(())
    });
    // Also after a failure nothing is left behind.
    let removed = session.wait(clean_up(&**store, &prefix));
    outcome.with_context(|| format!("{} is not fit for repositories", store.describe()))?;
    removed.context("the blobs of the check could not be removed")?;
    println!("All checks passed: {} is fit for repositories.", store.describe());
    Ok(())
}

async fn clean_up(store: &dyn BlobStore, prefix: &str) -> Result<()> {
    let left: Vec<_> = store.list(prefix).try_collect().await?;
    for blob in left {
        store.delete(&blob.id).await?;
    }
    Ok(())
}

async fn check(store: &dyn BlobStore, prefix: &str) -> Result<()> {
    let id = |name: &str| BlobId::new(format!("{prefix}{name}"));
    let (small, large) = (id("small")?, id("large")?);

    step("what is not there is reported as missing");
    let missing = store.get(&small).await;
    ensure!(
        missing.is_err_and(|e| e.kind() == ErrorKind::NotFound),
        "a missing blob was not reported as missing"
    );
    ensure!(count(store, prefix).await? == 0, "a listing shows blobs that were never written");

    step("blobs are read as they were written, at once");
    store.put(&small, b"first".as_slice().into(), &PutOptions::default()).await?;
    ensure!(store.get(&small).await? == b"first".as_slice(), "a blob was read differently than written");
    ensure!(count(store, prefix).await? == 1, "a listing does not show a blob that was just written");

    step("blobs are replaced as a whole");
    store.put(&small, b"second".as_slice().into(), &PutOptions::default()).await?;
    ensure!(store.get(&small).await? == b"second".as_slice(), "a replaced blob was read in its old state");
    ensure!(store.head(&small).await?.size == 6, "a blob has another size than written");

    step("blobs are not replaced where that was not asked for");
    let only_new = PutOptions { mode: PutMode::CreateOnly, ..PutOptions::default() };
    match store.put(&small, b"third".as_slice().into(), &only_new).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("    (not offered by this storage)");
        }
        Err(_) => {}
        Ok(()) => anyhow::bail!("a blob was replaced although only a new one was to be written"),
    }
    ensure!(store.get(&small).await? == b"second".as_slice(), "a refused write has changed a blob");

    step("ranges of large blobs are read exactly");
    let data: Vec<u8> = (0..LARGE).map(|at| ((at * 31) >> 3) as u8).collect();
    store.put(&large, data.clone().into(), &PutOptions::default()).await?;
    for range in [0..1, 4095..4097, (LARGE - 1)..LARGE, 1_000_003..9_000_001] {
        let found = store.get_range(&large, range.start as u64..range.end as u64).await?;
        ensure!(found == data[range.clone()], "bytes {range:?} of a blob were read differently than written");
    }

    step("what was deleted is gone, and deleting it again is no error");
    for _ in 0..2 {
        store.delete(&small).await?;
    }
    let gone = store.get(&small).await;
    ensure!(gone.is_err_and(|e| e.kind() == ErrorKind::NotFound), "a deleted blob is still there");
    ensure!(count(store, prefix).await? == 1, "a listing shows a blob that was deleted");
    Ok(())
}

fn step(what: &str) {
    eprintln!("Checking that {what} ...");
}

async fn count(store: &dyn BlobStore, prefix: &str) -> Result<usize> {
    Ok(store.list(prefix).try_collect::<Vec<_>>().await?.len())
}
