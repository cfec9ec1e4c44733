//! File modes as Go numbers them.

use crate::gojson::OmitEmpty;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Permissions with Go's positions for set-uid, set-gid and sticky; in JSON a text, `0` and octal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GoMode(pub u32);

const PERMISSIONS: u32 = 0o777;
/// (Go's bit, Unix's bit) of set-uid, set-gid and sticky.
const SPECIAL: [(u32, u32); 3] = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];

impl GoMode {
    /// From the low twelve bits of a Unix mode; type bits are dropped.
    pub fn from_unix(mode: u32) -> GoMode {
        let special = SPECIAL.iter().filter(|(_, unix)| mode & unix != 0).map(|(go, _)| go);
        GoMode(special.fold(mode & PERMISSIONS, |bits, bit| bits | bit))
    }

    /// As the low twelve bits of a Unix mode; bits without a Unix meaning are dropped.
    pub fn to_unix(self) -> u32 {
        let special = SPECIAL.iter().filter(|(go, _)| self.0 & go != 0).map(|(_, unix)| unix);
        special.fold(self.0 & PERMISSIONS, |bits, bit| bits | bit)
    }

    /// Parses a Go integer literal (a leading `0` means octal) of at most 31 bits.
    fn parse(text: &str) -> Option<GoMode> {
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&text[2..], 16),
            [b'0', b'o' | b'O', ..] => (&text[2..], 8),
            [b'0', b'b' | b'B', ..] => (&text[2..], 2),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (text, 10),
        };
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u32::from_str_radix(digits, radix).ok()?;
        (plain && bits <= i32::MAX as u32).then_some(GoMode(bits))
    }
}

impl OmitEmpty for GoMode {
    fn is_empty_value(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for GoMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("0{:o}", self.0))
    }
}

impl<'de> Deserialize<'de> for GoMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        GoMode::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format_args!("{text:?} is not a file mode")))
    }
}
