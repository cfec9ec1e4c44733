//! Secrets: the password, and the keys that it opens.

use crate::Result;
use crate::gojson::OmitEmpty;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lifeboat_primitives::kdf::KeyAlgorithm;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// A repository password. Never printed, wiped from memory when dropped. Clones share the key that was last derived from it: that
/// takes a good part of a second, and one command may open a repository several times.
#[derive(Clone)]
pub struct Password {
    text: Zeroizing<String>,
    derived: Arc<Mutex<Option<Derived>>>,
}

/// A key, and what it was derived for.
struct Derived {
    algorithm: KeyAlgorithm,
    salt: Vec<u8>,
    key: Secret,
}

impl Password {
    /// Wraps a password.
    pub fn new(password: impl Into<String>) -> Self {
        Password { text: Zeroizing::new(password.into()), derived: Arc::default() }
    }

    /// The password itself.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The key that it gives.
    pub(super) fn derive(&self, algorithm: KeyAlgorithm, salt: &[u8]) -> Result<Secret> {
        let mut derived = self.derived.lock();
        let known = derived.as_ref().filter(|known| known.algorithm == algorithm && known.salt == salt);
        if let Some(known) = known {
            return Ok(known.key.clone());
        }
        let key = Secret::from(algorithm.derive(self.text.as_bytes(), salt)?.as_slice());
        *derived = Some(Derived { algorithm, salt: salt.to_vec(), key: key.clone() });
        Ok(key)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(redacted)")
    }
}

/// Key material; in JSON base64. Never printed, wiped from memory when dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Secret(Zeroizing::new(bytes.to_vec()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes, redacted)", self.0.len())
    }
}

impl OmitEmpty for Secret {
    fn is_empty_value(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let text = Zeroizing::new(STANDARD.encode(&*self.0));
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut text = String::deserialize(deserializer)?;
        // The decoder's message quotes the offending byte: not for secrets.
        let bytes =
            STANDARD.decode(&text).map_err(|_| serde::de::Error::custom("a secret is not valid base64"));
        text.zeroize();
        bytes.map(|bytes| Secret(Zeroizing::new(bytes)))
    }
}
