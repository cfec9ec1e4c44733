//! The CPU kernels of the Kopia format: keyed hashes, key derivation, AEAD, splitters, compressors and error
//! correction; knows no storage and does no I/O.
//!
//! Everything here is a function of its arguments and safe to call from any number of threads. Whatever comes
//! from a repository (ciphertext, compressed streams, error-corrected blocks) is treated as hostile: it never
//! makes this crate panic, and it never makes it allocate more than a limit that the caller sets.

#![deny(unsafe_code)]

pub mod aead;
pub mod compress;
pub mod ecc;
mod error;
pub mod hash;
pub mod kdf;
pub mod random;
pub mod splitter;

pub use error::{Error, Result};
