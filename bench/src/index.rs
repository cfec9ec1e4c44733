//! A repository with millions of contents: what opening it and looking contents up takes.

use crate::table::Table;
use anyhow::{Context, Result, ensure};
use lifeboat_blobs::{BlobId, BlobStore, FsOptions, FsStore, Payload, PutOptions};
use lifeboat_budget::Budget;
use lifeboat_index::{ContentId, IndexBuilder, IndexEntry, IndexVersion, PackName, Prefix};
use lifeboat_kopia::Environment;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_kopia::session::SessionId;
use lifeboat_testkit::cgroup::{Limited, run_limited};
use lifeboat_testkit::kopia::Kopia;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const PASSWORD: &str = "ten million";
/// What a compacted epoch looks like: one blob too large to be decrypted in a small process's memory.
const LARGE_BLOB: u64 = 4_000_000;
/// What many single backups look like.
const SMALL_BLOB: u64 = 500_000;
const CONTENTS_PER_PACK: u64 = 5000;
const LOOK_UPS: u64 = 200_000;
const TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Makes the repository, opens it twice under the limit and once with kopia, and prints one table.
pub fn run(contents: u64, limit_mib: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (repository, cache) = (folder.path().join("repository"), folder.path().join("cache"));
    let me = std::env::current_exe()?;
    let mut make = Command::new(&me);
    make.arg("make-index").arg(&repository).arg(contents.to_string());
    ensure!(make.status()?.success(), "the repository could not be made");
    let look_up = || {
        let mut command = Command::new(&me);
        command.arg("look-up").args([&repository, &cache]).args([contents, LOOK_UPS].map(|n| n.to_string()));
        run_limited(command, limit_mib << 20, TIME_LIMIT)
    };
    let mut table =
        Table::new(&["opening", "limit MiB", "seconds", "own MiB", "with page cache MiB", "outcome"]);
    let mut ours = Vec::new();
    for what in ["ours, first time", "ours, again"] {
        let started = Instant::now();
        let limited = look_up()?;
        add(&mut table, what, Some(limit_mib), started, &limited);
        ours.push(limited);
    }
    for limit in [None, Some(limit_mib)] {
        let kopia = Kopia::new(PASSWORD)?;
        let started = Instant::now();
        let path = repository.to_str().context("the folder's name is not valid UTF-8")?;
        // Connecting loads the index; asking for a content that is not there looks it up.
        let command = kopia.command(["repository", "connect", "filesystem", "--path", path]);
        let limited = run_limited(command, limit.map_or(16 << 30, |mib| mib << 20), TIME_LIMIT)?;
        add(&mut table, "kopia repository connect", limit, started, &limited);
        if limited.output.status.success() {
            let started = Instant::now();
            let command = kopia.command(["snapshot", "list", "--all"]);
            let limited = run_limited(command, limit.map_or(16 << 30, |mib| mib << 20), TIME_LIMIT)?;
            add(&mut table, "kopia snapshot list", limit, started, &limited);
        }
    }
    table.print();
    for limited in ours {
        let errors = String::from_utf8_lossy(&limited.output.stderr);
        ensure!(
            limited.output.status.success() && limited.oom_kills == 0,
            "ours failed under the limit: {errors}"
        );
    }
    Ok(())
}

fn add(table: &mut Table, what: &str, limit: Option<u64>, started: Instant, limited: &Limited) {
    let outcome = match (limited.output.status.success(), limited.oom_kills) {
        (true, _) => {
            String::from_utf8_lossy(&limited.output.stdout).lines().last().unwrap_or("ok").to_owned()
        }
        (false, 0) => "failed".to_owned(),
        (false, _) => "killed for want of memory".to_owned(),
    };
    table.row([
        what.to_owned(),
        limit.map_or("none".to_owned(), |mib| mib.to_string()),
        format!("{:.2}", started.elapsed().as_secs_f64()),
        (limited.peak_own_bytes >> 20).to_string(),
        (limited.peak_bytes >> 20).to_string(),
        outcome,
    ]);
}

/// Makes a repository whose index names `contents` contents in packs that do not exist.
pub fn make(path: &Path, contents: u64) -> Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let store: Arc<dyn BlobStore> = Arc::new(FsStore::create(FsOptions::new(path)).await?);
        let options = options(store.clone(), Budget::new(256 << 20));
        let repository = Repository::create(options, &CreateOptions::default(), InitialState::Kopia).await?;
        let session = SessionId::generate(&Environment::default())?;
        let mut start = 0;
        while start < contents {
            let wanted = if start == 0 { LARGE_BLOB } else { SMALL_BLOB };
            let end = contents.min(start + wanted);
            let mut builder = IndexBuilder::default();
            builder.extend((start..end).map(entry).collect::<Result<Vec<_>>>()?);
            let plain = builder.encode(IndexVersion::V2, &[])?;
            let sealed = repository.contents().sealer().seal_blob(&plain)?;
            let name = BlobId::new(sealed.name("xn0_", Some(&format!("{session}-c1"))))?;
            store.put(&name, Payload::from(sealed.bytes().clone()), &PutOptions::default()).await?;
            start = end;
        }
        Ok(repository.close().await?)
    })
}

fn entry(number: u64) -> Result<IndexEntry> {
    let pack = mix(number / CONTENTS_PER_PACK);
    Ok(IndexEntry {
        id: id(number)?,
        pack: PackName::from(format!("p{pack:016x}{pack:016x}-s0123456789abcdef147")),
        pack_offset: (number % CONTENTS_PER_PACK * 4096 + 32) as u32,
        packed_length: 4096,
        original_length: 4068,
        timestamp_seconds: 1_790_000_000,
        format_version: 3,
        compression: 0,
        encryption_key_id: 0,
        deleted: false,
    })
}

fn id(number: u64) -> Result<ContentId> {
    let hash = [mix(number).to_be_bytes(), mix(number ^ u64::MAX).to_be_bytes()].concat();
    Ok(ContentId::new(Prefix::NONE, &hash)?)
}

/// A different, evenly spread number for each number (splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn options(store: Arc<dyn BlobStore>, budget: Budget) -> OpenOptions {
    let identity = ClientIdentity { username: "bench".to_owned(), hostname: "bench".to_owned() };
    OpenOptions { budget, ..OpenOptions::new(store, Password::new(PASSWORD), identity) }
}

/// Opens the repository and looks contents up, half of which are there.
pub fn look_up(path: &Path, cache: &Path, contents: u64, count: u64) -> Result<()> {
    let runtime = Runtime::new()?;
    let started = Instant::now();
    let repository = runtime.block_on(async {
        let store = Arc::new(FsStore::open(FsOptions::new(path)).await?);
        let mut options = options(store, Budget::new(lifeboat_budget::default_bytes()));
        options.access = lifeboat_kopia::repo::Access::ReadOnly;
        options.cache_folder = Some(cache.to_path_buf());
        anyhow::Ok(Repository::open(options).await?)
    })?;
    let opened = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut found = 0;
    for round in 0..count {
        let there = mix(round) % contents;
        let asked = if round % 2 == 0 { there } else { contents + there };
        let location = repository.contents().lookup(&id(asked)?)?;
        ensure!(location.is_some() == (round % 2 == 0), "content {asked} was answered wrongly");
        found += u64::from(location.is_some());
    }
    let each = started.elapsed().as_secs_f64() / count as f64 * 1e6;
    println!("opened in {opened:.2} s, {count} look-ups, {found} found, {each:.1} µs each");
    Ok(())
}
