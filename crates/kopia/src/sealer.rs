//! Everything that takes a key: naming contents by their hash, and sealing and opening contents, local indexes and
//! whole blobs.

use crate::{Environment, Error, Result};
use bytes::Bytes;
use lifeboat_index::{ContentId, Prefix};
use lifeboat_primitives::aead::{Cipher, CipherAlgorithm, NONCE_LEN, OVERHEAD, StreamVerifier, TAG_LEN};
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::ecc;
use lifeboat_primitives::hash::{Digest, HashAlgorithm, Hasher};
use std::borrow::Cow;
use std::fmt;

/// How many trailing bytes of a hash a content or blob is sealed with.
const ID_LEN: usize = 16;
/// No content is larger: index entries have no room for more.
pub const MAX_CONTENT_LEN: usize = (1 << 28) - 1;

/// The keys and algorithms of a repository, as its format blob gives them.
pub struct SealerKeys<'a> {
    /// The hash function.
    pub hash: HashAlgorithm,
    /// Its key.
    pub hash_secret: &'a [u8],
    /// The cipher.
    pub cipher: CipherAlgorithm,
    /// The key that all others derive from.
    pub master_key: &'a [u8],
    /// Error correction with so many percent of overhead.
    pub ecc_overhead_percent: Option<u32>,
}

impl fmt::Debug for SealerKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealerKeys")
            .field("hash", &self.hash)
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

/// Seals and opens under the keys of one repository.
pub struct Sealer {
    hasher: Hasher,
    cipher: Cipher,
    ecc: Option<ecc::Codec>,
    environment: Environment,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("hasher", &self.hasher)
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

/// A blob's sealed bytes and the hash that its name must carry.
#[derive(Debug, Clone)]
pub struct SealedBlob {
    digest: Digest,
    bytes: Bytes,
}

impl SealedBlob {
    /// The hash of the plaintext, in hex.
    pub fn hash_hex(&self) -> String {
        hex::encode(self.digest.as_slice())
    }

    /// The sealed bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The name `<prefix><hash>[-<suffix>]`.
    pub fn name(&self, prefix: &str, suffix: Option<&str>) -> String {
        match suffix {
            Some(suffix) => format!("{prefix}{}-{suffix}", self.hash_hex()),
            None => format!("{prefix}{}", self.hash_hex()),
        }
    }
}

impl Sealer {
    /// A sealer under `keys`, taking nonces from `environment`.
    pub fn new(keys: &SealerKeys<'_>, environment: &Environment) -> Result<Self> {
        Ok(Sealer {
            hasher: Hasher::new(keys.hash, keys.hash_secret)?,
            cipher: Cipher::new(keys.cipher, keys.master_key)?,
            ecc: keys.ecc_overhead_percent.map(ecc::Codec::new).transpose()?,
            environment: environment.clone(),
        })
    }

    /// The hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The hash of `data`.
    pub fn hash(&self, data: &[u8]) -> Digest {
        self.hasher.hash(data)
    }

    /// The id of a content whose bytes have the hash `digest`.
    pub fn content_id(&self, prefix: Prefix, digest: &Digest) -> Result<ContentId> {
        ContentId::new(prefix, digest.as_slice()).map_err(|e| Error::Invalid(e.to_string()))
    }

    /// How long `plain` bytes become when sealed; `None` if error correction makes it depend on more than that.
    pub fn sealed_len(&self, plain: usize) -> Option<usize> {
        self.ecc.is_none().then_some(plain + OVERHEAD)
    }

    /// Seals `plain` under `id` into `out`, which must be exactly [`sealed_len`](Self::sealed_len) long.
    pub fn seal_to(&self, id: &[u8], plain: &[u8], out: &mut [u8]) -> Result<()> {
        match &self.ecc {
            None => Ok(self.cipher.seal_to(&self.environment, id, plain, out)?),
            Some(_) => Err(Error::Invalid("error-corrected data has no length of its own".into())),
        }
    }

    /// Seals `data` under `id` where it lies; returns what belongs in front of it and behind it. On failure `data` is worth
    /// nothing any more.
    pub fn seal_in_place(&self, id: &[u8], data: &mut [u8]) -> Result<([u8; NONCE_LEN], [u8; TAG_LEN])> {
        match &self.ecc {
            None => Ok(self.cipher.seal_in_place(&self.environment, id, data)?),
            Some(_) => Err(Error::Invalid("error correction needs room of its own".into())),
        }
    }

    /// Seals `plain` under `id`.
    pub fn seal_with_id(&self, id: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let mut sealed = vec![0; plain.len() + OVERHEAD];
        self.cipher.seal_to(&self.environment, id, plain, &mut sealed)?;
        match &self.ecc {
            None => Ok(sealed),
            Some(ecc) => {
                let mut out = Vec::new();
                ecc.encode(&sealed, &mut out)?;
                Ok(out)
            }
        }
    }

    /// Opens what was sealed under `id`.
    pub fn open_with_id(&self, id: &[u8], sealed: &[u8]) -> lifeboat_primitives::Result<Vec<u8>> {
        match &self.ecc {
            None => self.cipher.open(id, sealed),
            Some(ecc) => self.cipher.open(id, &ecc.decode(sealed)?),
        }
    }

    /// Opens a content: decrypts it, checks and strips the compression header, decompresses. The text of a failure
    /// says what is wrong with the bytes; the caller knows which content and pack they came from.
    pub fn open_content(
        &self,
        id: &ContentId,
        compression: u32,
        original_length: u32,
        sealed: &[u8],
    ) -> std::result::Result<Bytes, String> {
        let plain = self.open_with_id(seal_id(id.hash()), sealed).map_err(|e| e.to_string())?;
        let data = match compression {
            0 => Bytes::from(plain),
            number => Compressor::from_id(number)
                .and_then(|compressor| compressor.decompress(&plain, original_length as usize))
                .map_err(|e| e.to_string())?
                .into(),
        };
        check_length(data.len(), original_length)?;
        Ok(data)
    }

    /// Opens a content where its sealed bytes lie, which saves a buffer and a copy; what it leaves of them is of no
    /// use. Otherwise like [`open_content`](Self::open_content).
    pub fn open_content_in_place<'a>(
        &self,
        id: &ContentId,
        compression: u32,
        original_length: u32,
        sealed: &'a mut [u8],
    ) -> std::result::Result<Cow<'a, [u8]>, String> {
        if compression != 0 || self.ecc.is_some() {
            return Ok(Cow::Owned(self.open_content(id, compression, original_length, sealed)?.into()));
        }
        let plain = self.cipher.open_in_place(seal_id(id.hash()), sealed).map_err(|e| e.to_string())?;
        check_length(plain.len(), original_length)?;
        Ok(Cow::Borrowed(plain))
    }

    /// Seals a whole blob: the hash of its plaintext names it.
    pub fn seal_blob(&self, plain: &[u8]) -> Result<SealedBlob> {
        let digest = self.hash(plain);
        let bytes = self.seal_with_id(seal_id(digest.as_slice()), plain)?.into();
        Ok(SealedBlob { digest, bytes })
    }

    /// Opens a blob that [`seal_blob`](Self::seal_blob) made, under the key that its name carries.
    pub fn open_blob(&self, name: &str, sealed: &[u8]) -> Result<Bytes> {
        let id = self.blob_seal_id(name)?;
        let plain = self
            .open_with_id(&id, sealed)
            .map_err(|error| Error::DamagedBlob { blob: name.to_owned(), reason: error.to_string() })?;
        Ok(plain.into())
    }

    /// Starts opening a blob that is too large for memory; `None` if error correction forbids it.
    pub fn verify_blob(&self, name: &str, sealed_len: u64) -> Result<Option<StreamVerifier>> {
        if self.ecc.is_some() {
            return Ok(None);
        }
        let id = self.blob_seal_id(name)?;
        let damaged =
            |e: lifeboat_primitives::Error| Error::DamagedBlob { blob: name.into(), reason: e.to_string() };
        self.cipher.verify_stream(&id, sealed_len).map(Some).map_err(damaged)
    }

    /// The id that a blob is sealed with: of its name up to the first dash, the last 32 digits.
    fn blob_seal_id(&self, name: &str) -> Result<[u8; ID_LEN]> {
        let stem = name.split('-').next().unwrap_or_default().as_bytes();
        let digits = stem.last_chunk::<{ 2 * ID_LEN }>();
        let mut id = [0; ID_LEN];
        match digits.map(|digits| hex::decode_to_slice(digits, &mut id)) {
            Some(Ok(())) => Ok(id),
            _ => Err(Error::DamagedBlob { blob: name.into(), reason: "its name carries no hash".into() }),
        }
    }
}

fn check_length(found: usize, expected: u32) -> std::result::Result<(), String> {
    match found == expected as usize {
        true => Ok(()),
        false => Err(format!("it has {found} bytes, the index says {expected}")),
    }
}

/// The id that a content is sealed with: the last bytes of its hash.
pub(crate) fn seal_id(hash: &[u8]) -> &[u8] {
    &hash[hash.len().saturating_sub(ID_LEN)..]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Counts up from zero: the nonce of the published example.
    #[derive(Debug)]
    struct Counting;

    impl crate::Random for Counting {
        fn fill(&self, out: &mut [u8]) -> Result<()> {
            out.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
            Ok(())
        }
    }

    fn sealer(hash: HashAlgorithm, ecc_overhead_percent: Option<u32>) -> Sealer {
        let environment = Environment { random: Arc::new(Counting), ..Environment::default() };
        let (secret, master): (Vec<u8>, Vec<u8>) = ((0..0x20).collect(), (0x20..0x40).collect());
        let keys = SealerKeys {
            hash,
            hash_secret: &secret,
            cipher: CipherAlgorithm::Aes256Gcm,
            master_key: &master,
            ecc_overhead_percent,
        };
        Sealer::new(&keys, &environment).unwrap()
    }

    #[test]
    fn the_published_content_is_named_sealed_and_opened() {
        let sealer = sealer(HashAlgorithm::Blake2b256_128, None);
        let id = sealer.content_id(Prefix::NONE, &sealer.hash(b"hello")).unwrap();
        assert_eq!(id.to_string(), "bc2cf927f9ed52cc29116e6a5cfdbdf9");
        let sealed = sealer.seal_with_id(seal_id(id.hash()), b"hello").unwrap();
        let stored = "000102030405060708090a0b5211e421252f37c28a5aad463af16818748887901a";
        assert_eq!(hex::encode(&sealed), stored);
        assert_eq!(&sealer.open_content(&id, 0, 5, &sealed).unwrap()[..], b"hello");
        assert_eq!(&sealer.open_content_in_place(&id, 0, 5, &mut sealed.clone()).unwrap()[..], b"hello");
        assert!(sealer.open_content_in_place(&id, 0, 6, &mut sealed.clone()).is_err());
        assert!(sealer.open_content(&id, 0, 6, &sealed).is_err(), "the index must know the length");
        assert!(sealer.open_content(&id, 0x1101, 5, &sealed).is_err(), "and the compression");
        let other = "bc2cf927f9ed52cc29116e6a5cfdbdf8".parse().unwrap();
        assert!(sealer.open_content(&other, 0, 5, &sealed).is_err(), "no content stands in for another");
    }

    #[test]
    fn long_hashes_seal_with_their_last_bytes_and_blobs_with_those_of_their_name() {
        for hash in [HashAlgorithm::HmacSha256, HashAlgorithm::HmacSha224, HashAlgorithm::Blake2s128] {
            let sealer = sealer(hash, None);
            let blob = sealer.seal_blob(b"an index").unwrap();
            let name = blob.name("xn7_", Some("s1-c1"));
            assert_eq!(&sealer.open_blob(&name, blob.bytes()).unwrap()[..], b"an index");
            let renamed = name.replace("xn7_", "xs9_");
            assert!(sealer.open_blob(&renamed, blob.bytes()).is_ok(), "the epoch is not part of the key");
            for bad in ["xn7_", "xn7_00-s1-c1", "n\u{e9}", ""] {
                assert!(
                    matches!(sealer.open_blob(bad, blob.bytes()), Err(Error::DamagedBlob { .. })),
                    "{bad}"
                );
            }
            let cut = &blob.bytes()[..blob.bytes().len() - 1];
            assert!(matches!(sealer.open_blob(&name, cut), Err(Error::DamagedBlob { .. })));
        }
    }

    #[test]
    fn error_correction_repairs_what_was_sealed() {
        let sealer = sealer(HashAlgorithm::Blake2b256_128, Some(10));
        assert_eq!(sealer.sealed_len(5), None);
        let blob = sealer.seal_blob(&[7; 5000]).unwrap();
        let name = blob.name("n", None);
        let mut damaged = blob.bytes().to_vec();
        damaged[100] ^= 0xff;
        assert_eq!(&sealer.open_blob(&name, &damaged).unwrap()[..], &[7; 5000][..]);
    }
}
