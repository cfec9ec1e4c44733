//! What an entry has beyond what Kopia keeps: extended attributes, hard links, devices, holes, names that are no text.
//!
//! All of it is one JSON member of the entry, [`MEMBER`], which Kopia ignores, and which is left out where there is
//! nothing to say: a listing without extras is byte for byte Kopia's. Nothing in it refers to other objects, so
//! Kopia's garbage collection has nothing to miss. What is lost when Kopia rewrites a listing (`snapshot fix`) is
//! only this member.

use crate::gojson::{Base64, OmitEmpty, go_object};
use aws_lc_rs::digest;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;

/// The name of the member of an entry that holds its extras.
pub const MEMBER: &str = "lifeboat";
/// The longest name that Linux file systems take.
const MAX_NAME: usize = 255;
/// Digits of the hash that makes an escaped name unique.
const HASH_DIGITS: usize = 16;

/// What a special file is. In the listing it is an ordinary file without bytes, which is what Kopia restores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecialKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device of characters; [`Extras::device`] says which.
    CharDevice,
    /// A device of blocks; [`Extras::device`] says which.
    BlockDevice,
    /// Something that this program does not know.
    Other(String),
}

impl SpecialKind {
    /// The word in the listing.
    pub fn as_str(&self) -> &str {
        match self {
            SpecialKind::Fifo => "fifo",
            SpecialKind::Socket => "socket",
            SpecialKind::CharDevice => "char",
            SpecialKind::BlockDevice => "block",
            SpecialKind::Other(word) => word,
        }
    }
}

// It only ever stands for a JSON null, which `Option` has taken already.
impl Default for SpecialKind {
    fn default() -> Self {
        SpecialKind::Other(String::new())
    }
}

impl Serialize for SpecialKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for SpecialKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = Cow::<'_, str>::deserialize(deserializer)?;
        Ok(match &*word {
            "fifo" => SpecialKind::Fifo,
            "socket" => SpecialKind::Socket,
            "char" => SpecialKind::CharDevice,
            "block" => SpecialKind::BlockDevice,
            _ => SpecialKind::Other(word.into_owned()),
        })
    }
}

go_object! {
    /// The number of a device.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct DeviceNumber {
        /// Which driver.
        pub major: u32 => "major",
        /// Which of its devices.
        pub minor: u32 => "minor",
    }
}

go_object! {
    /// A file that has several names: entries of one snapshot with the same group are one file.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct HardLink {
        /// The number of the file in its file system.
        pub inode: u64 => "inode",
        /// Which file system: 0 is that of the root, so that a copy of a volume at another place gives the same
        /// listings; others are told apart by any other number.
        pub file_system: u64 => "fs" omitempty,
        /// How many names the file had, some of which may lie outside of the snapshot.
        pub names: u64 => "names" omitempty,
    }
}

impl HardLink {
    /// What the entries of one file have in common, and no others.
    pub fn group(&self) -> (u64, u64) {
        (self.file_system, self.inode)
    }
}

/// A time that JSON dates cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExactTime {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// Nanoseconds on top of them.
    pub nanoseconds: u32,
}

/// A range of a file that has no blocks and reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// The holes of a file in order; in JSON a flat list of offsets and lengths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holes(Vec<Hole>);

impl Holes {
    /// More holes than this are not recorded: whoever restores such a file looks for zeros instead.
    pub const MAX: usize = 1024;

    /// These holes; `None` if there are more than [`MAX`](Self::MAX).
    pub fn new(holes: Vec<Hole>) -> Option<Holes> {
        (holes.len() <= Holes::MAX).then_some(Holes(holes))
    }

    /// They are in order and do not overlap, also where somebody else has written them.
    pub fn iter(&self) -> impl Iterator<Item = Hole> + '_ {
        self.0.iter().copied()
    }
}

impl OmitEmpty for Holes {
    fn is_empty_value(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Holes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().flat_map(|hole| [hole.offset, hole.length]))
    }
}

impl<'de> Deserialize<'de> for Holes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let numbers = Vec::<u64>::deserialize(deserializer)?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        let mut holes = Vec::with_capacity(pairs.len());
        let mut end = 0u64;
        for &[offset, length] in pairs {
            let next = offset.checked_add(length).filter(|_| offset >= end);
            end = next.ok_or_else(|| serde::de::Error::custom("the holes of a file are not in order"))?;
            holes.push(Hole { offset, length });
        }
        match rest {
            [] => Ok(Holes(holes)),
            _ => Err(serde::de::Error::custom("a hole of a file has no length")),
        }
    }
}

/// The name of an extended attribute. Bytes, in JSON a text in which `%` and what is not UTF-8 are written as `%xx`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct XattrName(pub Vec<u8>);

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for XattrName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for XattrName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        unescape(&text).map(XattrName).ok_or_else(|| {
            serde::de::Error::custom(format_args!("{text:?} is not the name of an extended attribute"))
        })
    }
}

go_object! {
    /// What an entry has beyond what Kopia keeps.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Extras {
        /// The bytes of a name that is not UTF-8; the entry's own name is made up then.
        pub raw_name: Base64 => "name" omitempty,
        /// What kind of special file it is.
        pub kind: Option<SpecialKind> => "kind" omitempty,
        /// Which device it is.
        pub device: Option<DeviceNumber> => "device" omitempty,
        /// Which other entries are the same file.
        pub hard_link: Option<HardLink> => "link" omitempty,
        /// Extended attributes, access control lists (`system.posix_acl_…`) and capabilities
        /// (`security.capability`) among them, as the kernel gives them.
        pub xattrs: BTreeMap<XattrName, Base64> => "xattrs" omitempty,
        /// The holes of a file, unless there are too many.
        pub holes: Holes => "holes" omitempty,
        /// The time of modification where the entry's own field cannot hold it.
        pub mtime: Option<ExactTime> => "mtime" omitempty,
        /// On the root of a snapshot: extras were looked for, so an entry without any has none.
        pub recorded: bool => "recorded" omitempty,
        /// On the root of a snapshot that says another time: when it was really begun.
        pub begun: Option<Timestamp> => "begun" omitempty,
    }
}

impl Extras {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        *self == Extras::default()
    }
}

/// The name under which a file whose name is not UTF-8 is listed, as text; `None` if it needs no other name.
///
/// It is made of the name's bytes alone, so that every backup lists the file under the same name; a hash of all bytes
/// tells apart those that look alike, and it is never longer than a name may be.
pub fn listed_name(raw: &[u8]) -> Option<String> {
    if std::str::from_utf8(raw).is_ok() {
        return None;
    }
    let mut name = escape(raw);
    let mut cut = name.len().min(MAX_NAME - HASH_DIGITS - 1);
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    name.truncate(cut);
    let hash = digest::digest(&digest::SHA256, raw);
    let _ = write!(name, "~{}", &hex::encode(hash)[..HASH_DIGITS]);
    Some(name)
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, part) in chunk.valid().split('%').enumerate() {
            if at > 0 {
                text.push_str("%25");
            }
            text.push_str(part);
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let mut byte = [0];
        hex::decode_to_slice(digits, &mut byte).ok()?;
        bytes.push(byte[0]);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

/// The time of an entry as it is listed, and as it really is if the listing cannot hold it.
pub(super) fn listed_time(seconds: i64, nanoseconds: u32) -> (Timestamp, Option<ExactTime>) {
    let listed = super::entry_time(seconds, nanoseconds);
    let nanos = i32::try_from(nanoseconds).unwrap_or(0);
    match Timestamp::new(seconds, nanos) {
        Ok(exact) if exact == listed => (listed, None),
        _ => (listed, Some(ExactTime { seconds, nanoseconds })),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{DirEntry, EntryType};
    use super::*;
    use crate::gojson;
    use proptest::prelude::*;

    fn all_of_them() -> Extras {
        Extras {
            raw_name: Base64(b"bad\xff".to_vec()),
            kind: Some(SpecialKind::CharDevice),
            device: Some(DeviceNumber { major: 1, minor: 3, ..DeviceNumber::default() }),
            hard_link: Some(HardLink { inode: 7, file_system: 0, names: 2, ..HardLink::default() }),
            xattrs: BTreeMap::from([(XattrName(b"user.\xff%a".to_vec()), Base64(b"v\0".to_vec()))]),
            holes: Holes::new(vec![Hole { offset: 4096, length: 8192 }]).unwrap(),
            mtime: Some(ExactTime { seconds: i64::MAX, nanoseconds: 5 }),
            ..Extras::default()
        }
    }

    #[test]
    fn extras_are_one_member_after_all_of_kopia_s() {
        let entry = DirEntry {
            name: "a".into(),
            entry_type: EntryType::File,
            object: "00".into(),
            extras: Some(Box::new(all_of_them())),
            ..DirEntry::default()
        };
        let json = gojson::to_string(&entry).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"name":"a","type":"f","obj":"00","lifeboat":{"name":"YmFk/w==","kind":"char","#,
                r#""device":{"major":1,"minor":3},"link":{"inode":7,"names":2},"#,
                r#""xattrs":{"user.%ff%25a":"dgA="},"holes":[4096,8192],"#,
                r#""mtime":{"seconds":9223372036854775807,"nanoseconds":5}}}"#
            )
        );
        assert_eq!(serde_json::from_str::<DirEntry>(&json).unwrap(), entry);
        assert!(json.contains(&format!("\"{MEMBER}\":{{")));
    }

    #[test]
    fn what_a_newer_program_added_is_kept() {
        let json = r#"{"obj":"00","lifeboat":{"kind":"door","later":[1,{"x":null}]}}"#;
        let entry: DirEntry = serde_json::from_str(json).unwrap();
        let kind = entry.extras.as_ref().unwrap().kind.clone().unwrap();
        assert_eq!(kind, SpecialKind::Other("door".into()));
        assert_eq!(gojson::to_string(&entry).unwrap(), json);
    }

    #[test]
    fn hostile_extras_are_refused() {
        for extras in [
            r#"{"holes":[1]}"#,
            r#"{"holes":[18446744073709551615,1]}"#,
            r#"{"holes":[10,5,12,1]}"#,
            r#"{"xattrs":{"user.%f":""}}"#,
            r#"{"xattrs":{"user.%zz":""}}"#,
            r#"{"name":"?"}"#,
            r#"[]"#,
        ] {
            let json = format!("{{\"obj\":\"00\",\"lifeboat\":{extras}}}");
            assert!(serde_json::from_str::<DirEntry>(&json).is_err(), "{extras}");
        }
        assert_eq!(Holes::new(vec![Hole { offset: 0, length: 1 }; Holes::MAX + 1]), None);
    }

    #[test]
    fn names_that_are_text_are_listed_as_they_are_and_others_under_one_that_fits() {
        assert_eq!(listed_name("é%\n".as_bytes()), None);
        let name = listed_name(b"caf\xe9%").unwrap();
        assert!(name.starts_with("caf%e9%25~"), "{name}");
        assert_eq!(name, listed_name(b"caf\xe9%").unwrap());
        assert_ne!(listed_name(&[0xff; 254]), listed_name(&[0xff; 255]));
        assert_eq!(listed_name(&[0xff; 255]).unwrap().len(), MAX_NAME);
    }

    #[test]
    fn times_outside_of_json_s_years_are_kept_beside_it() {
        assert_eq!(listed_time(1, 5).1, None);
        for seconds in [i64::MIN, i64::MAX, 253_402_300_800, -62_167_219_201] {
            assert_eq!(listed_time(seconds, 9).1, Some(ExactTime { seconds, nanoseconds: 9 }));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive_as_the_name_of_an_attribute(name: Vec<u8>) {
            let json = serde_json::to_string(&XattrName(name.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<XattrName>(&json).unwrap().0, name);
        }

        #[test]
        fn a_listed_name_is_never_too_long(name: Vec<u8>) {
            if let Some(listed) = listed_name(&name) {
                prop_assert!(listed.len() <= MAX_NAME && !listed.contains('\0') || name.contains(&0));
            }
        }
    }
}
