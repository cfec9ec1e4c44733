//! The encrypted part of the format blob: how contents, indexes and objects are encoded, and with which keys.

use super::{RequiredFeature, Secret, UpgradeLock};
use crate::gojson::go_object;
use crate::{Error, Result};
use std::ops::RangeInclusive;

/// The pack size of a repository that does not say.
pub const DEFAULT_MAX_PACK_SIZE: u64 = 20 << 20;
/// The pack sizes that may be set.
pub const MAX_PACK_SIZES: RangeInclusive<u64> = 10 << 20..=120 << 20;
/// Offsets in the index have 30 bits; a format that asks for larger packs cannot be written.
const PACK_SIZE_LIMIT: u64 = 1 << 30;

const MINUTE: i64 = 60_000_000_000;
const HOUR: i64 = 60 * MINUTE;

go_object! {
    /// When index blobs are merged, and how long everybody waits for everybody else. Spans are nanoseconds.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EpochParameters {
        /// Whether the index is managed in epochs.
        pub enabled: bool => "Enabled",
        /// How long a client may rely on its view of the epochs.
        pub epoch_refresh_frequency: i64 => "EpochRefreshFrequency",
        /// Epochs between two range checkpoints.
        pub full_checkpoint_frequency: i64 => "FullCheckpointFrequency",
        /// How old a merged index must be before what it replaces is deleted.
        pub cleanup_safety_margin: i64 => "CleanupSafetyMargin",
        /// The shortest epoch.
        pub min_epoch_duration: i64 => "MinEpochDuration",
        /// An epoch with this many index blobs ends.
        pub epoch_advance_on_count_threshold: i64 => "EpochAdvanceOnCountThreshold",
        /// An epoch with this many bytes of index blobs ends.
        pub epoch_advance_on_total_size_bytes_threshold: i64 => "EpochAdvanceOnTotalSizeBytesThreshold",
        /// How many blobs are deleted at once.
        pub delete_parallelism: i64 => "DeleteParallelism",
    }
}

impl Default for EpochParameters {
    /// What Kopia sets for a new repository.
    fn default() -> Self {
        EpochParameters {
            enabled: true,
            epoch_refresh_frequency: 20 * MINUTE,
            full_checkpoint_frequency: 7,
            cleanup_safety_margin: 4 * HOUR,
            min_epoch_duration: 24 * HOUR,
            epoch_advance_on_count_threshold: 20,
            epoch_advance_on_total_size_bytes_threshold: 10 << 20,
            delete_parallelism: 4,
            unknown: Default::default(),
        }
    }
}

impl EpochParameters {
    /// No epochs: the legacy index.
    pub fn disabled() -> Self {
        EpochParameters {
            enabled: false,
            epoch_refresh_frequency: 0,
            full_checkpoint_frequency: 0,
            cleanup_safety_margin: 0,
            min_epoch_duration: 0,
            epoch_advance_on_count_threshold: 0,
            epoch_advance_on_total_size_bytes_threshold: 0,
            delete_parallelism: 0,
            unknown: Default::default(),
        }
    }

    /// Whether the rules that make epochs safe hold.
    pub fn validate(&self) -> Result<()> {
        let margin = self.epoch_refresh_frequency.saturating_mul(3);
        let rules = [
            (self.min_epoch_duration >= 10 * MINUTE, "an epoch must last at least 10 minutes"),
            (self.epoch_refresh_frequency > 0, "the epoch refresh frequency must be positive"),
            (margin <= self.min_epoch_duration, "an epoch must last three times the epoch refresh frequency"),
            (self.full_checkpoint_frequency > 0, "the full checkpoint frequency must be positive"),
            (
                margin <= self.cleanup_safety_margin,
                "the safety margin must be three times the refresh frequency",
            ),
            (self.epoch_advance_on_count_threshold >= 10, "an epoch must hold at least 10 index blobs"),
            (
                self.epoch_advance_on_total_size_bytes_threshold >= 1 << 20,
                "an epoch must hold at least 1 MiB of index blobs",
            ),
        ];
        match rules.iter().find(|(holds, _)| self.enabled && !holds) {
            Some((_, rule)) => Err(Error::Invalid(format!("invalid epoch parameters: {rule}"))),
            None => Ok(()),
        }
    }
}

go_object! {
    /// How a repository is encoded, and its keys. Printing it shows no key.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RepositoryFormat {
        /// The name of the hash of contents.
        pub hash: String => "hash" omitempty,
        /// The name of the cipher of contents.
        pub encryption: String => "encryption" omitempty,
        /// The name of the error correction, if any.
        pub ecc: String => "ecc" omitempty,
        /// How much larger error correction makes the data.
        pub ecc_overhead_percent: i64 => "eccOverheadPercent" omitempty,
        /// The key of the hash.
        pub hash_secret: Secret => "secret" omitempty,
        /// The key from which the keys of contents are derived.
        pub master_key: Secret => "masterKey" omitempty,
        /// The format version: 1, 2 or 3.
        pub version: i64 => "version" omitempty,
        /// At which size a pack is closed; 0 means the default. See [`max_pack_size`](Self::max_pack_size).
        pub max_pack_size_field: i64 => "maxPackSize" omitempty,
        /// The version of index blobs; 0 means 1. See [`index_version`](Self::index_version).
        pub index_version_field: i64 => "indexVersion" omitempty,
        /// The rules of epochs. See [`epochs`](Self::epochs).
        pub epoch_parameters: Option<EpochParameters> => "epochParameters",
        /// Whether the password can be changed; decides also from what purpose keys are derived and whether packs
        /// carry a copy of the format blob.
        pub enable_password_change: bool => "enablePasswordChange",
        /// The name of the splitter; empty means `FIXED`. See [`splitter`](Self::splitter).
        pub splitter_field: String => "splitter" omitempty,
        /// Set while the repository is being upgraded.
        pub upgrade_lock: Option<UpgradeLock> => "upgradeLock" omitempty,
        /// What a client must understand.
        pub required_features: Vec<RequiredFeature> => "requiredFeatures" omitempty,
    }
}

impl RepositoryFormat {
    /// At which size a pack is closed.
    pub fn max_pack_size(&self) -> u64 {
        match u64::try_from(self.max_pack_size_field) {
            Ok(0) | Err(_) => DEFAULT_MAX_PACK_SIZE,
            Ok(size) => size,
        }
    }

    /// The version of index blobs, 1 or 2.
    pub fn index_version(&self) -> u8 {
        if self.index_version_field == 2 { 2 } else { 1 }
    }

    /// The rules of epochs, or `None` if the repository has the legacy index.
    pub fn epochs(&self) -> Option<&EpochParameters> {
        self.epoch_parameters.as_ref().filter(|parameters| parameters.enabled)
    }

    /// The name of the splitter.
    pub fn splitter(&self) -> &str {
        if self.splitter_field.is_empty() { "FIXED" } else { &self.splitter_field }
    }

    /// Error correction: its name and its overhead in percent, if it is on.
    pub fn error_correction(&self) -> Option<(&str, u32)> {
        let overhead = u32::try_from(self.ecc_overhead_percent).ok().filter(|percent| *percent > 0)?;
        (!self.ecc.is_empty()).then_some((&self.ecc, overhead))
    }

    /// Whether a client of this version can work with the format at all. Names of algorithms are checked by those
    /// who know them.
    pub(super) fn check_readable(&self) -> Result<()> {
        if !(1..=super::MAX_VERSION).contains(&self.version) {
            return Err(Error::UnsupportedVersion { version: self.version });
        }
        let damaged = |reason: String| Error::DamagedBlob { blob: super::FORMAT_BLOB.to_owned(), reason };
        if !(0..=2).contains(&self.index_version_field) {
            return Err(damaged(format!("index version {} does not exist", self.index_version_field)));
        }
        if self.max_pack_size_field < 0 || self.max_pack_size() >= PACK_SIZE_LIMIT {
            return Err(damaged(format!("a pack size of {} is not possible", self.max_pack_size_field)));
        }
        Ok(())
    }

    /// Whether the parameters that can be changed later are within their limits.
    pub fn validate_parameters(&self) -> Result<()> {
        self.check_readable()?;
        if !MAX_PACK_SIZES.contains(&self.max_pack_size()) {
            let (low, high) = (MAX_PACK_SIZES.start() >> 20, MAX_PACK_SIZES.end() >> 20);
            return Err(Error::Invalid(format!("the pack size must be between {low} and {high} MiB")));
        }
        if self.error_correction().is_some_and(|(_, overhead)| overhead > 100) {
            return Err(Error::Invalid(
                "the overhead of error correction must be between 1 and 100 %".to_owned(),
            ));
        }
        self.epochs().map_or(Ok(()), EpochParameters::validate)
    }
}
