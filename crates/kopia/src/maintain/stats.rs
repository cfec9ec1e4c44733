//! What Kopia (since 0.22) notes about a run of each task in the schedule.

use crate::gojson::{self, GoTime};
use crate::maintenance::RunExtra;
use crate::{Error, Result};
use serde::Serialize;
use serde_json::value::RawValue;

/// Statistics of a task, in the form in which Kopia reads them.
pub(super) trait Stats: Serialize {
    /// The name of the form.
    const KIND: &'static str;

    /// As the schedule holds them.
    fn extra(&self) -> Result<RunExtra> {
        let encode = || RawValue::from_string(gojson::to_string(self)?);
        let data =
            encode().map_err(|e| Error::Invalid(format!("cannot encode maintenance statistics: {e}")))?;
        Ok(RunExtra { kind: Self::KIND.to_owned(), data: Some(data), ..RunExtra::default() })
    }
}

macro_rules! stats {
    ($kind:literal, $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub(super) struct $name {
            $(pub(super) $field: $type),*
        }

        impl Stats for $name {
            const KIND: &'static str = $kind;
        }
    };
}

stats!(
    "snapshotGCStats",
    SnapshotGcStats {
        unreferenced_content_count: u32,
        unreferenced_content_size: u64,
        deleted_content_count: u32,
        deleted_content_size: u64,
        unreferenced_recent_content_count: u32,
        unreferenced_recent_content_size: u64,
        in_use_content_count: u32,
        in_use_content_size: u64,
        in_use_system_content_count: u32,
        in_use_system_content_size: u64,
        recovered_content_count: u32,
        recovered_content_size: u64,
    }
);

stats!(
    "rewriteContentsStats",
    RewriteContentsStats {
        to_rewrite_content_count: u64,
        to_rewrite_content_size: u64,
        rewritten_content_count: u64,
        rewritten_content_size: u64,
        retained_content_count: u64,
        retained_content_size: u64,
    }
);

stats!("compactIndexesStats", CompactIndexesStats { dropped_contents_deleted_before: GoTime });

stats!(
    "deleteUnreferencedPacksStats",
    DeleteUnreferencedPacksStats {
        unreferenced_pack_count: u32,
        unreferenced_total_size: u64,
        deleted_pack_count: u32,
        deleted_total_size: u64,
        retained_pack_count: u32,
        retained_total_size: u64,
    }
);

stats!(
    "compactSingleEpochStats",
    CompactSingleEpochStats {
        superseded_index_blob_count: u64,
        superseded_index_total_size: u64,
        epoch: u64,
    }
);

stats!("advanceEpochStats", AdvanceEpochStats { current_epoch: u64, was_advanced: bool });

stats!(
    "generateRangeCheckpointStats",
    GenerateRangeCheckpointStats { range_min_epoch: u64, range_max_epoch: u64 }
);

stats!(
    "cleanupMarkersStats",
    CleanupMarkersStats { deleted_epoch_marker_blob_count: u64, deleted_watermark_blob_count: u64 }
);

stats!(
    "cleanupSupersededIndexesStats",
    CleanupSupersededIndexesStats {
        max_replacement_time: GoTime,
        deleted_blob_count: u64,
        deleted_total_size: u64,
    }
);

stats!(
    "cleanupLogsStats",
    CleanupLogsStats {
        to_delete_blob_count: u64,
        to_delete_blob_size: u64,
        deleted_blob_count: u64,
        deleted_blob_size: u64,
        retained_blob_count: u64,
        retained_blob_size: u64,
    }
);

stats!(
    "extendBlobRetentionStats",
    ExtendBlobRetentionStats {
        to_extend_blob_count: u32,
        extended_blob_count: u32,
        retention_period: String,
    }
);

/// Kopia counts some things in 32 bits; a count that it could not read would cost it the whole schedule.
pub(super) fn count32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_written_as_kopia_reads_them() {
        let extra = AdvanceEpochStats { current_epoch: 3, was_advanced: true }.extra().unwrap();
        let json = r#"{"kind":"advanceEpochStats","data":{"currentEpoch":3,"wasAdvanced":true}}"#;
        assert_eq!(gojson::to_string(&extra).unwrap(), json);
        let extra = CompactIndexesStats::default().extra().unwrap();
        let json = r#"{"kind":"compactIndexesStats","data":{"droppedContentsDeletedBefore":"0001-01-01T00:00:00Z"}}"#;
        assert_eq!(gojson::to_string(&extra).unwrap(), json);
        let json = gojson::to_string(&SnapshotGcStats::default()).unwrap();
        assert!(json.contains(r#""unreferencedRecentContentCount":0"#), "{json}");
        assert_eq!(count32(u64::MAX), u32::MAX);
    }
}
