//! Content identifiers: an optional one-letter prefix and a hash, in text and in binary form.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The longest hash that a content id may carry, in bytes.
pub const MAX_HASH_LEN: usize = 32;
/// The longest binary form: the prefix byte and the hash.
pub(crate) const MAX_KEY_LEN: usize = 1 + MAX_HASH_LEN;

/// Why bytes or text are not a content id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidContentId {
    /// The prefix is neither absent nor one of `g`..`z`.
    #[error("content id prefix 0x{0:02x} is not one of g..z")]
    Prefix(u8),
    /// The hash is empty or longer than [`MAX_HASH_LEN`].
    #[error("content id hash has {0} bytes, expected 1 to 32")]
    HashLength(usize),
    /// The text is not hexadecimal.
    #[error("content id is not hexadecimal after its prefix")]
    NotHex,
}

/// The letter that says what kind of content an id names, or [`Prefix::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Prefix(u8);

impl Prefix {
    /// No prefix: user data.
    pub const NONE: Prefix = Prefix(0);
    /// Directory listings.
    pub const DIRECTORY: Prefix = Prefix(b'k');
    /// Indexes of objects that consist of several contents.
    pub const INDIRECT: Prefix = Prefix(b'x');
    /// Manifests.
    pub const MANIFEST: Prefix = Prefix(b'm');

    /// The prefix for its byte in a binary id: 0 for none, or an ASCII letter `g`..`z`.
    pub fn new(byte: u8) -> Result<Self, InvalidContentId> {
        match byte {
            0 | b'g'..=b'z' => Ok(Prefix(byte)),
            _ => Err(InvalidContentId::Prefix(byte)),
        }
    }

    /// The byte that starts the binary form: 0 for none.
    pub fn byte(self) -> u8 {
        self.0
    }

    /// Whether there is no prefix.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The name of a content.
///
/// Ids are ordered as the bytes of their binary form, which is also the order of every index.
#[derive(Clone, Copy)]
pub struct ContentId {
    key: [u8; MAX_KEY_LEN],
    len: u8,
}

impl ContentId {
    /// An id from its parts.
    pub fn new(prefix: Prefix, hash: &[u8]) -> Result<Self, InvalidContentId> {
        if hash.is_empty() || hash.len() > MAX_HASH_LEN {
            return Err(InvalidContentId::HashLength(hash.len()));
        }
        let mut key = [0; MAX_KEY_LEN];
        key[0] = prefix.0;
        key[1..=hash.len()].copy_from_slice(hash);
        Ok(ContentId { key, len: 1 + hash.len() as u8 })
    }

    /// An id from its binary form, as [`key`](ContentId::key) gives it.
    pub fn from_key(key: &[u8]) -> Result<Self, InvalidContentId> {
        match key {
            [prefix, hash @ ..] => ContentId::new(Prefix::new(*prefix)?, hash),
            [] => Err(InvalidContentId::HashLength(0)),
        }
    }

    /// The binary form: the prefix byte (0 for none), then the hash.
    pub fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.len)]
    }

    /// The prefix.
    pub fn prefix(&self) -> Prefix {
        Prefix(self.key[0])
    }

    /// The hash.
    pub fn hash(&self) -> &[u8] {
        &self.key()[1..]
    }

    /// Writes the text form into `buffer` and returns it: what [`Display`](fmt::Display) prints, without a heap.
    pub fn encode_text<'a>(&self, buffer: &'a mut [u8; 1 + 2 * MAX_HASH_LEN]) -> &'a str {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let start = usize::from(!self.prefix().is_none());
        buffer[0] = self.key[0];
        let mut end = start;
        for byte in self.hash() {
            buffer[end] = DIGITS[usize::from(byte >> 4)];
            buffer[end + 1] = DIGITS[usize::from(byte & 15)];
            end += 2;
        }
        // Only ASCII was written; an empty text is unreachable.
        std::str::from_utf8(&buffer[..end]).unwrap_or_default()
    }
}

/// The first eight bytes of a key as a number that never contradicts the order of the keys; shorter keys count as
/// followed by zeros, the least bytes there are.
pub(crate) fn first_key(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => key.iter().rev().fold(0, |number, byte| number >> 8 | u64::from(*byte) << 56),
    }
}

impl PartialEq for ContentId {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ContentId {}

impl PartialOrd for ContentId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ContentId {
    fn cmp(&self, other: &Self) -> Ordering {
        // The first bytes decide nearly always, and are compared at once.
        first_key(&self.key).cmp(&first_key(&other.key)).then_with(|| self.key().cmp(other.key()))
    }
}

impl Hash for ContentId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.encode_text(&mut [0; 1 + 2 * MAX_HASH_LEN]))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({self})")
    }
}

impl FromStr for ContentId {
    type Err = InvalidContentId;

    /// Parses the text form; an odd length means that there is a prefix.
    fn from_str(text: &str) -> Result<Self, InvalidContentId> {
        let bytes = text.as_bytes();
        let (prefix, digits) = match bytes {
            [] => return Err(InvalidContentId::HashLength(0)),
            [0, ..] => return Err(InvalidContentId::Prefix(0)),
            [prefix, digits @ ..] if bytes.len() % 2 == 1 => (Prefix::new(*prefix)?, digits),
            _ => (Prefix::NONE, bytes),
        };
        let len = digits.len() / 2;
        if len == 0 || len > MAX_HASH_LEN {
            return Err(InvalidContentId::HashLength(len));
        }
        let mut hash = [0; MAX_HASH_LEN];
        hex::decode_to_slice(digits, &mut hash[..len]).map_err(|_| InvalidContentId::NotHex)?;
        ContentId::new(prefix, &hash[..len])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn text_and_binary_forms_round_trip() {
        for text in ["00112233445566778899aabbccddeeff", "kffeeddccbbaa99887766554433221100", "m00", "0a"] {
            let id: ContentId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(ContentId::from_key(id.key()).unwrap(), id);
        }
        let id: ContentId = "kABCD".parse().unwrap();
        assert_eq!(
            (id.to_string().as_str(), id.prefix(), id.hash()),
            ("kabcd", Prefix::DIRECTORY, &[0xab, 0xcd][..])
        );
    }

    #[test]
    fn hostile_texts_are_refused() {
        let too_long = "0".repeat(66);
        let too_long_with_prefix = format!("k{too_long}");
        for text in [
            "",
            "k",
            "f00",
            "F00",
            "\0ab",
            "{00",
            "0g",
            "kzz",
            "é",
            "k0é",
            "ab ",
            &too_long,
            &too_long_with_prefix,
        ] {
            assert!(text.parse::<ContentId>().is_err(), "{text:?}");
        }
        assert!(ContentId::from_key(&[]).is_err());
        assert!(ContentId::from_key(&[0]).is_err());
        assert!(ContentId::from_key(&[b'f', 1]).is_err());
        assert!(ContentId::from_key(&[0; 34]).is_err());
    }

    #[test]
    fn order_is_that_of_the_binary_form() {
        let mut ids: Vec<ContentId> =
            ["m00", "ffff", "k01", "00", "0000", "g00"].iter().map(|text| text.parse().unwrap()).collect();
        ids.sort();
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["00", "0000", "ffff", "g00", "k01", "m00"]);
    }
}
