//! The keyed hash functions that name contents.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod blake2b;
mod lanes;
mod wide;

use crate::{Error, Result};
use aws_lc_rs::hmac as lc_hmac;
use blake2b::Blake2b;
use blake2s_simd::many as blake2s_many;
use hmac::{KeyInit, Mac, SimpleHmac};
use sha3::{Sha3_224, Sha3_256};
use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The longest output of any hash function.
pub const MAX_DIGEST_LEN: usize = 32;

/// Context string of Kopia's key derivation for BLAKE3 keys that are shorter than 32 bytes.
const BLAKE3_CONTEXT: &str = "kopia blake3 derived key v1";

/// A hash function of the format, by the name that the format blob gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub enum HashAlgorithm {
    #[default]
    Blake2b256_128,
    Blake2b256,
    Blake2s128,
    Blake2s256,
    Blake3_256,
    Blake3_256_128,
    HmacSha256,
    HmacSha256_128,
    HmacSha224,
    HmacSha3_224,
    HmacSha3_256,
}

impl HashAlgorithm {
    /// Every hash function that Kopia registers.
    pub const ALL: [HashAlgorithm; 11] = [
        HashAlgorithm::Blake2b256_128,
        HashAlgorithm::Blake2b256,
        HashAlgorithm::Blake2s128,
        HashAlgorithm::Blake2s256,
        HashAlgorithm::Blake3_256,
        HashAlgorithm::Blake3_256_128,
        HashAlgorithm::HmacSha256,
        HashAlgorithm::HmacSha256_128,
        HashAlgorithm::HmacSha224,
        HashAlgorithm::HmacSha3_224,
        HashAlgorithm::HmacSha3_256,
    ];

    /// The name in the format blob.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Blake2b256_128 => "BLAKE2B-256-128",
            HashAlgorithm::Blake2b256 => "BLAKE2B-256",
            HashAlgorithm::Blake2s128 => "BLAKE2S-128",
            HashAlgorithm::Blake2s256 => "BLAKE2S-256",
            HashAlgorithm::Blake3_256 => "BLAKE3-256",
            HashAlgorithm::Blake3_256_128 => "BLAKE3-256-128",
            HashAlgorithm::HmacSha256 => "HMAC-SHA256",
            HashAlgorithm::HmacSha256_128 => "HMAC-SHA256-128",
            HashAlgorithm::HmacSha224 => "HMAC-SHA224",
            HashAlgorithm::HmacSha3_224 => "HMAC-SHA3-224",
            HashAlgorithm::HmacSha3_256 => "HMAC-SHA3-256",
        }
    }

    /// The hash function called `name` in a format blob.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "hash function", name: name.into() })
    }

    /// Length of the digest in bytes.
    pub fn output_len(self) -> usize {
        match self {
            HashAlgorithm::Blake2b256_128
            | HashAlgorithm::Blake2s128
            | HashAlgorithm::Blake3_256_128
            | HashAlgorithm::HmacSha256_128 => 16,
            HashAlgorithm::HmacSha224 | HashAlgorithm::HmacSha3_224 => 28,
            HashAlgorithm::Blake2b256
            | HashAlgorithm::Blake2s256
            | HashAlgorithm::Blake3_256
            | HashAlgorithm::HmacSha256
            | HashAlgorithm::HmacSha3_256 => 32,
        }
    }
}

/// The hash of one content: up to 32 bytes, by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest {
    bytes: [u8; MAX_DIGEST_LEN],
    len: u8,
}

impl Digest {
    /// The first `len` bytes of `full`; callers pass the output length of their algorithm, which `full` covers.
    fn truncated(full: &[u8], len: usize) -> Self {
        let mut bytes = [0; MAX_DIGEST_LEN];
        bytes[..len].copy_from_slice(&full[..len]);
        Digest { bytes, len: len as u8 }
    }

    /// The bytes of the hash.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A hash function with its key. Cheap to clone and to share between threads; the key is wiped on drop.
#[derive(Clone)]
pub struct Hasher {
    algorithm: HashAlgorithm,
    keyed: Arc<Keyed>,
}

// There is one per repository, so its size does not matter.
#[allow(clippy::large_enum_variant)]
enum Keyed {
    Blake2b(Blake2b),
    Blake2s(Zeroizing<Vec<u8>>),
    Blake3(Zeroizing<[u8; blake3::KEY_LEN]>),
    /// SHA-224 and SHA-256 run in the library that has the fastest code for them.
    HmacSha2(lc_hmac::Key),
    HmacSha3_224(SimpleHmac<Sha3_224>),
    HmacSha3_256(SimpleHmac<Sha3_256>),
}

impl Hasher {
    /// `algorithm` with the repository's hash key.
    pub fn new(algorithm: HashAlgorithm, key: &[u8]) -> Result<Self> {
        let owned = || Zeroizing::new(key.to_vec());
        let invalid =
            |expected| Error::InvalidKey { algorithm: algorithm.name(), length: key.len(), expected };
        let keyed = match algorithm {
            HashAlgorithm::Blake2b256_128 | HashAlgorithm::Blake2b256 => {
                if key.len() > blake2b_simd::KEYBYTES {
                    return Err(invalid("at most 64"));
                }
                Keyed::Blake2b(Blake2b::new(key))
            }
            HashAlgorithm::Blake2s128 | HashAlgorithm::Blake2s256 => {
                if key.len() > blake2s_simd::KEYBYTES {
                    return Err(invalid("at most 32"));
                }
                if key.is_empty() && algorithm == HashAlgorithm::Blake2s128 {
                    return Err(invalid("1 to 32"));
                }
                Keyed::Blake2s(owned())
            }
            HashAlgorithm::Blake3_256 | HashAlgorithm::Blake3_256_128 => {
                let key = match key.first_chunk() {
                    Some(prefix) => Zeroizing::new(*prefix),
                    None => Zeroizing::new(blake3::derive_key(BLAKE3_CONTEXT, key)),
                };
                Keyed::Blake3(key)
            }
            HashAlgorithm::HmacSha256 | HashAlgorithm::HmacSha256_128 => {
                Keyed::HmacSha2(lc_hmac::Key::new(lc_hmac::HMAC_SHA256, key))
            }
            HashAlgorithm::HmacSha224 => Keyed::HmacSha2(lc_hmac::Key::new(lc_hmac::HMAC_SHA224, key)),
            HashAlgorithm::HmacSha3_224 => {
                Keyed::HmacSha3_224(SimpleHmac::new_from_slice(key).map_err(|_| invalid("any length"))?)
            }
            HashAlgorithm::HmacSha3_256 => {
                Keyed::HmacSha3_256(SimpleHmac::new_from_slice(key).map_err(|_| invalid("any length"))?)
            }
        };
        Ok(Hasher { algorithm, keyed: Arc::new(keyed) })
    }

    /// Which hash function this is.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Length of the digests in bytes.
    pub fn output_len(&self) -> usize {
        self.algorithm.output_len()
    }

    /// The hash of `data`.
    pub fn hash(&self, data: &[u8]) -> Digest {
        self.hash_parts(&[data])
    }

    /// The hash of the concatenation of `parts`.
    pub fn hash_parts(&self, parts: &[&[u8]]) -> Digest {
        match &*self.keyed {
            Keyed::Blake2b(blake2b) => blake2b.hash_parts(parts, |hash| self.digest(hash)),
            Keyed::Blake2s(key) => {
                let mut state = blake2s_params(key, self.algorithm).to_state();
                parts.iter().for_each(|part| _ = state.update(part));
                self.digest(state.finalize().as_bytes())
            }
            Keyed::Blake3(key) => {
                let mut state = blake3::Hasher::new_keyed(key);
                parts.iter().for_each(|part| _ = state.update(part));
                self.digest(state.finalize().as_bytes())
            }
            Keyed::HmacSha2(key) => {
                let mut state = lc_hmac::Context::with_key(key);
                parts.iter().for_each(|part| state.update(part));
                self.digest(state.sign().as_ref())
            }
            Keyed::HmacSha3_224(keyed) => self.digest(&mac_of(keyed, parts)),
            Keyed::HmacSha3_256(keyed) => self.digest(&mac_of(keyed, parts)),
        }
    }

    /// Hashes each of `inputs` into the same place of `out`; both have the same length, or the shorter one counts.
    ///
    /// BLAKE2 runs several inputs side by side in the lanes of a vector register, which multiplies its speed
    /// (see [`Hasher::lanes`]); pass whole batches. BLAKE3 fills the lanes from a single input anyway.
    pub fn hash_many(&self, inputs: &[&[u8]], out: &mut [Digest]) {
        match &*self.keyed {
            Keyed::Blake2b(blake2b) if inputs.len() > 1 => {
                let limit = out.len();
                blake2b.hash_many(inputs, limit, |i, hash| out[i] = self.digest(hash));
            }
            Keyed::Blake2s(key) if inputs.len() > 1 => {
                let params = blake2s_params(key, self.algorithm);
                let order = longest_first(inputs, out.len());
                let mut jobs: Vec<_> =
                    order.iter().map(|&i| blake2s_many::HashManyJob::new(&params, inputs[i])).collect();
                blake2s_many::hash_many(jobs.iter_mut());
                for (job, &i) in jobs.iter().zip(&order) {
                    out[i] = self.digest(job.to_hash().as_bytes());
                }
            }
            _ => {
                for (digest, input) in out.iter_mut().zip(inputs) {
                    *digest = self.hash(input);
                }
            }
        }
    }

    /// How many inputs [`Hasher::hash_many`] works on at the same time on this machine; batches should hold a
    /// multiple of it.
    pub fn lanes(&self) -> usize {
        match &*self.keyed {
            Keyed::Blake2b(blake2b) => blake2b.lanes(),
            Keyed::Blake2s(_) => blake2s_many::degree(),
            _ => 1,
        }
    }

    fn digest(&self, full: &[u8]) -> Digest {
        Digest::truncated(full, self.algorithm.output_len())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// BLAKE2s, other than BLAKE2b, runs with the digest length of its name.
fn blake2s_params(key: &[u8], algorithm: HashAlgorithm) -> blake2s_simd::Params {
    let mut params = blake2s_simd::Params::new();
    params.hash_length(algorithm.output_len()).key(key);
    params
}

fn mac_of<M: Mac + Clone>(keyed: &M, parts: &[&[u8]]) -> impl AsRef<[u8]> + std::ops::Deref<Target = [u8]> {
    let mut state = keyed.clone();
    parts.iter().for_each(|part| state.update(part));
    state.finalize().into_bytes()
}

/// Indexes of the first `limit` inputs, longest first: lanes of about equal length finish together, and the last
/// inputs, which no longer fill all lanes, are the short ones.
fn longest_first(inputs: &[&[u8]], limit: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..inputs.len().min(limit)).collect();
    order.sort_unstable_by_key(|&i| Reverse(inputs[i].len()));
    order
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FOX: &str = "The quick brown fox jumps over the lazy dog";
    const TESTING_SECRET: &[u8] = b"a-repository-testing-hmac-secret";

    fn secret() -> Vec<u8> {
        (0x00..0x20).collect()
    }

    fn digest(name: &str, key: &[u8], message: &[u8]) -> String {
        hex::encode(Hasher::new(HashAlgorithm::from_name(name).unwrap(), key).unwrap().hash(message))
    }

    #[test]
    fn digests_are_those_of_kopias_own_tests() {
        let long = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
        assert_eq!(digest("HMAC-SHA256", b"key", FOX.as_bytes()), long);
        assert_eq!(digest("HMAC-SHA256-128", b"key", FOX.as_bytes()), long[..32]);
        let expected: [(&[u8], &str); 4] = [
            (b"", "0c2d44dc80de21b71d4219623082f5dc253fe9bb54e48b0fc90e118f8e6cf419"),
            (FOX.as_bytes(), "6bbb74fef0699e516fb96252d8280c1c7f3492e12de9ec6d79c3c9c39b7b0063"),
            (
                b"the quick brown fox jumps over the lazy dog",
                "f65fc4107863281faaeb7087197c05ad59457362607330c665c86c852c5e5906",
            ),
            (&[0; 100], "bfa2b4b9421671ab2b5bfa8c90ee33607784a27e452b08556509ef9bd47a37c6"),
        ];
        for (message, expected) in expected {
            assert_eq!(digest("HMAC-SHA256", TESTING_SECRET, message), expected);
        }
    }

    #[test]
    fn digests_are_those_of_the_format_specification() {
        let expected: [(&str, &[u8], &str); 8] = [
            ("BLAKE2B-256-128", b"", "4e51e7a913fc80137da52880fecca175"),
            ("BLAKE2B-256-128", b"hello", "bc2cf927f9ed52cc29116e6a5cfdbdf9"),
            ("BLAKE2B-256-128", &[0; 100], "51f63c2dab2f6d5b294d7ed4a0c41674"),
            ("BLAKE2S-128", b"", "9536f9b267655743dee97b8a670f9f53"),
            ("BLAKE2S-128", b"hello", "1f946dc212a39570bc06fd378517a91e"),
            ("BLAKE2S-256", b"hello", "9eb0cbcd6be5835f87e6c7d7f9bfcb07454a311777a671f274222bab4c191dea"),
            ("HMAC-SHA224", b"hello", "37f5f97c60a525c95aa82d8b17f759224536bf18a922d52f0311df41"),
            ("HMAC-SHA3-256", b"hello", "e6d520deb05cf56101c5bbbc508af68ee30d077975a59ed8a70523d8ea84e11e"),
        ];
        for (name, message, expected) in expected {
            assert_eq!(digest(name, &secret(), message), expected, "{name}");
        }
    }

    #[test]
    fn every_hash_function_agrees_with_kopia_for_short_and_long_keys_and_messages() {
        let recorded = include_str!("../tests/kopia/hashes.txt");
        let mut names = std::collections::HashSet::new();
        for line in recorded.lines().filter(|line| !line.starts_with('#')) {
            let [name, key_len, len, expected]: [&str; 4] =
                line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let key: Vec<u8> = (0..key_len.parse().unwrap()).collect();
            let message: Vec<u8> = (0..len.parse().unwrap()).map(|i: usize| (i % 251) as u8).collect();
            assert_eq!(digest(name, &key, &message), expected, "{line}");
            names.insert(name);
        }
        assert_eq!(names.len(), HashAlgorithm::ALL.len());
    }

    #[test]
    fn names_lengths_and_algorithms_belong_together() {
        for algorithm in HashAlgorithm::ALL {
            assert_eq!(HashAlgorithm::from_name(algorithm.name()), Ok(algorithm));
            let hasher = Hasher::new(algorithm, &secret()).unwrap();
            assert_eq!(hasher.hash(b"x").as_slice().len(), algorithm.output_len());
        }
        let error = HashAlgorithm::from_name("MD5").unwrap_err();
        assert!(error.to_string().contains("unknown hash function \"MD5\""), "{error}");
    }

    #[test]
    fn keys_that_a_function_cannot_use_are_refused() {
        let refused = [
            ("BLAKE2B-256", 65),
            ("BLAKE2B-256-128", 65),
            ("BLAKE2S-128", 0),
            ("BLAKE2S-128", 33),
            ("BLAKE2S-256", 33),
        ];
        for (name, length) in refused {
            let error = Hasher::new(HashAlgorithm::from_name(name).unwrap(), &vec![1; length]).unwrap_err();
            assert!(matches!(error, Error::InvalidKey { length: l, .. } if l == length), "{error}");
        }
        for algorithm in HashAlgorithm::ALL {
            assert!(Hasher::new(algorithm, &[1; 32]).is_ok(), "{}", algorithm.name());
        }
    }

    #[test]
    fn debug_output_does_not_show_the_key() {
        let hasher = Hasher::new(HashAlgorithm::Blake2b256_128, b"top secret").unwrap();
        assert_eq!(format!("{hasher:?}"), "Hasher { algorithm: Blake2b256_128, .. }");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn batches_and_parts_hash_like_single_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..20),
            cut in 0usize..3000,
        ) {
            let inputs: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            for algorithm in HashAlgorithm::ALL {
                let hasher = Hasher::new(algorithm, b"some key").unwrap();
                let mut batch = vec![Digest::default(); inputs.len()];
                hasher.hash_many(&inputs, &mut batch);
                for (input, digest) in inputs.iter().zip(batch) {
                    prop_assert_eq!(hasher.hash(input), digest, "{}", algorithm.name());
                    let (head, tail) = input.split_at(cut.min(input.len()));
                    prop_assert_eq!(hasher.hash_parts(&[head, tail]), digest, "{}", algorithm.name());
                }
            }
        }
    }
}
