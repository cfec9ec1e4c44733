//! `cache`: info, set, clear, sync.

use crate::output::{self, bytes};
use crate::session::Session;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lifeboat_kopia::connection::{CachingOptions, Connection};
use std::path::{Path, PathBuf};

/// Verbs of `cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show where local caches are, and how large
    Info {
        /// Only print the folder
        #[arg(long)]
        path: bool,
    },
    /// Change what is cached, and where
    Set {
        /// Folder for local caches
        #[arg(long, value_name = "DIR")]
        cache_directory: Option<PathBuf>,
        /// How much is cached.
        #[command(flatten)]
        sizes: CacheSizes,
    },
    /// Remove local caches; the next command makes them again
    Clear,
    /// Bring the local copy of the index up to date
    Sync,
}

/// How much is cached. The index is always kept; these limits are for the caches of contents that `kopia` keeps for
/// the same connection file.
#[derive(Debug, Clone, Copy, Args)]
pub struct CacheSizes {
    /// MiB of contents that kopia may cache under this connection
    #[arg(long, global = true, value_name = "MIB")]
    pub content_cache_size_mb: Option<u32>,
    /// MiB of metadata that kopia may cache under this connection
    #[arg(long, global = true, value_name = "MIB")]
    pub metadata_cache_size_mb: Option<u32>,
}

impl CacheSizes {
    /// Writes what is given into the connection.
    pub fn apply(&self, caching: &mut CachingOptions) {
        let bytes = |mib: u32| i64::from(mib) << 20;
        if let Some(size) = self.content_cache_size_mb {
            caching.content_cache_size = bytes(size);
        }
        if let Some(size) = self.metadata_cache_size_mb {
            caching.metadata_cache_size = bytes(size);
        }
    }
}

pub fn run(session: &Session, command: &CacheCommand) -> Result<()> {
    match command {
        CacheCommand::Info { path } => info(session, *path),
        CacheCommand::Set { cache_directory, sizes } => set(session, cache_directory.as_deref(), sizes),
        CacheCommand::Clear => clear(session),
        CacheCommand::Sync => {
            let repository = session.open_for_reading()?;
            session.wait(repository.refresh())?;
            eprintln!("The local index is up to date.");
            Ok(())
        }
    }
}

fn folder(connection: &Connection) -> Result<PathBuf> {
    let caching = connection.caching.as_ref().filter(|caching| !caching.cache_directory.is_empty());
    let caching =
        caching.context("this connection caches nothing; `cache set --cache-directory` says where")?;
    Ok(PathBuf::from(&caching.cache_directory))
}

fn info(session: &Session, path_only: bool) -> Result<()> {
    let folder = folder(&session.connection()?)?;
    if path_only {
        return output::line(&folder.display().to_string());
    }
    let Ok(children) = std::fs::read_dir(&folder) else {
        return output::line(&format!("{}: empty", folder.display()));
    };
    for child in children {
        let path = child?.path();
        let (files, size) = weigh(&path)?;
        output::line(&format!("{}: {files} files {}", path.display(), bytes(size)))?;
    }
    Ok(())
}

/// How many files there are below, and their bytes.
fn weigh(path: &Path) -> Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Ok((1, found.len()));
    }
    let mut total = (0, 0);
    for child in std::fs::read_dir(path)? {
        let (files, size) = weigh(&child?.path())?;
        total = (total.0 + files, total.1 + size);
    }
    Ok(total)
}

fn set(session: &Session, folder: Option<&Path>, sizes: &CacheSizes) -> Result<()> {
    let mut connection = session.connection()?;
    let caching = connection.caching.get_or_insert_default();
    if let Some(folder) = folder {
        let folder = std::path::absolute(folder)?;
        caching.cache_directory = folder.to_str().context("the path is not valid UTF-8")?.to_owned();
    }
    sizes.apply(caching);
    Ok(connection.save(session.config_file())?)
}

fn clear(session: &Session) -> Result<()> {
    let connection = session.connection()?;
    let folder = folder(&connection)?;
    let repository = session.open_for_reading()?;
    let id = hex::encode(session.wait(repository.format()).unique_id());
    drop(repository);
    // Only what is ours: other programs keep caches in the same folder.
    let ours = folder.join(id);
    match std::fs::remove_dir_all(&ours) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", ours.display()))
        }
        _ => {
            eprintln!("Removed {}.", ours.display());
            Ok(())
        }
    }
}
