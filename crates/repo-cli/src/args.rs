//! The command line: Kopia's nouns, verbs and flags, as far as this tool has them.

use crate::commands::index::IndexCommand;
use crate::commands::maintenance::MaintenanceCommand;
use crate::commands::repair::{RepairArgs, VerifyArgs};
use clap::{Args, Parser, Subcommand};
use lifeboat_uploader::MAX_CHECKPOINT_INTERVAL;
use std::path::PathBuf;
use std::time::Duration;

/// Back up directories into Kopia-compatible repositories, and get them back.
#[derive(Debug, Parser)]
#[command(name = "lifeboat-repo", version, propagate_version = true)]
pub struct Cli {
    /// Settings of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Settings of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The connection file [env: LIFEBOAT_CONFIG_PATH or KOPIA_CONFIG_PATH]
    #[arg(long, global = true, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// The repository's password; safer in the environment, where `ps` does not show it
    /// [env: LIFEBOAT_PASSWORD or KOPIA_PASSWORD]
    #[arg(long, short, global = true)]
    pub password: Option<String>,
    /// Memory for buffers in MiB; by default a share of the container's limit
    #[arg(long, global = true, value_name = "MIB", env = "LIFEBOAT_MEMORY_BUDGET_MB")]
    pub memory_budget_mb: Option<u64>,
    /// How much to say: error, warn, info, debug, trace
    #[arg(long, global = true, default_value = "warn")]
    pub log_level: tracing::Level,
}

/// The nouns.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum Command {
    /// Create, connect to and look at repositories
    #[command(subcommand, visible_alias = "repo")]
    Repository(RepositoryCommand),
    /// Take, list, restore and check snapshots
    #[command(subcommand, visible_alias = "snap")]
    Snapshot(SnapshotCommand),
    /// Restore a snapshot (the same as `snapshot restore`)
    Restore(RestoreArgs),
    /// Look at and set policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Check the contents of the repository
    #[command(subcommand)]
    Content(ContentCommand),
    /// Recover the index of the repository
    #[command(subcommand)]
    Index(IndexCommand),
    /// Free space, and keep the index small
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// See it work: back up a sample directory, lose it and get it back
    Quickstart(QuickstartArgs),
}

/// Verbs of `repository`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum RepositoryCommand {
    /// Create a repository and connect to it
    Create(CreateArgs),
    /// Connect to a repository
    Connect(ConnectArgs),
    /// Forget the connection
    Disconnect,
    /// Show what the connection leads to
    Status(JsonArgs),
    /// Find every damage, and the snapshots and paths that it touches
    Verify(VerifyArgs),
    /// Do what can be done about damage, and say what cannot
    Repair(RepairArgs),
    /// Change the password
    ChangePassword {
        /// The new password [env: LIFEBOAT_NEW_PASSWORD or KOPIA_NEW_PASSWORD]
        #[arg(long)]
        new_password: Option<String>,
    },
}

/// Output for programs.
#[derive(Debug, Clone, Copy, Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How a repository is created.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Where.
    #[command(subcommand)]
    pub storage: Storage,
    /// Hash of contents
    #[arg(long, global = true, default_value = "BLAKE2B-256-128", value_name = "ALGO")]
    pub block_hash: String,
    /// Encryption of contents
    #[arg(long, global = true, default_value = "AES256-GCM-HMAC-SHA256", value_name = "ALGO")]
    pub encryption: String,
    /// How objects are cut into contents
    #[arg(long, global = true, default_value = "DYNAMIC-4M-BUZHASH", value_name = "ALGO")]
    pub object_splitter: String,
    /// Error correction
    #[arg(long, global = true, default_value = "REED-SOLOMON-CRC32", value_name = "ALGO")]
    pub ecc: String,
    /// Space for error correction in percent; 0 is none
    #[arg(long, global = true, default_value_t = 0)]
    pub ecc_overhead_percent: u32,
    /// Format version 1, 2 or 3
    #[arg(long, global = true, default_value_t = 3)]
    pub format_version: u8,
    /// How the password becomes a key
    #[arg(long, global = true, default_value = "scrypt-65536-8-1", value_name = "ALGO")]
    pub format_block_key_derivation_algorithm: String,
    /// How this machine connects to it.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Which repository to connect to.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// Where.
    #[command(subcommand)]
    pub storage: Storage,
    /// How this machine connects to it.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// How this machine connects to a repository.
#[derive(Debug, Args)]
pub struct ConnectionArgs {
    /// Folder for local caches
    #[arg(long, global = true, value_name = "DIR", env = "KOPIA_CACHE_DIRECTORY")]
    pub cache_directory: Option<PathBuf>,
    /// Take snapshots under this host name
    #[arg(long, global = true, value_name = "HOST")]
    pub override_hostname: Option<String>,
    /// Take snapshots under this user name
    #[arg(long, global = true, value_name = "USER")]
    pub override_username: Option<String>,
    /// Never write to the repository
    #[arg(long, global = true)]
    pub readonly: bool,
    /// Free text about the repository
    #[arg(long, global = true)]
    pub description: Option<String>,
    /// Do not keep the password beside the connection file
    #[arg(long, global = true)]
    pub no_persist_credentials: bool,
}

/// Where a repository is.
#[derive(Debug, Subcommand)]
pub enum Storage {
    /// In a folder
    Filesystem {
        /// The folder
        #[arg(long)]
        path: PathBuf,
        /// All files in one folder
        #[arg(long)]
        flat: bool,
    },
    /// In a bucket of Amazon S3 or a store that speaks its protocol
    S3(S3Args),
    /// In a bucket of Google Cloud Storage
    Gcs {
        /// The bucket
        #[arg(long)]
        bucket: String,
        /// What the names of all blobs start with
        #[arg(long)]
        prefix: Option<String>,
        /// File with the service account's key
        #[arg(long)]
        credentials_file: Option<PathBuf>,
    },
    /// In a container of Azure Blob Storage
    Azure {
        /// The container
        #[arg(long)]
        container: String,
        /// What the names of all blobs start with
        #[arg(long)]
        prefix: Option<String>,
        /// The storage account
        #[arg(long, env = "AZURE_STORAGE_ACCOUNT")]
        storage_account: String,
        /// The account's key
        #[arg(long, env = "AZURE_STORAGE_KEY", hide_env_values = true)]
        storage_key: Option<String>,
        /// A shared access signature
        #[arg(long, env = "AZURE_STORAGE_SAS_TOKEN", hide_env_values = true)]
        sas_token: Option<String>,
    },
}

/// A bucket and how to reach it.
#[derive(Debug, Args)]
pub struct S3Args {
    /// The bucket
    #[arg(long)]
    pub bucket: String,
    /// Host and port of the store
    #[arg(long, default_value = "s3.amazonaws.com")]
    pub endpoint: String,
    /// The region
    #[arg(long)]
    pub region: Option<String>,
    /// What the names of all blobs start with; end it with `/` to make it a folder
    #[arg(long)]
    pub prefix: Option<String>,
    /// The access key
    #[arg(long, env = "AWS_ACCESS_KEY_ID", hide_env_values = true)]
    pub access_key: Option<String>,
    /// The secret key
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    pub secret_access_key: Option<String>,
    /// The session token
    #[arg(long, env = "AWS_SESSION_TOKEN", hide_env_values = true)]
    pub session_token: Option<String>,
    /// Speak plain HTTP
    #[arg(long)]
    pub disable_tls: bool,
    /// Do not check the store's certificate
    #[arg(long)]
    pub disable_tls_verification: bool,
    /// File with the certificate of a private authority
    #[arg(long)]
    pub root_ca_pem_path: Option<PathBuf>,
}

/// Verbs of `snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Back up directories
    Create(CreateSnapshotArgs),
    /// List snapshots
    #[command(visible_alias = "ls")]
    List {
        /// Only of this directory
        source: Option<PathBuf>,
        /// Also of other users and hosts
        #[arg(long, short)]
        all: bool,
        /// Show manifest ids
        #[arg(long, short)]
        manifest_id: bool,
        /// Output for programs.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Restore a snapshot
    Restore(RestoreArgs),
    /// Check that snapshots can be restored
    Verify {
        /// Only these; all if none are named
        snapshots: Vec<String>,
        /// How many percent of the files are read and decrypted
        #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        verify_files_percent: u8,
    },
    /// Delete snapshots
    Delete {
        /// Their ids
        #[arg(required = true)]
        snapshots: Vec<String>,
        /// Really delete them
        #[arg(long)]
        delete: bool,
    },
}

/// What to back up, and how.
#[derive(Debug, Args)]
pub struct CreateSnapshotArgs {
    /// The directories
    #[arg(required = true)]
    pub sources: Vec<PathBuf>,
    /// Free text
    #[arg(long, default_value = "")]
    pub description: String,
    /// A tag, as name:value
    #[arg(long, value_name = "NAME:VALUE", value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
    /// A name under which the snapshot is protected from expiry
    #[arg(long, value_name = "NAME")]
    pub pin: Vec<String>,
    /// How many threads read; 0 is what the policy says, or one for each processor
    #[arg(long, default_value_t = 0)]
    pub parallel: usize,
    /// How often to save what is there so far, such as 10m; at most 45m
    #[arg(long, value_name = "TIME", default_value = "45m", value_parser = parse_interval)]
    pub checkpoint_interval: Duration,
    /// Fail with the first entry that cannot be read
    #[arg(long)]
    pub fail_fast: bool,
    /// Keep only what kopia keeps: no extended attributes, hard links, devices, pipes, sockets, holes, names that
    /// are not UTF-8
    #[arg(long)]
    pub no_extras: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// What to restore, and where.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The id of a snapshot, or of its root object, and optionally a path inside it: `id/some/path`
    pub snapshot: String,
    /// The directory, made if it does not exist; or the file, if the source is one
    pub target: PathBuf,
    /// The snapshot is one of a block volume; the target is a device or an image file. With --update only what differs
    /// is written
    #[arg(long, conflicts_with_all = [
        "include", "exclude", "delete_extra", "skip_existing", "keep_newer", "no_overwrite_files",
        "skip_owners", "skip_permissions", "skip_times", "skip_xattrs", "verify", "no_write_sparse_files",
    ])]
    pub block: bool,
    /// What to do with what is there.
    #[command(flatten)]
    pub existing: ExistingArgs,
    /// Restore only these paths of the source and what is below; `*`, `?` and `**` are wildcards
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,
    /// Do not restore these paths of the source
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Do not set owners
    #[arg(long)]
    pub skip_owners: bool,
    /// Do not set permissions
    #[arg(long)]
    pub skip_permissions: bool,
    /// Do not set times
    #[arg(long)]
    pub skip_times: bool,
    /// Do not set extended attributes, access control lists and capabilities
    #[arg(long)]
    pub skip_xattrs: bool,
    /// Go on where attributes must not be set (the default)
    #[arg(long, hide = true, overrides_with = "no_ignore_permission_errors")]
    pub ignore_permission_errors: bool,
    /// Fail where attributes must not be set
    #[arg(long)]
    pub no_ignore_permission_errors: bool,
    /// Leave holes in files for long runs of zeros (the default)
    #[arg(long, hide = true, overrides_with = "no_write_sparse_files")]
    pub write_sparse_files: bool,
    /// Write zeros instead of leaving holes
    #[arg(long)]
    pub no_write_sparse_files: bool,
    /// Succeed even if entries could not be restored
    #[arg(long)]
    pub ignore_errors: bool,
    /// Read the target back at the end and compare it with the snapshot
    #[arg(long, conflicts_with_all = ["skip_existing", "keep_newer"])]
    pub verify: bool,
    /// Wait at the end until everything is on disk
    #[arg(long)]
    pub flush_files: bool,
    /// How many threads write; 0 is one for each processor
    #[arg(long, default_value_t = 0)]
    pub parallel: usize,
}

/// What to do with what is there.
#[derive(Debug, Args)]
pub struct ExistingArgs {
    /// Replace files that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_files")]
    pub overwrite_files: bool,
    /// Fail for files that are there
    #[arg(long, conflicts_with_all = ["skip_existing", "keep_newer", "update"])]
    pub no_overwrite_files: bool,
    /// Replace symbolic links that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_symlinks")]
    pub overwrite_symlinks: bool,
    /// Fail for symbolic links that are there
    #[arg(long)]
    pub no_overwrite_symlinks: bool,
    /// Restore into directories that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_directories")]
    pub overwrite_directories: bool,
    /// Fail for directories that are there
    #[arg(long)]
    pub no_overwrite_directories: bool,
    /// Leave files and symbolic links that are there as they are
    #[arg(long, conflicts_with_all = ["keep_newer", "update"])]
    pub skip_existing: bool,
    /// Leave files and symbolic links that were modified later than those in the snapshot
    #[arg(long, conflicts_with = "update")]
    pub keep_newer: bool,
    /// Leave files of the same size and time, and write into others only what differs; also goes on with a restore
    /// that was interrupted
    #[arg(long, visible_alias = "resume")]
    pub update: bool,
    /// Remove what is there and not in the snapshot
    #[arg(long)]
    pub delete_extra: bool,
}

/// Verbs of `policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Change a policy
    Set {
        /// The directory it is for
        target: Option<PathBuf>,
        /// For everything
        #[arg(long, conflicts_with = "target")]
        global: bool,
        /// Compress files like this (`none` not to)
        #[arg(long, value_name = "ALGO")]
        compression: Option<String>,
        /// Compress directories like this
        #[arg(long, value_name = "ALGO")]
        metadata_compression: Option<String>,
    },
    /// Show the policy that is in force
    Show {
        /// The directory it is for
        target: Option<PathBuf>,
        /// The global one
        #[arg(long, conflicts_with = "target")]
        global: bool,
    },
}

/// Verbs of `content`.
#[derive(Debug, Subcommand)]
pub enum ContentCommand {
    /// Check that every content is where the index says
    Verify {
        /// Read and decrypt all of them
        #[arg(long)]
        full: bool,
    },
}

/// A tag of a user; the prefix tells it from labels of others, as in kopia.
fn parse_tag(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((format!("tag:{name}"), value.to_owned())),
        _ => Err("a tag is a name, a colon and a value".to_owned()),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text.parse().map_err(|e| format!("{e}"))?;
    match Duration::try_from(time) {
        Ok(interval) if !interval.is_zero() && interval <= MAX_CHECKPOINT_INTERVAL => Ok(interval),
        _ => Err("an interval of more than nothing and at most 45m is possible".to_owned()),
    }
}

/// Where the quick start plays.
#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// A folder to be made; by default one in the temporary folder
    #[arg(long)]
    pub folder: Option<PathBuf>,
}
