//! `velero.io/v1`: backups, restores and what they are made of.

mod backup;
mod backup_repository;
mod hooks;
mod locations;
mod pod_volume_backup;
mod pod_volume_restore;
mod requests;
mod restore;
mod schedule;
mod selection;

pub use backup::{
    Backup, BackupMetadata, BackupPhase, BackupProgress, BackupSpec, BackupStatus, HookStatus,
    UploaderConfigForBackup,
};
pub use backup_repository::{
    BackupRepository, BackupRepositoryPhase, BackupRepositorySpec, BackupRepositoryStatus, MaintenanceResult,
    RecentMaintenance,
};
pub use hooks::{
    BackupHooks, BackupResourceHook, BackupResourceHookSpec, ExecHook, ExecRestoreHook, HookErrorMode,
    InitRestoreHook, RestoreHooks, RestoreResourceHook, RestoreResourceHookSpec,
};
pub use locations::{
    AccessMode, BackupStorageLocation, BackupStorageLocationSpec, BackupStorageLocationStatus, LocationPhase,
    ObjectStorage, VolumeSnapshotLocation, VolumeSnapshotLocationSpec, VolumeSnapshotLocationStatus,
};
pub use pod_volume_backup::{PodVolumeBackup, PodVolumeBackupSpec, PodVolumeBackupStatus, UploaderType};
pub use pod_volume_restore::{PodVolumeRestore, PodVolumeRestoreSpec, PodVolumeRestoreStatus};
pub use requests::{
    DeleteBackupRequest, DeleteBackupRequestPhase, DeleteBackupRequestSpec, DeleteBackupRequestStatus,
    DownloadRequest, DownloadRequestSpec, DownloadRequestStatus, DownloadTarget, DownloadTargetKind,
    PluginInfo, RequestPhase, ServerStatusRequest, ServerStatusRequestSpec, ServerStatusRequestStatus,
};
pub use restore::{
    Restore, RestorePhase, RestoreProgress, RestoreSpec, RestoreStatus, RestoreStatusSpec,
    UploaderConfigForRestore,
};
pub use schedule::{Schedule, SchedulePhase, ScheduleSpec, ScheduleStatus};
pub use selection::Selection;
