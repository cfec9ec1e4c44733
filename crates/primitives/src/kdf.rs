//! Key derivation: from a password to the format key, and from one key to the next.

use crate::{Error, Result};
use aws_lc_rs::{hkdf, pbkdf2};
use std::num::NonZeroU32;
use zeroize::Zeroizing;

/// Length of the key that a password yields.
pub const FORMAT_KEY_LEN: usize = 32;

/// How a repository turns its password into the format key (`keyAlgo` of the format blob).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeyAlgorithm {
    /// scrypt with N = 65536, r = 8, p = 1: Kopia's default, readable by every version. Takes 64 MiB of memory.
    #[default]
    Scrypt,
    /// PBKDF2-HMAC-SHA256 with 600 000 rounds (Kopia 0.18 and later).
    Pbkdf2,
}

const SCRYPT_LOG_N: u8 = 16;
const SCRYPT_R: u32 = 8;
const SCRYPT_P: u32 = 1;
const PBKDF2_ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).unwrap();

impl KeyAlgorithm {
    /// Every algorithm that can be read and written.
    pub const ALL: [KeyAlgorithm; 2] = [KeyAlgorithm::Scrypt, KeyAlgorithm::Pbkdf2];

    /// The name in the format blob.
    pub fn name(self) -> &'static str {
        match self {
            KeyAlgorithm::Scrypt => "scrypt-65536-8-1",
            KeyAlgorithm::Pbkdf2 => "pbkdf2-sha256-600000",
        }
    }

    /// The algorithm called `name` in a format blob.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "password key derivation", name: name.into() })
    }

    /// The format key of `password` in the repository whose unique id is `salt`. Slow on purpose (a good part of
    /// a second): call it off the async threads.
    pub fn derive(self, password: &[u8], salt: &[u8]) -> Result<Zeroizing<[u8; FORMAT_KEY_LEN]>> {
        let mut key = Zeroizing::new([0; FORMAT_KEY_LEN]);
        match self {
            KeyAlgorithm::Scrypt => {
                let params = scrypt::Params::new(SCRYPT_LOG_N, SCRYPT_R, SCRYPT_P)
                    .map_err(|_| Error::Internal("scrypt parameter setup"))?;
                scrypt::scrypt(password, salt, &params, key.as_mut())
                    .map_err(|_| Error::Internal("scrypt"))?;
            }
            KeyAlgorithm::Pbkdf2 => {
                pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, PBKDF2_ROUNDS, salt, password, key.as_mut());
            }
        }
        Ok(key)
    }
}

/// The length that HKDF is asked for.
struct OutputLen(usize);

impl hkdf::KeyType for OutputLen {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256 (RFC 5869, extract and expand) of `ikm` into `out`, which may be at most 8160 bytes long.
pub fn hkdf_sha256(ikm: &[u8], salt: &[u8], info: &[u8], out: &mut [u8]) -> Result<()> {
    let too_long = |_| Error::InvalidParameter {
        what: "an HKDF output length",
        value: out.len() as u64,
        expected: "at most 8160 bytes",
    };
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(ikm);
    let info = [info];
    let output = key.expand(&info, OutputLen(out.len())).map_err(too_long)?;
    output.fill(out).map_err(|_| Error::Internal("HKDF"))
}

/// HKDF-SHA256 into a fresh 32-byte key.
pub fn hkdf_sha256_key(ikm: &[u8], salt: &[u8], info: &[u8]) -> Result<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    hkdf_sha256(ikm, salt, info, key.as_mut())?;
    Ok(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn unique_id() -> Vec<u8> {
        (0x00..0x20).collect()
    }

    fn master_key() -> Vec<u8> {
        (0x20..0x40).collect()
    }

    #[test]
    fn hkdf_gives_the_value_of_kopias_own_test() {
        let key = hkdf_sha256_key(b"ABCDEFGHIJKLMNOP", b"0123456789012345", b"the-test-purpose").unwrap();
        assert_eq!(hex::encode(*key), "828769ee8969bc37f11dbaa32838f8db6c19daa6e3ae5f5eed2da2d94d8faddb");
    }

    #[test]
    fn hkdf_gives_the_maintenance_key() {
        let key = hkdf_sha256_key(&master_key(), &unique_id(), b"maintenance schedule").unwrap();
        assert_eq!(hex::encode(*key), "327e5ba0d7687c8a777e26dddaccb1fc6bdcf0e21a7f753928633d8186db741f");
    }

    #[test]
    fn hkdf_refuses_an_output_that_rfc_5869_forbids() {
        assert!(hkdf_sha256(b"k", b"s", b"", &mut [0; 8160]).is_ok());
        let error = hkdf_sha256(b"k", b"s", b"", &mut [0; 8161]).unwrap_err();
        assert!(error.to_string().contains("8161"), "{error}");
    }

    #[test]
    fn each_key_algorithm_turns_the_password_into_the_known_format_key() {
        let expected = [
            (KeyAlgorithm::Scrypt, "ffe609844d93eddf89ad495da77bd83e8cec100e27b03a6257d505de6e36094d"),
            (KeyAlgorithm::Pbkdf2, "518d6d7b82de0409ec8e6ac75d7c8bbffc679b706969d9122bf26bfdccaa034b"),
        ];
        for (algorithm, key) in expected {
            let derived = algorithm.derive(b"static-passw0rd", &unique_id()).unwrap();
            assert_eq!(hex::encode(*derived), key, "{}", algorithm.name());
        }
    }

    #[test]
    fn names_lead_back_to_their_algorithm_and_unknown_ones_are_named_in_the_error() {
        for algorithm in KeyAlgorithm::ALL {
            assert_eq!(KeyAlgorithm::from_name(algorithm.name()), Ok(algorithm));
        }
        let error = KeyAlgorithm::from_name("pbkdf2").unwrap_err();
        assert!(error.to_string().contains("\"pbkdf2\""), "{error}");
    }
}
