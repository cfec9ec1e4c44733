//! Authenticated encryption of contents and blobs, and of the format blob itself.

mod format;
mod stream;

pub use format::FormatCipher;
pub use stream::{StreamDecryptor, StreamVerifier};

use crate::kdf::hkdf_sha256_key;
use crate::random::Random;
use crate::{Error, Result};
use aws_lc_rs::hmac;
// For AES-GCM this library has code for processors with VAES but without AVX-512, which is twice as fast on them.
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::fmt;
use zeroize::Zeroizing;

/// Length of the nonce in front of every sealed message.
pub const NONCE_LEN: usize = 12;
/// Length of the tag behind every sealed message.
pub const TAG_LEN: usize = 16;
/// What sealing adds to a message, with either cipher.
pub const OVERHEAD: usize = NONCE_LEN + TAG_LEN;

/// Kopia derives the encryption secret with the purpose as HKDF's salt and no info.
const SECRET_SALT: &[u8] = b"encryption";

/// A cipher of the format, by the name that the format blob gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CipherAlgorithm {
    /// AES-256-GCM with a key per content: Kopia's default.
    #[default]
    Aes256Gcm,
    /// ChaCha20-Poly1305 with a key per content.
    ChaCha20Poly1305,
}

impl CipherAlgorithm {
    /// Every cipher that Kopia registers.
    pub const ALL: [CipherAlgorithm; 2] = [CipherAlgorithm::Aes256Gcm, CipherAlgorithm::ChaCha20Poly1305];

    /// The name in the format blob.
    pub fn name(self) -> &'static str {
        match self {
            CipherAlgorithm::Aes256Gcm => "AES256-GCM-HMAC-SHA256",
            CipherAlgorithm::ChaCha20Poly1305 => "CHACHA20-POLY1305-HMAC-SHA256",
        }
    }

    /// The cipher called `name` in a format blob.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "encryption", name: name.into() })
    }
}

/// The cipher of a repository. Each message is sealed under its own key, derived from the master key and the
/// message's id; the id is authenticated too, so that one sealed message cannot stand in for another.
#[derive(Clone)]
pub struct Cipher {
    algorithm: CipherAlgorithm,
    secret: hmac::Key,
}

impl Cipher {
    /// `algorithm` under the repository's master key.
    pub fn new(algorithm: CipherAlgorithm, master_key: &[u8]) -> Result<Self> {
        let secret = hkdf_sha256_key(master_key, SECRET_SALT, b"")?;
        Ok(Cipher { algorithm, secret: hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref()) })
    }

    /// Which cipher this is.
    pub fn algorithm(&self) -> CipherAlgorithm {
        self.algorithm
    }

    /// Seals `data` where it lies and returns the nonce that belongs in front of it and the tag that belongs behind
    /// it: the way without any copy. On failure the content of `data` is unspecified.
    pub fn seal_in_place(
        &self,
        random: &dyn Random,
        id: &[u8],
        data: &mut [u8],
    ) -> Result<([u8; NONCE_LEN], [u8; TAG_LEN])> {
        let key = self.key(id)?;
        let nonce = fresh_nonce(random)?;
        Ok((nonce, seal_with(&key, nonce, id, data)?))
    }

    /// Appends `nonce ‖ ciphertext ‖ tag` of `plaintext` to `out`, under a fresh nonce from `random`. On failure
    /// `out` is as before.
    pub fn seal_into(
        &self,
        random: &dyn Random,
        id: &[u8],
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let key = self.key(id)?;
        let nonce = fresh_nonce(random)?;
        let start = out.len();
        out.reserve(plaintext.len() + OVERHEAD);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plaintext);
        let sealed = seal_with(&key, nonce, id, &mut out[start + NONCE_LEN..]);
        match sealed {
            Ok(tag) => out.extend_from_slice(&tag),
            Err(_) => out.truncate(start),
        }
        sealed.map(drop)
    }

    /// Writes `nonce ‖ ciphertext ‖ tag` of `plaintext` to `out`, which must be [`OVERHEAD`] longer than it. On
    /// failure the content of `out` is unspecified.
    pub fn seal_to(&self, random: &dyn Random, id: &[u8], plaintext: &[u8], out: &mut [u8]) -> Result<()> {
        if out.len() != plaintext.len() + OVERHEAD {
            return Err(Error::InvalidParameter {
                what: "a buffer for sealed data",
                value: out.len() as u64,
                expected: "28 bytes longer than the data",
            });
        }
        let (head, rest) = out.split_at_mut(NONCE_LEN);
        let (body, tail) = rest.split_at_mut(plaintext.len());
        body.copy_from_slice(plaintext);
        let (nonce, tag) = self.seal_in_place(random, id, body)?;
        head.copy_from_slice(&nonce);
        tail.copy_from_slice(&tag);
        Ok(())
    }

    /// The plaintext of `sealed`, if it was sealed under this cipher and `id` and never changed.
    pub fn open(&self, id: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let (nonce, body, tag) = split_sealed(sealed)?;
        let mut plaintext = body.to_vec();
        open_with(&self.key(id)?, nonce, id, &mut plaintext, tag)?;
        Ok(plaintext)
    }

    /// Opens `sealed` where it lies and returns the plaintext inside it. On failure its content is unspecified
    /// and must not be used.
    pub fn open_in_place<'a>(&self, id: &[u8], sealed: &'a mut [u8]) -> Result<&'a mut [u8]> {
        let (&nonce, _, &tag) = split_sealed(sealed)?;
        let body = NONCE_LEN..sealed.len() - TAG_LEN;
        let plaintext = &mut sealed[body];
        open_with(&self.key(id)?, &nonce, id, plaintext, &tag)?;
        Ok(plaintext)
    }

    /// Starts to verify a message of `sealed_len` bytes that is too large for memory. See [`StreamVerifier`].
    pub fn verify_stream(&self, id: &[u8], sealed_len: u64) -> Result<StreamVerifier> {
        StreamVerifier::new(self.algorithm, self.message_key(id)?, id, sealed_len)
    }

    fn message_key(&self, id: &[u8]) -> Result<Zeroizing<[u8; 32]>> {
        let mut key = Zeroizing::new([0; 32]);
        hmac::sign_to_buffer(&self.secret, id, key.as_mut())
            .map_err(|_| Error::Internal("deriving a content key"))?;
        Ok(key)
    }

    fn key(&self, id: &[u8]) -> Result<LessSafeKey> {
        let algorithm = match self.algorithm {
            CipherAlgorithm::Aes256Gcm => &AES_256_GCM,
            CipherAlgorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = self.message_key(id)?;
        let key =
            UnboundKey::new(algorithm, key.as_ref()).map_err(|_| Error::Internal("setting up a key"))?;
        Ok(LessSafeKey::new(key))
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cipher").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

fn fresh_nonce(random: &dyn Random) -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    random.fill(&mut nonce)?;
    Ok(nonce)
}

fn seal_with(
    key: &LessSafeKey,
    nonce: [u8; NONCE_LEN],
    additional_data: &[u8],
    data: &mut [u8],
) -> Result<[u8; TAG_LEN]> {
    key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(additional_data), data)
        .ok()
        .and_then(|tag| tag.as_ref().try_into().ok())
        .ok_or(Error::Internal("sealing"))
}

fn open_with(
    key: &LessSafeKey,
    nonce: &[u8; NONCE_LEN],
    additional_data: &[u8],
    data: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> Result<()> {
    let nonce = Nonce::assume_unique_for_key(*nonce);
    key.open_in_place_separate_tag(nonce, Aad::from(additional_data), (*tag).into(), data, 0..)
        .map(drop)
        .map_err(|_| Error::NotAuthentic)
}

/// Splits a sealed message into nonce, ciphertext and tag.
fn split_sealed(sealed: &[u8]) -> Result<(&[u8; NONCE_LEN], &[u8], &[u8; TAG_LEN])> {
    sealed
        .split_first_chunk()
        .and_then(|(nonce, rest)| rest.split_last_chunk().map(|(body, tag)| (nonce, body, tag)))
        .ok_or_else(|| too_short(sealed.len() as u64))
}

fn too_short(len: u64) -> Error {
    Error::corrupt("sealed data", format!("it has {len} bytes, fewer than nonce and tag take ({OVERHEAD})"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
