//! How this machine is connected to a repository: Kopia's connection file, identity, and the stored password.
//!
//! Everything here reads and writes small local files and blocks while doing so.

mod file;
mod identity;
mod password;
mod token;

pub use file::{CachingOptions, Connection, StorageInfo};
pub use identity::{default_host_name, default_user_name};
pub use password::{forget_password, load_password, store_password};
pub use token::{decode_token, encode_token};

#[cfg(test)]
mod tests;
