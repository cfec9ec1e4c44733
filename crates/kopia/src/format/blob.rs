//! The outer, readable part of the format blob.

use super::{FORMAT_BLOB, Password, RepositoryFormat, Secret};
use crate::gojson::{self, Base64, go_object};
use crate::{Environment, Error, Result};
use lifeboat_primitives::aead::FormatCipher;
use lifeboat_primitives::kdf::KeyAlgorithm;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The only encryption of the inner part.
const ENCRYPTION: &str = "AES256_GCM";
/// Shorter salts would make derived keys guessable.
const MIN_UNIQUE_ID_LEN: usize = 16;

go_object! {
    /// The blob `kopia.repository` as JSON.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct FormatBlob {
        /// Which program wrote it; not checked.
        pub tool: String => "tool",
        /// Its version; not checked.
        pub build_version: String => "buildVersion",
        /// More about its version; not checked.
        pub build_info: String => "buildInfo",
        /// The identity of the repository and the salt of all its keys.
        pub unique_id: Base64 => "uniqueID",
        /// How the password becomes a key.
        pub key_algorithm: String => "keyAlgo",
        /// How the inner part is encrypted.
        pub encryption: String => "encryption",
        /// The encrypted inner part.
        pub encrypted_format: Base64 => "encryptedBlockFormat" omitempty,
    }
}

/// What is encrypted: the inner format under one name.
#[derive(Deserialize)]
struct Inner {
    format: RepositoryFormat,
}

#[derive(Serialize)]
struct InnerRef<'a> {
    format: &'a RepositoryFormat,
}

/// Room for the inner part, so that no half-written copy of the keys stays behind in freed memory.
const INNER_CAPACITY: usize = 16 << 10;

impl FormatBlob {
    /// An outer part without an inner one yet.
    pub(super) fn new(unique_id: Vec<u8>, key_algorithm: KeyAlgorithm) -> Self {
        FormatBlob {
            tool: "https://github.com/kopia/kopia".to_owned(),
            build_version: concat!("lifeboat-", env!("CARGO_PKG_VERSION")).to_owned(),
            build_info: String::new(),
            unique_id: Base64(unique_id),
            key_algorithm: key_algorithm.name().to_owned(),
            encryption: ENCRYPTION.to_owned(),
            ..FormatBlob::default()
        }
    }

    /// Parses the bytes of the blob.
    pub fn parse(bytes: &[u8]) -> Result<FormatBlob> {
        let blob: FormatBlob = serde_json::from_slice(bytes)
            .map_err(|source| damaged(format!("it is not the JSON of a format blob: {source}")))?;
        if blob.encryption != ENCRYPTION {
            return Err(Error::UnknownAlgorithm {
                kind: "encryption of the format blob",
                name: blob.encryption,
            });
        }
        if blob.unique_id.0.len() < MIN_UNIQUE_ID_LEN {
            return Err(damaged(format!("the unique id has only {} bytes", blob.unique_id.0.len())));
        }
        Ok(blob)
    }

    /// The bytes of the blob.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        gojson::to_pretty_line(self)
            .map_err(|source| Error::Invalid(format!("cannot encode the format: {source}")))
    }

    /// The key that `password` gives. Takes a good part of a second: not on an async thread.
    pub fn derive_key(&self, password: &Password) -> Result<Secret> {
        password.derive(KeyAlgorithm::from_name(&self.key_algorithm)?, &self.unique_id.0)
    }

    /// Decrypts the inner part; [`Error::WrongPassword`] if `key` is not the right one.
    pub fn open(&self, key: &Secret) -> Result<RepositoryFormat> {
        let plain = self.cipher(key)?.open(&self.encrypted_format.0).map_err(|_| Error::WrongPassword)?;
        // The position only: a message that quotes the text could quote a key.
        let inner: Inner = serde_json::from_slice(&plain).map_err(|source| {
            damaged(format!("the encrypted part is not understood (column {})", source.column()))
        })?;
        Ok(inner.format)
    }

    /// Encrypts `format` as the inner part.
    pub(super) fn seal(&mut self, key: &Secret, format: &RepositoryFormat, env: &Environment) -> Result<()> {
        let mut plain = Zeroizing::new(Vec::with_capacity(INNER_CAPACITY));
        gojson::write(&mut *plain, &InnerRef { format })
            .map_err(|_| Error::Invalid("cannot encode the format".to_owned()))?;
        self.encrypted_format = Base64(self.cipher(key)?.seal(env, &plain)?);
        Ok(())
    }

    pub(super) fn cipher(&self, key: &Secret) -> Result<FormatCipher> {
        Ok(FormatCipher::new(key.expose(), &self.unique_id.0)?)
    }
}

fn damaged(reason: String) -> Error {
    Error::DamagedBlob { blob: FORMAT_BLOB.to_owned(), reason }
}
