//! The Unified Repository Interface: what a data mover may ask of a backup repository, whatever engine is below.
//!
//! A [`RepositoryService`] creates, connects, opens and maintains repositories; an open [`Repository`] keeps two
//! kinds of data: **objects** (a file, a directory, a volume) and **manifests** (small labelled records, such as
//! snapshots). Movers always see whole objects; how an engine cuts, deduplicates, compresses and encrypts them is
//! its own affair. [`kopia`] is the engine in use; [`conformance`] is what any other engine would have to pass.
//!
//! All calls are synchronous, as the design asks: call them from threads that may block, never from async code.

#![forbid(unsafe_code)]

mod error;
mod options;
mod regions;
mod scatter;
mod traits;

pub mod conformance;
pub mod kopia;

pub use error::{Error, ErrorKind, Result};
pub use options::{
    AccessMode, BackupMode, DataType, ObjectWriteOptions, RepositoryOptions, Secret, StorageOptions,
};
pub use scatter::{Destination, ScatterOptions, ScatterTotals, Wanted};
pub use traits::{
    Features, Id, MaintenanceMode, MaintenanceOutcome, Manifest, ManifestFilter, ManifestMetadata,
    ObjectInBuffer, ObjectReader, ObjectWriter, Pieces, Readiness, RegionWriter, Repository,
    RepositoryService, WholeObject, WrittenBytes,
};
