//! The JSON of an indirect index: which objects, one after another, make up an object.

use super::ObjectId;
use super::Objects;
use super::writer::{ObjectWriter, WriterOptions};
use crate::{Error, Result};
use lifeboat_index::Prefix;
use lifeboat_primitives::compress::Compressor;
use serde::Deserialize;
use std::fmt::Write;

/// What `stream` says.
const STREAM: &str = "kopia:indirect";
/// How much JSON is put together before it is written.
const TEXT: usize = 64 << 10;

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) object: ObjectId,
}

/// Writes the index of `entries` as an object, and returns the id of the object that it stands for.
///
/// `entries` must be contiguous and not empty: Kopia crashes on an index without entries.
pub(super) fn write(
    objects: &Objects,
    entries: &[Entry],
    prefix: Prefix,
    compression: Option<Compressor>,
) -> Result<ObjectId> {
    if entries.is_empty() {
        return Err(Error::Invalid("an object without parts has no index".into()));
    }
    let prefix = if prefix.is_none() { Prefix::INDIRECT } else { prefix };
    let options = WriterOptions { prefix, compression, metadata_compression: compression, splitter: None };
    let mut writer = ObjectWriter::new(objects.clone(), options);
    let mut text = format!("{{\"stream\":\"{STREAM}\",\"entries\":[");
    for (at, entry) in entries.iter().enumerate() {
        push_entry(&mut text, at > 0, entry);
        if text.len() >= TEXT {
            writer.write(text.as_bytes())?;
            text.clear();
        }
    }
    text.push_str("]}\n");
    writer.write(text.as_bytes())?;
    ObjectId::indirect(writer.finish()?)
        .ok_or_else(|| Error::Invalid("an object has too many levels of indexes".into()))
}

/// As Go writes it: zeros are left out.
fn push_entry(text: &mut String, comma: bool, entry: &Entry) {
    let comma = if comma { "," } else { "" };
    // Writing to a string cannot fail.
    let _ = match entry.start {
        0 => write!(text, "{comma}{{\"l\":{},\"o\":\"{}\"}}", entry.length, entry.object),
        start => write!(text, "{comma}{{\"s\":{start},\"l\":{},\"o\":\"{}\"}}", entry.length, entry.object),
    };
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    entries: Option<Vec<DocumentEntry>>,
}

#[derive(Deserialize)]
struct DocumentEntry {
    #[serde(default)]
    s: u64,
    #[serde(default)]
    l: u64,
    o: ObjectId,
}

/// Reads an index; a text says what is wrong with it.
pub(super) fn parse(json: &[u8]) -> std::result::Result<Vec<Entry>, String> {
    let document: Document =
        serde_json::from_slice(json).map_err(|e| format!("its index is not valid: {e}"))?;
    if document.stream != STREAM {
        return Err("its index is not an indirect index".into());
    }
    let entries = document.entries.unwrap_or_default();
    if entries.is_empty() {
        return Err("its index has no entries".into());
    }
    let mut end = 0u64;
    let mut parsed = Vec::with_capacity(entries.len());
    for DocumentEntry { s, l, o } in entries {
        if s != end || l == 0 {
            return Err(format!("its index has a gap, an overlap or an empty part at {s}"));
        }
        end = s.checked_add(l).filter(|end| *end <= i64::MAX as u64).ok_or("its index is too long")?;
        parsed.push(Entry { start: s, length: l, object: o });
    }
    Ok(parsed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_written_and_read_as_kopia_does() {
        let entries = [
            Entry { start: 0, length: 7_616_808, object: "a6d5".parse().unwrap() },
            Entry { start: 7_616_808, length: 8_388_608, object: "7ba1".parse().unwrap() },
        ];
        let mut text = String::new();
        push_entry(&mut text, false, &entries[0]);
        push_entry(&mut text, true, &entries[1]);
        assert_eq!(text, r#"{"l":7616808,"o":"a6d5"},{"s":7616808,"l":8388608,"o":"7ba1"}"#);
        let json = format!("{{\"stream\":\"kopia:indirect\",\"entries\":[{text}]}}\n");
        assert_eq!(parse(json.as_bytes()).unwrap(), entries);
    }

    #[test]
    fn hostile_indexes_are_refused() {
        for json in [
            "",
            "{}",
            r#"{"stream":"kopia:indirect","entries":null}"#,
            r#"{"stream":"kopia:indirect","entries":[]}"#,
            r#"{"stream":"kopia:directory","entries":[{"l":1,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":0,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"s":1,"l":1,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":5,"o":"00"},{"s":4,"l":1,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":18446744073709551615,"o":"00"},{"s":18446744073709551615,"l":5,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":-1,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":1,"o":"IZ00"}]}"#,
        ] {
            assert!(parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
