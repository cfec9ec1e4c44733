//! Encryption of the few blobs that are sealed as a whole under one key: format blob, blob configuration and
//! maintenance schedule.

use super::{
    AES_256_GCM, LessSafeKey, OVERHEAD, UnboundKey, fresh_nonce, open_with, seal_with, split_sealed,
};
use crate::kdf::hkdf_sha256_key;
use crate::random::Random;
use crate::{Error, Result};
use std::fmt;
use zeroize::Zeroizing;

/// AES-256-GCM with one key and one piece of additional data.
pub struct FormatCipher {
    key: LessSafeKey,
    additional_data: Zeroizing<Vec<u8>>,
}

impl FormatCipher {
    /// The cipher of `encryptedBlockFormat` and `kopia.blobcfg`: key and additional data are both derived from the
    /// format key and the repository's unique id.
    pub fn new(format_key: &[u8], unique_id: &[u8]) -> Result<Self> {
        let key = hkdf_sha256_key(format_key, unique_id, b"AES")?;
        let additional_data = hkdf_sha256_key(format_key, unique_id, b"CHECKSUM")?;
        Self::with_key(&key, additional_data.as_slice())
    }

    /// AES-256-GCM under `key` and `additional_data` as they are (the maintenance schedule has its own).
    pub fn with_key(key: &[u8; 32], additional_data: &[u8]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| Error::Internal("setting up a key"))?;
        let additional_data = Zeroizing::new(additional_data.to_vec());
        Ok(FormatCipher { key: LessSafeKey::new(key), additional_data })
    }

    /// `nonce ‖ ciphertext ‖ tag` of `plaintext`.
    pub fn seal(&self, random: &dyn Random, plaintext: &[u8]) -> Result<Vec<u8>> {
        let nonce = fresh_nonce(random)?;
        let mut out = Vec::with_capacity(plaintext.len() + OVERHEAD);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plaintext);
        let tag = seal_with(&self.key, nonce, &self.additional_data, &mut out[nonce.len()..])?;
        out.extend_from_slice(&tag);
        Ok(out)
    }

    /// The plaintext of `sealed`. [`Error::NotAuthentic`] means that the password is wrong or the blob damaged.
    pub fn open(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let (nonce, body, tag) = split_sealed(sealed)?;
        let mut plaintext = Zeroizing::new(body.to_vec());
        open_with(&self.key, nonce, &self.additional_data, &mut plaintext, tag)?;
        Ok(plaintext)
    }
}

impl fmt::Debug for FormatCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormatCipher").finish_non_exhaustive()
    }
}
