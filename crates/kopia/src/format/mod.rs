//! The format of a repository: the blob `kopia.repository` that says how everything else is encoded, and the keys.
//!
//! The outer JSON is readable by everybody and holds the ciphertext of the inner one, [`RepositoryFormat`], which
//! holds the keys of the repository. The password opens it; changing the password rewrites this blob only.

mod blob;
mod blobcfg;
mod handle;
mod inner;
mod keys;
mod lock;
mod recovery;
mod upgrade;

pub use blob::FormatBlob;
pub use blobcfg::BlobConfig;
pub use handle::{CreateOptions, Format};
pub use inner::{DEFAULT_MAX_PACK_SIZE, EpochParameters, MAX_PACK_SIZES, RepositoryFormat};
pub use keys::{Password, Secret};
pub(crate) use lock::delete_epochs;
pub use recovery::{RECOVERY_CHUNK_LEN, find_recovery_block, recovery_block};
pub use upgrade::{IfNotUnderstood, RequiredFeature, UpgradeLock};

/// The format blob.
pub const FORMAT_BLOB: &str = "kopia.repository";
/// The blob with the retention configuration.
pub const BLOBCFG_BLOB: &str = "kopia.blobcfg";
/// Prefix of the copies of the format blob as it was before an upgrade; the name of its owner follows.
pub const BACKUP_PREFIX: &str = "kopia.repository.backup.";
/// The newest format version.
pub const MAX_VERSION: i64 = 3;
/// How long a client may rely on a format blob that it has read, so that an upgrade can lock everybody out.
pub const FORMAT_BLOB_VALIDITY: std::time::Duration = std::time::Duration::from_secs(15 * 60);

#[cfg(test)]
mod tests;
