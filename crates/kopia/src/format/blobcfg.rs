//! The blob `kopia.blobcfg`: for how long the storage shall refuse to delete what is written.

use crate::gojson::{Nanos, go_object};
use crate::{Error, Result};
use lifeboat_blobs::{BlobId, PutOptions, Retention, RetentionMode};

/// The shortest retention.
const MIN_PERIOD: Nanos = Nanos::from_hours(24);
/// Blobs with these prefixes are locked; session markers, logs and the maintenance schedule are not.
const LOCKED_PREFIXES: [&str; 6] = ["n", "x", super::FORMAT_BLOB, super::BLOBCFG_BLOB, "p", "q"];

go_object! {
    /// Object-lock retention of the repository; empty means none.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct BlobConfig {
        /// `GOVERNANCE`, `COMPLIANCE`, or Azure's `Unlocked`, `Locked`.
        pub retention_mode: String => "retentionMode" omitempty,
        /// How long.
        pub retention_period: Nanos => "retentionPeriod" omitempty,
    }
}

impl BlobConfig {
    /// A configuration with `retention`.
    pub fn new(retention: Option<Retention>) -> Self {
        let Some(Retention { mode, period }) = retention else { return BlobConfig::default() };
        let mode = match mode {
            RetentionMode::Governance => "GOVERNANCE",
            RetentionMode::Compliance => "COMPLIANCE",
        };
        BlobConfig {
            retention_mode: mode.to_owned(),
            retention_period: period.into(),
            ..BlobConfig::default()
        }
    }

    /// The lock that blobs get, if any.
    pub fn retention(&self) -> Result<Option<Retention>> {
        let mode = match self.retention_mode.as_str() {
            "" if self.retention_period.0 == 0 => return Ok(None),
            "GOVERNANCE" | "Unlocked" => RetentionMode::Governance,
            "COMPLIANCE" | "Locked" => RetentionMode::Compliance,
            other => {
                return Err(Error::Invalid(format!(
                    "the retention mode {other:?} of the repository is not known"
                )));
            }
        };
        if self.retention_period < MIN_PERIOD {
            return Err(Error::Invalid(
                "the retention period of the repository is shorter than 24 hours".to_owned(),
            ));
        }
        Ok(Some(Retention { mode, period: self.retention_period.to_duration() }))
    }

    /// How `blob` has to be put.
    pub fn put_options(&self, blob: &BlobId) -> Result<PutOptions> {
        let locked = LOCKED_PREFIXES.iter().any(|prefix| blob.as_str().starts_with(prefix));
        let retention = if locked { self.retention()? } else { None };
        Ok(PutOptions { retention, ..PutOptions::default() })
    }
}
