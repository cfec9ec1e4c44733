//! Opening a sealed message that does not fit in memory: one pass to authenticate, another to decrypt.
//!
//! An index blob can be larger than the memory of the process. AEAD libraries only open a message as a whole, so
//! this module composes the same two constructions from their parts.

use super::{CipherAlgorithm, NONCE_LEN, OVERHEAD, TAG_LEN, too_short};
use crate::{Error, Result};
use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher, StreamCipherSeek};
use aws_lc_rs::constant_time;
use chacha20::ChaCha20;
use ctr::Ctr32BE;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use poly1305::Poly1305;
use std::fmt;
use zeroize::Zeroizing;

const BLOCK: usize = 16;
/// NIST SP 800-38D: the 32-bit block counter of GCM must not come around.
const MAX_GCM_PLAINTEXT: u64 = (1 << 36) - 32;
/// RFC 8439: the same for ChaCha20 with its blocks of 64 bytes.
const MAX_CHACHA_PLAINTEXT: u64 = (1 << 38) - 64;

/// The first pass: takes the sealed bytes in order, in pieces of any size, and tells whether they are authentic.
/// Only an authentic message yields the [`StreamDecryptor`] of the second pass.
///
/// The caller must make sure that the second pass reads the bytes which the first one saw, for example from a
/// private copy that nobody else can write.
pub struct StreamVerifier {
    algorithm: CipherAlgorithm,
    key: Zeroizing<[u8; 32]>,
    id: Vec<u8>,
    sealed_len: u64,
    seen: u64,
    nonce: [u8; NONCE_LEN],
    mac: Option<Mac>,
    tag: [u8; TAG_LEN],
}

impl StreamVerifier {
    pub(super) fn new(
        algorithm: CipherAlgorithm,
        key: Zeroizing<[u8; 32]>,
        id: &[u8],
        sealed_len: u64,
    ) -> Result<Self> {
        let plaintext = sealed_len.checked_sub(OVERHEAD as u64).ok_or_else(|| too_short(sealed_len))?;
        let limit = match algorithm {
            CipherAlgorithm::Aes256Gcm => MAX_GCM_PLAINTEXT,
            CipherAlgorithm::ChaCha20Poly1305 => MAX_CHACHA_PLAINTEXT,
        };
        if plaintext > limit {
            return Err(Error::corrupt(
                "sealed data",
                format!("{sealed_len} bytes are more than the cipher can seal"),
            ));
        }
        Ok(StreamVerifier {
            algorithm,
            key,
            id: id.to_vec(),
            sealed_len,
            seen: 0,
            nonce: [0; NONCE_LEN],
            mac: None,
            tag: [0; TAG_LEN],
        })
    }

    /// Takes the next bytes of the sealed message.
    pub fn update(&mut self, mut sealed: &[u8]) -> Result<()> {
        if sealed.len() as u64 > self.sealed_len - self.seen {
            return Err(Error::corrupt(
                "sealed data",
                format!("it has more than the expected {} bytes", self.sealed_len),
            ));
        }
        const BODY_START: u64 = NONCE_LEN as u64;
        let body_end = self.sealed_len - TAG_LEN as u64;
        while !sealed.is_empty() {
            let section_end = match self.seen {
                seen if seen < BODY_START => BODY_START,
                seen if seen < body_end => body_end,
                _ => self.sealed_len,
            };
            // What is left of a section may exceed usize, what is left of the piece cannot.
            let take = (section_end - self.seen).min(sealed.len() as u64) as usize;
            let (piece, rest) = sealed.split_at(take);
            if self.seen < BODY_START {
                let at = self.seen as usize;
                self.nonce[at..at + take].copy_from_slice(piece);
            } else if self.seen < body_end {
                let (algorithm, key, nonce, id) = (self.algorithm, &self.key, &self.nonce, &self.id);
                self.mac.get_or_insert_with(|| Mac::new(algorithm, key, nonce, id)).update(piece);
            } else {
                let at = (self.seen - body_end) as usize;
                self.tag[at..at + take].copy_from_slice(piece);
            }
            self.seen += take as u64;
            sealed = rest;
        }
        Ok(())
    }

    /// Ends the first pass. Fails unless exactly the announced bytes were seen and their tag matches.
    pub fn finish(self) -> Result<StreamDecryptor> {
        if self.seen != self.sealed_len {
            return Err(Error::corrupt(
                "sealed data",
                format!("it ends after {} of {} bytes", self.seen, self.sealed_len),
            ));
        }
        let mac = self.mac.unwrap_or_else(|| Mac::new(self.algorithm, &self.key, &self.nonce, &self.id));
        constant_time::verify_slices_are_equal(&mac.finish(), &self.tag).map_err(|_| Error::NotAuthentic)?;
        Ok(StreamDecryptor {
            keystream: Keystream::new(self.algorithm, &self.key, &self.nonce),
            len: self.sealed_len - OVERHEAD as u64,
        })
    }
}

impl fmt::Debug for StreamVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamVerifier")
            .field("algorithm", &self.algorithm)
            .field("seen", &self.seen)
            .field("sealed_len", &self.sealed_len)
            .finish_non_exhaustive()
    }
}

/// The second pass: decrypts any part of a message that was found authentic.
pub struct StreamDecryptor {
    keystream: Keystream,
    len: u64,
}

impl StreamDecryptor {
    /// Length of the whole plaintext.
    pub fn plaintext_len(&self) -> u64 {
        self.len
    }

    /// Where the ciphertext of the plaintext byte `offset` lies inside the sealed message.
    pub fn sealed_offset(offset: u64) -> u64 {
        offset + NONCE_LEN as u64
    }

    /// Decrypts in place the ciphertext of the plaintext bytes from `offset` on.
    pub fn decrypt(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        if offset > self.len || data.len() as u64 > self.len - offset {
            return Err(Error::InvalidParameter {
                what: "a plaintext offset",
                value: offset,
                expected: "inside the message",
            });
        }
        self.keystream.apply(offset, data).ok_or(Error::Internal("seeking in a key stream"))
    }
}

impl fmt::Debug for StreamDecryptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDecryptor").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The pseudo-random bytes that the plaintext is XORed with. Both constructions keep the first counter value for
/// the tag, so the plaintext starts one block into the stream.
enum Keystream {
    // Boxed because the expanded key makes it many times larger than the other.
    Aes(Box<Ctr32BE<Aes256>>),
    ChaCha(ChaCha20),
}

impl Keystream {
    const CHACHA_BLOCK: u64 = 64;

    fn new(algorithm: CipherAlgorithm, key: &[u8; 32], nonce: &[u8; NONCE_LEN]) -> Self {
        match algorithm {
            CipherAlgorithm::Aes256Gcm => {
                Keystream::Aes(Box::new(Ctr32BE::new(key.into(), &first_counter_block(nonce).into())))
            }
            CipherAlgorithm::ChaCha20Poly1305 => {
                Keystream::ChaCha(<ChaCha20 as KeyIvInit>::new(key.into(), nonce.into()))
            }
        }
    }

    /// XORs the stream at plaintext position `offset` into `data`; `None` if the position cannot be reached.
    fn apply(&mut self, offset: u64, data: &mut [u8]) -> Option<()> {
        match self {
            Keystream::Aes(stream) => {
                stream.try_seek(offset + BLOCK as u64).ok()?;
                stream.try_apply_keystream(data).ok()
            }
            Keystream::ChaCha(stream) => {
                stream.try_seek(offset + Self::CHACHA_BLOCK).ok()?;
                stream.try_apply_keystream(data).ok()
            }
        }
    }
}

/// GCM's J0 for a 12-byte nonce.
fn first_counter_block(nonce: &[u8; NONCE_LEN]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..NONCE_LEN].copy_from_slice(nonce);
    block[BLOCK - 1] = 1;
    block
}

/// The authenticator of one message, fed with additional data, then ciphertext, then both lengths.
struct Mac {
    hash: MacHash,
    additional_len: u64,
    body_len: u64,
    /// The start of a block that the pieces so far did not complete.
    partial: [u8; BLOCK],
    partial_len: usize,
}

enum MacHash {
    /// GHASH and the encrypted counter block that masks its result.
    Gcm(Box<GHash>, [u8; BLOCK]),
    Poly(Box<Poly1305>),
}

impl Mac {
    fn new(algorithm: CipherAlgorithm, key: &[u8; 32], nonce: &[u8; NONCE_LEN], additional: &[u8]) -> Self {
        let hash = match algorithm {
            CipherAlgorithm::Aes256Gcm => {
                let cipher = Aes256::new(key.into());
                let mut subkey = [0; BLOCK].into();
                cipher.encrypt_block(&mut subkey);
                let mut mask = first_counter_block(nonce).into();
                cipher.encrypt_block(&mut mask);
                MacHash::Gcm(Box::new(GHash::new(&subkey)), mask.into())
            }
            CipherAlgorithm::ChaCha20Poly1305 => {
                let mut one_time_key = Zeroizing::new([0; 32]);
                let mut stream = <ChaCha20 as KeyIvInit>::new(key.into(), nonce.into());
                stream.apply_keystream(one_time_key.as_mut());
                let one_time_key: &[u8; 32] = &one_time_key;
                MacHash::Poly(Box::new(Poly1305::new(one_time_key.into())))
            }
        };
        let mut mac = Mac {
            hash,
            additional_len: additional.len() as u64,
            body_len: 0,
            partial: [0; BLOCK],
            partial_len: 0,
        };
        mac.absorb(additional);
        mac
    }

    fn update(&mut self, mut piece: &[u8]) {
        self.body_len += piece.len() as u64;
        if self.partial_len > 0 {
            let take = piece.len().min(BLOCK - self.partial_len);
            let (head, rest) = piece.split_at(take);
            self.partial[self.partial_len..self.partial_len + take].copy_from_slice(head);
            self.partial_len += take;
            piece = rest;
            if self.partial_len < BLOCK {
                return;
            }
            let block = self.partial;
            self.absorb(&block);
        }
        let (blocks, rest) = piece.split_at(piece.len() - piece.len() % BLOCK);
        self.absorb(blocks);
        self.partial[..rest.len()].copy_from_slice(rest);
        self.partial_len = rest.len();
    }

    /// Hashes `data`, padded with zeros to whole blocks.
    fn absorb(&mut self, data: &[u8]) {
        match &mut self.hash {
            MacHash::Gcm(hash, _) => hash.update_padded(data),
            MacHash::Poly(hash) => hash.update_padded(data),
        }
    }

    fn finish(mut self) -> [u8; TAG_LEN] {
        let (partial, partial_len) = (self.partial, self.partial_len);
        self.absorb(&partial[..partial_len]);
        let mut lengths = [0; BLOCK];
        let (additional, body) = lengths.split_at_mut(BLOCK / 2);
        match self.hash {
            MacHash::Gcm(mut hash, mask) => {
                additional.copy_from_slice(&(self.additional_len * 8).to_be_bytes());
                body.copy_from_slice(&(self.body_len * 8).to_be_bytes());
                hash.update_padded(&lengths);
                let mut tag: [u8; TAG_LEN] = hash.finalize().into();
                tag.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
                tag
            }
            MacHash::Poly(mut hash) => {
                additional.copy_from_slice(&self.additional_len.to_le_bytes());
                body.copy_from_slice(&self.body_len.to_le_bytes());
                hash.update_padded(&lengths);
                hash.finalize().into()
            }
        }
    }
}
