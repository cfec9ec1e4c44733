//! The command line: Kopia's nouns, verbs and flags, as far as this tool has them.

use crate::commands::benchmark::BenchmarkCommand;
use crate::commands::blob::BlobCommand;
use crate::commands::cache::{CacheCommand, CacheSizes};
use crate::commands::client::{SetClientArgs, SetParametersArgs, ThrottleCommand, parse_limit};
use crate::commands::content::ContentCommand;
use crate::commands::diff::DiffArgs;
use crate::commands::find::FindArgs;
use crate::commands::index::IndexCommand;
use crate::commands::list::ListArgs;
use crate::commands::logs::LogsCommand;
use crate::commands::maintenance::MaintenanceCommand;
use crate::commands::manifest::ManifestCommand;
use crate::commands::mount::MountArgs;
use crate::commands::parse_duration;
use crate::commands::policy::PolicyCommand;
use crate::commands::provider::ProviderArgs;
use crate::commands::repair::{RepairArgs, VerifyArgs};
#[cfg(feature = "restic")]
use crate::commands::restic::ResticCommand;
use crate::commands::restore::RestoreArgs;
use crate::commands::sessions::SessionCommand;
use crate::commands::snapshot::SnapshotCommand;
use crate::commands::sync::SyncArgs;
use crate::commands::upgrade::UpgradeCommand;
use clap::{Args, Parser, Subcommand};
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
    /// Show no progress
    #[arg(long, global = true, overrides_with = "progress")]
    pub no_progress: bool,
    /// Show progress (the default)
    #[arg(long, global = true, hide = true, overrides_with = "no_progress")]
    pub progress: bool,
    /// Keep the password out of the desktop's keyring, as always
    #[arg(long, global = true, hide = true)]
    pub no_use_keyring: bool,
    /// The name under which this machine upgrades the repository
    #[arg(long, global = true, value_name = "NAME", env = "KOPIA_REPO_UPGRADE_OWNER_ID")]
    pub upgrade_owner_id: Option<String>,
    /// Fail at once, instead of waiting, if the repository is locked for an upgrade
    #[arg(long, global = true, env = "KOPIA_REPO_UPGRADE_NO_BLOCK", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub upgrade_no_block: bool,
    /// How much to say: error, warn, info, debug, trace
    #[arg(long, global = true, default_value = "warn", value_name = "LEVEL")]
    pub log_level: tracing::Level,
    /// How much to write into the file of --log-dir or --log-file
    #[arg(long, global = true, default_value = "debug", value_name = "LEVEL")]
    pub file_log_level: tracing::Level,
    /// Also write what happens into this file, which is made anew
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "log_dir")]
    pub log_file: Option<PathBuf>,
    /// Write no log, whatever the environment says
    #[arg(long, global = true, hide = true, conflicts_with = "log_file")]
    pub disable_file_logging: bool,
    /// Keep no log in the repository, as always
    #[arg(long, global = true, hide = true)]
    pub disable_content_log: bool,
    /// Also write what happens, in more detail, into a new file below this folder
    #[arg(long, global = true, value_name = "DIR", env = "KOPIA_LOG_DIR")]
    pub log_dir: Option<PathBuf>,
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
    /// List a directory of a snapshot
    #[command(name = "list", visible_alias = "ls")]
    List(ListArgs),
    /// Print a file of a snapshot, or any other object
    #[command(visible_alias = "cat")]
    Show {
        /// A file, as `snapshot/some/path`, or an object id
        object: String,
    },
    /// Find a file in all snapshots
    Find(FindArgs),
    /// See snapshots as a directory of this machine
    Mount(MountArgs),
    /// Compare two snapshots or directories of snapshots
    Diff(DiffArgs),
    /// Look at contents, and check them
    #[command(subcommand)]
    Content(ContentCommand),
    /// Look at the files of the repository
    #[command(subcommand)]
    Blob(BlobCommand),
    /// Look at the index of the repository, and recover it
    #[command(subcommand)]
    Index(IndexCommand),
    /// Look at manifests: snapshots, policies and settings as they are stored
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Free space, and keep the index small
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Look at local caches, change and clear them
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Look at the logs that clients keep in the repository
    #[command(subcommand, visible_alias = "log")]
    Logs(LogsCommand),
    /// See who is writing to the repository
    #[command(subcommand)]
    Session(SessionCommand),
    /// List and restore what restic backed up
    #[cfg(feature = "restic")]
    #[command(subcommand)]
    Restic(ResticCommand),
    /// Measure how fast this machine is
    #[command(subcommand)]
    Benchmark(BenchmarkCommand),
    /// Print a script that completes commands for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    Man {
        /// The folder, made if it does not exist
        folder: PathBuf,
    },
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
    Status(StatusArgs),
    /// Find every damage, and the snapshots and paths that it touches
    Verify(VerifyArgs),
    /// Do what can be done about damage, and say what cannot
    Repair(RepairArgs),
    /// Change how this machine uses the repository
    SetClient(SetClientArgs),
    /// Change the repository itself
    SetParameters(SetParametersArgs),
    /// Upgrade to the newest format version
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Look at and set how hard the storage may be used
    #[command(subcommand)]
    Throttle(ThrottleCommand),
    /// Copy the repository to another storage
    SyncTo(SyncArgs),
    /// Check that a storage keeps the promises that a repository relies on
    ValidateProvider(ProviderArgs),
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

/// What is shown of a connection.
#[derive(Debug, Clone, Copy, Args)]
pub struct StatusArgs {
    /// Also print a token to connect with from elsewhere; it holds the credentials of the storage
    #[arg(long, short = 't', conflicts_with = "json")]
    pub reconnect_token: bool,
    /// Also print a token that holds the password as well
    #[arg(long, short = 's', conflicts_with = "json")]
    pub reconnect_token_with_password: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// How a repository is created.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Where.
    #[command(subcommand)]
    pub to: Place,
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
    /// Do not connect to it
    #[arg(long, short, global = true)]
    pub create_only: bool,
    /// Format version 1, 2 or 3
    #[arg(long, global = true, default_value_t = 3)]
    pub format_version: u8,
    /// How the password becomes a key
    #[arg(long, global = true, default_value = "scrypt-65536-8-1", value_name = "ALGO")]
    pub format_block_key_derivation_algorithm: String,
    /// Lock what is written against deletion; the bucket must allow it
    #[arg(long, global = true, value_parser = ["governance", "compliance"], requires = "retention_period")]
    pub retention_mode: Option<String>,
    /// For how long
    #[arg(long, global = true, value_parser = parse_duration, value_name = "TIME", requires = "retention_mode")]
    pub retention_period: Option<Duration>,
    /// How this machine connects to it.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Which repository to connect to.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// Where.
    #[command(subcommand)]
    pub to: Place,
    /// How this machine connects to it.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// A storage, as flags describe it or as another connection does.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum Place {
    /// In a storage.
    #[command(flatten)]
    Storage(Storage),
    /// Where another connection leads
    FromConfig(FromConfigArgs),
}

/// Another connection.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct FromConfigArgs {
    /// Its connection file
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// A token that `repository status --reconnect-token` printed; safer in a file, where `ps` does not show it
    #[arg(long)]
    pub token: Option<String>,
    /// A file with a token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Read a token from the standard input
    #[arg(long)]
    pub token_stdin: bool,
}

/// How this machine connects to a repository.
#[derive(Debug, Args)]
pub struct ConnectionArgs {
    /// Folder for local caches
    #[arg(long, global = true, value_name = "DIR", env = "KOPIA_CACHE_DIRECTORY")]
    pub cache_directory: Option<PathBuf>,
    /// How much is cached.
    #[command(flatten)]
    pub cache: CacheSizes,
    /// Look for no newer release, as always
    #[arg(long, global = true, hide = true)]
    pub no_check_for_updates: bool,
    /// Take snapshots under this host name
    #[arg(long, global = true, value_name = "HOST")]
    pub override_hostname: Option<String>,
    /// Take snapshots under this user name
    #[arg(long, global = true, value_name = "USER")]
    pub override_username: Option<String>,
    /// Never write to the repository
    #[arg(long, global = true)]
    pub readonly: bool,
    /// Run the commands that policies name before and after backups; whoever may write policies may then run commands here
    #[arg(long, global = true)]
    pub enable_actions: bool,
    /// Free text about the repository
    #[arg(long, global = true)]
    pub description: Option<String>,
    /// Read no more than so many bytes a second
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_limit)]
    pub max_download_speed: Option<f64>,
    /// Write no more than so many bytes a second
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_limit)]
    pub max_upload_speed: Option<f64>,
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
        /// Permissions of files that are made, in octal
        #[arg(long, value_name = "MODE", default_value = "0600", value_parser = parse_mode)]
        file_mode: u32,
        /// Permissions of folders that are made, in octal
        #[arg(long, value_name = "MODE", default_value = "0700", value_parser = parse_mode)]
        dir_mode: u32,
        /// The number of the user whom files that are made belong to
        #[arg(long, value_name = "USER")]
        owner_uid: Option<u32>,
        /// The number of the group that files that are made belong to
        #[arg(long, value_name = "GROUP")]
        owner_gid: Option<u32>,
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
        /// Keep the key itself in the connection file, which only you can read
        #[arg(long, requires = "credentials_file")]
        embed_credentials: bool,
        /// Ask for no right to write
        #[arg(long)]
        read_only: bool,
    },
    /// In a container of Azure Blob Storage
    Azure(AzureArgs),
}

/// A container and how to reach it.
#[derive(Debug, Args)]
pub struct AzureArgs {
    /// The container
    #[arg(long)]
    pub container: String,
    /// What the names of all blobs start with
    #[arg(long)]
    pub prefix: Option<String>,
    /// The storage account
    #[arg(long, env = "AZURE_STORAGE_ACCOUNT")]
    pub storage_account: String,
    /// The account's key
    #[arg(long, env = "AZURE_STORAGE_KEY", hide_env_values = true)]
    pub storage_key: Option<String>,
    /// A shared access signature
    #[arg(long, env = "AZURE_STORAGE_SAS_TOKEN", hide_env_values = true)]
    pub sas_token: Option<String>,
    /// What follows the account in the name of the host
    #[arg(long, env = "AZURE_STORAGE_DOMAIN")]
    pub storage_domain: Option<String>,
    /// The tenant of a service principal or workload identity
    #[arg(long, env = "AZURE_TENANT_ID")]
    pub tenant_id: Option<String>,
    /// Its client id
    #[arg(long, env = "AZURE_CLIENT_ID")]
    pub client_id: Option<String>,
    /// Its secret
    #[arg(long, env = "AZURE_CLIENT_SECRET", hide_env_values = true)]
    pub client_secret: Option<String>,
    /// File with the token of a workload identity
    #[arg(long, env = "AZURE_FEDERATED_TOKEN_FILE")]
    pub azure_federated_token_file: Option<String>,
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
    /// The same certificate itself, in base64
    #[arg(long, env = "ROOT_CA_PEM_BASE64", value_name = "BASE64", conflicts_with = "root_ca_pem_path")]
    pub root_ca_pem_base64: Option<String>,
}

/// Where the quick start plays.
#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// A folder to be made; by default one in the temporary folder
    #[arg(long)]
    pub folder: Option<PathBuf>,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("permissions are an octal number up to 0777".to_owned()),
    }
}
