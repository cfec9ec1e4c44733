//! The JSON of an indirect index: which objects, one after another, make up an object.

use super::runs::Run;
use super::writer::{ObjectWriter, WriterOptions};
use super::{ObjectId, ObjectReader, ObjectText, Objects};
use crate::{Error, Result};
use lifeboat_index::Prefix;
use lifeboat_primitives::compress::Compressor;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::io::BufReader;
use tokio::runtime::Handle;

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

/// More parts than any real object has: the largest file of ext4 has as many if it is cut every 128 KiB, as its data is
/// on average, or half of it if it is a hole, which is cut twice as often. Their index takes gigabytes. Without a limit, a hole that costs nobody anything would keep a backup busy for ever.
const MAX_PARTS: u64 = 1 << 27;

/// Refuses objects that are too large, before work is put into them.
pub(super) fn check_size(parts: u64, length: u64) -> Result<()> {
    match parts <= MAX_PARTS && length <= i64::MAX as u64 {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "an object of {length} bytes in {parts} parts is too large (at most {MAX_PARTS} parts are possible); leave \
             it out, or choose a splitter with longer pieces"
        ))),
    }
}

/// An object whose index was written, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Indexed {
    pub(super) object: ObjectId,
    pub(super) parts: u64,
    pub(super) length: u64,
}

/// Writes the index of an object part by part; it is never in memory as a whole.
#[derive(Debug)]
pub(super) struct IndexWriter {
    writer: ObjectWriter,
    /// What is not written yet.
    text: String,
    parts: u64,
    /// Where the next part starts.
    end: u64,
    first: Option<ObjectId>,
}

impl IndexWriter {
    /// The index of an object whose contents have this prefix.
    pub(super) fn new(objects: &Objects, prefix: Prefix, compression: Option<Compressor>) -> Self {
        let prefix = if prefix.is_none() { Prefix::INDIRECT } else { prefix };
        let options =
            WriterOptions { prefix, compression, metadata_compression: compression, splitter: None };
        let writer = ObjectWriter::new(objects.clone(), options);
        let text = format!("{{\"stream\":\"{STREAM}\",\"entries\":[");
        IndexWriter { writer, text, parts: 0, end: 0, first: None }
    }

    /// Adds the same part so many times.
    pub(super) fn push(&mut self, Run { count, length, object }: Run) -> Result<()> {
        let end = count.checked_mul(length).and_then(|bytes| self.end.checked_add(bytes));
        check_size(self.parts.saturating_add(count), end.unwrap_or(u64::MAX))?;
        self.first.get_or_insert(object);
        let name = object.to_string();
        for _ in 0..count {
            push_entry(&mut self.text, self.parts > 0, self.end, length, &name);
            self.parts += 1;
            self.end += length;
            if self.text.len() >= TEXT {
                self.writer.write(self.text.as_bytes())?;
                self.text.clear();
            }
        }
        Ok(())
    }

    /// Where the next part starts.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The object: its only part, or what the index stands for; `None` if it has no parts.
    pub(super) fn into_object(self) -> Result<Option<Indexed>> {
        let (parts, length) = (self.parts, self.end);
        let object = match parts {
            0 | 1 => self.first,
            _ => Some(self.finish()?),
        };
        Ok(object.map(|object| Indexed { object, parts, length }))
    }

    /// The object that the index stands for, also if it has a single part. There must be one: Kopia crashes on an index
    /// without entries.
    pub(super) fn finish(mut self) -> Result<ObjectId> {
        if self.parts == 0 {
            return Err(Error::Invalid("an object without parts has no index".into()));
        }
        self.text.push_str("]}\n");
        self.writer.write(self.text.as_bytes())?;
        ObjectId::indirect(self.writer.finish()?)
            .ok_or_else(|| Error::Invalid("an object has too many levels of indexes".into()))
    }
}

/// As Go writes it: zeros are left out.
fn push_entry(text: &mut String, comma: bool, start: u64, length: u64, object: &str) {
    let comma = if comma { "," } else { "" };
    // Writing to a string cannot fail.
    let _ = match start {
        0 => write!(text, "{comma}{{\"l\":{length},\"o\":\"{object}\"}}"),
        start => write!(text, "{comma}{{\"s\":{start},\"l\":{length},\"o\":\"{object}\"}}"),
    };
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
    let mut entries = Vec::new();
    visit_slice(json, &mut |entry| {
        entries.push(entry);
        true
    })?;
    Ok(entries)
}

/// Takes the entries of an index in order, until one is refused, which is an error.
type Visit<'a> = &'a mut dyn FnMut(Entry) -> bool;

/// Reads the entries of an index one by one; a text says what is wrong with it.
pub(super) fn visit_slice(json: &[u8], each: Visit<'_>) -> std::result::Result<(), String> {
    visit(serde_json::Deserializer::from_slice(json), each)
}

/// The same for an index that is too long for memory.
pub(super) fn visit_reader(json: impl std::io::Read, each: Visit<'_>) -> std::result::Result<(), String> {
    visit(serde_json::Deserializer::from_reader(json), each)
}

/// Reads the index of `object` from its `reader`, part by part. For worker threads.
pub(super) fn visit_object(
    object: ObjectId,
    reader: ObjectReader,
    runtime: Handle,
    each: &mut dyn FnMut(Entry) -> Result<()>,
) -> Result<()> {
    let mut text = ObjectText::new(reader, runtime);
    let mut failed = None;
    let visited = visit_reader(BufReader::new(&mut text), &mut |entry| {
        each(entry).map_err(|error| failed = Some(error)).is_ok()
    });
    match text.failed.or(failed) {
        Some(error) => Err(error),
        None => visited.map_err(|reason| Error::DamagedObject { id: object.to_string(), reason }),
    }
}

fn visit<'de>(
    mut json: serde_json::Deserializer<impl serde_json::de::Read<'de>>,
    each: Visit<'_>,
) -> std::result::Result<(), String> {
    let mut document = Document { each, end: 0, is_index: false };
    let read = json.deserialize_map(&mut document).and_then(|()| json.end());
    read.map_err(|e| format!("its index is not valid: {e}"))?;
    match document {
        Document { is_index: false, .. } => Err("its index is not an indirect index".into()),
        Document { end: 0, .. } => Err("its index has no entries".into()),
        _ => Ok(()),
    }
}

/// An index that is being read.
struct Document<'a> {
    each: Visit<'a>,
    /// Where the next entry has to start.
    end: u64,
    is_index: bool,
}

impl<'de> Visitor<'de> for &mut Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an indirect index")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<(), M::Error> {
        while let Some(field) = map.next_key::<Cow<'_, str>>()? {
            match &*field {
                "stream" => self.is_index = map.next_value::<Cow<'_, str>>()? == STREAM,
                "entries" => map.next_value_seed(Entries(self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Entries<'a, 'b>(&'a mut Document<'b>);

impl<'de> DeserializeSeed<'de> for Entries<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the entries of an indirect index")
    }

    fn visit_none<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut entries: S) -> std::result::Result<(), S::Error> {
        let wrong = |text: String| Err(serde::de::Error::custom(text));
        let document = self.0;
        while let Some(DocumentEntry { s, l, o }) = entries.next_element()? {
            // Parts without bytes are possible: Kopia ends a file whose size is a multiple of 2 GiB with one.
            if s != document.end {
                return wrong(format!("it has a gap or an overlap at {s}"));
            }
            match s.checked_add(l).filter(|end| *end <= i64::MAX as u64) {
                Some(end) => document.end = end,
                None => return wrong("it is too long".to_owned()),
            }
            if !(document.each)(Entry { start: s, length: l, object: o }) {
                return wrong(format!("its part at {s} was refused"));
            }
        }
        Ok(())
    }
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
        for (place, entry) in entries.iter().enumerate() {
            push_entry(&mut text, place > 0, entry.start, entry.length, &entry.object.to_string());
        }
        assert_eq!(text, r#"{"l":7616808,"o":"a6d5"},{"s":7616808,"l":8388608,"o":"7ba1"}"#);
        let json = format!("{{\"stream\":\"kopia:indirect\",\"entries\":[{text}]}}\n");
        assert_eq!(parse(json.as_bytes()).unwrap(), entries);
    }

    #[test]
    fn a_part_without_bytes_is_no_damage() {
        let json = r#"{"stream":"kopia:indirect","entries":[{"l":8,"o":"a6d5"},{"s":8,"o":"7ba1"}]}"#;
        let lengths: Vec<u64> = parse(json.as_bytes()).unwrap().iter().map(|entry| entry.length).collect();
        assert_eq!(lengths, [8, 0]);
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
