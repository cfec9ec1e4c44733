//! Backup storage: blobs with names, kept in a folder or a bucket, behind one trait.
//!
//! [`BlobStore`] states what every store guarantees and the `conformance` suite (feature of that name) proves it on
//! each of them. Behaviour is added by wrapping a store ([`wrap`]), never by flags inside one.

#![forbid(unsafe_code)]

pub mod arrival;
pub mod azure;
pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod fs;
pub mod gcs;
mod memory;
mod rest;
pub mod s3;
mod store;
pub mod wrap;

pub use config::{OpenOptions, StoreConfig};
pub use error::{Error, ErrorKind, Operation, Result};
pub use fs::{FsOptions, FsStore, PlainFolder};
pub use memory::MemoryStore;
pub use rest::TlsOptions;
pub use store::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutMode, PutOptions, Retention, RetentionMode,
};
