//! Taking apart what snapshots consist of: a directory into its entries, an object's index into its parts.

use crate::object::ObjectId;
use crate::snapshot::{DirEntries, DirEntry, EntryType};
use crate::{Error, Result};
use lifeboat_index::ContentId;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{BufReader, Read};

/// What `stream` says in the index of an object.
const INDEX_STREAM: &str = "kopia:indirect";

/// What a node is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    Index,
}

/// Something that must be read to know what it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    kind: Kind,
    object: ObjectId,
}

impl Node {
    /// The object that it is part of.
    pub(super) fn object(&self) -> ObjectId {
        self.object
    }

    /// The object that is read: the directory's listing, or the index of the object.
    pub(super) fn text(&self) -> ObjectId {
        match self.kind {
            Kind::Directory => self.object,
            Kind::Index => self.object.index_object().unwrap_or(self.object),
        }
    }

    /// The content that is the whole of [`text`](Self::text), if it is one.
    pub(super) fn single_content(&self) -> Option<ContentId> {
        let text = self.text();
        (text.levels() == 0 && !text.is_compressed()).then(|| text.content())
    }

    /// A form of it that can be sorted.
    pub(super) fn key(&self) -> Vec<u8> {
        let content = self.object.content();
        let mut key = Vec::with_capacity(3 + content.key().len());
        key.extend([self.kind as u8, self.object.levels(), u8::from(self.object.is_compressed())]);
        key.extend_from_slice(content.key());
        key
    }

    /// Reads what [`key`](Self::key) wrote.
    pub(super) fn from_key(key: &[u8]) -> Result<Self> {
        let parse = || {
            let (&[kind, levels, compressed], content) = key.split_first_chunk()?;
            let content = ContentId::from_key(content).ok()?;
            let kind = if kind == Kind::Directory as u8 { Kind::Directory } else { Kind::Index };
            let mut object = match compressed {
                0 => ObjectId::direct(content),
                _ => ObjectId::direct_compressed(content),
            };
            for _ in 0..levels {
                object = ObjectId::indirect(object)?;
            }
            Some(Node { kind, object })
        };
        parse().ok_or_else(|| Error::Worker("a temporary file does not hold what was written to it".into()))
    }
}

/// Takes what is found in a node.
pub(super) trait Found {
    /// A content that is needed.
    fn content(&mut self, content: ContentId) -> Result<()>;

    /// A node that must be read as well.
    fn node(&mut self, node: Node) -> Result<()>;
}

/// An object that is needed, whatever it is.
fn found_object(found: &mut dyn Found, object: ObjectId) -> Result<()> {
    match object.levels() {
        0 => found.content(object.content()),
        _ => found.node(Node { kind: Kind::Index, object }),
    }
}

/// An entry of a directory, or the root of a snapshot. What is not understood is damage: it may need contents that
/// nobody else names.
pub(super) fn found_entry(found: &mut dyn Found, entry: &DirEntry) -> Result<()> {
    let damaged = |reason: String| Error::DamagedObject { id: entry.object.clone(), reason };
    let object: ObjectId = entry.object.parse().map_err(|_| damaged("it is not an object id".into()))?;
    match &entry.entry_type {
        EntryType::Directory => {
            found_object(found, object)?;
            found.node(Node { kind: Kind::Directory, object })
        }
        EntryType::File | EntryType::Symlink => found_object(found, object),
        other => Err(damaged(format!("an entry of the unknown type {other:?} refers to it"))),
    }
}

/// Reads the text of a node and hands on everything that it refers to.
pub(super) fn expand(node: &Node, text: impl Read, found: &mut dyn Found) -> Result<()> {
    match node.kind {
        Kind::Directory => {
            let mut entries = DirEntries::new(node.object.to_string(), text);
            entries.by_ref().try_for_each(|entry| found_entry(found, &entry?))?;
            entries.finish().map(drop)
        }
        Kind::Index => {
            found_object(found, node.text())?;
            expand_index(node.object, text, found)
        }
    }
}

fn expand_index(object: ObjectId, text: impl Read, found: &mut dyn Found) -> Result<()> {
    let mut failed = None;
    let parts = Parts { found, failed: &mut failed };
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(text));
    let parsed = (&mut json).deserialize_map(parts).and_then(|()| json.end());
    match (parsed, failed) {
        (_, Some(error)) => Err(error),
        (Ok(()), None) => Ok(()),
        (Err(error), None) => Err(Error::DamagedObject {
            id: object.to_string(),
            reason: format!("its index is not valid: {error}"),
        }),
    }
}

/// Goes through the index of an object part by part: the index of a large volume has millions.
struct Parts<'a> {
    found: &'a mut dyn Found,
    /// Why a part could not be handed on.
    failed: &'a mut Option<Error>,
}

#[derive(Deserialize)]
struct Part {
    o: ObjectId,
}

impl<'de> Visitor<'de> for Parts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index of an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<(), A::Error> {
        use serde::de::Error as _;
        let (mut stream, mut parts) = (false, 0);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "stream" => stream = map.next_value::<String>()? == INDEX_STREAM,
                "entries" => parts = map.next_value_seed(PartList(&mut self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (stream, parts) {
            (false, _) => Err(A::Error::custom("it is not an indirect index")),
            (true, 0) => Err(A::Error::custom("it has no entries")),
            (true, _) => Ok(()),
        }
    }
}

struct PartList<'a, 'b>(&'a mut Parts<'b>);

impl<'de> DeserializeSeed<'de> for PartList<'_, '_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<u64, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for PartList<'_, '_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<u64, A::Error> {
        use serde::de::Error as _;
        let mut count = 0;
        while let Some(part) = list.next_element::<Part>()? {
            count += 1;
            if let Err(error) = found_object(self.0.found, part.o) {
                *self.0.failed = Some(error);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct List(Vec<String>, Vec<Node>);

    impl Found for List {
        fn content(&mut self, content: ContentId) -> Result<()> {
            self.0.push(content.to_string());
            Ok(())
        }

        fn node(&mut self, node: Node) -> Result<()> {
            self.1.push(node);
            Ok(())
        }
    }

    fn node(kind: Kind, object: &str) -> Node {
        Node { kind, object: object.parse().unwrap() }
    }

    #[test]
    fn an_index_gives_its_parts_and_itself() {
        let json = br#"{"stream":"kopia:indirect","entries":[{"l":5,"o":"00aa"},{"s":5,"l":7,"o":"Ix01"},{"s":12,"l":1,"o":"Zbb"}]}"#;
        let mut found = List::default();
        expand(&node(Kind::Index, "Ix77"), &json[..], &mut found).unwrap();
        assert_eq!(found.0, ["x77", "00aa", "bb"]);
        assert_eq!(found.1, [node(Kind::Index, "Ix01")]);
        let mut found = List::default();
        expand(&node(Kind::Index, "IIx77"), &json[..], &mut found).unwrap();
        assert_eq!(found.1[0], node(Kind::Index, "Ix77"), "the contents of the index are needed as well");
    }

    #[test]
    fn a_directory_gives_its_entries() {
        let json = br#"{"stream":"kopia:directory","entries":[{"name":"a","type":"d","obj":"k01"},{"name":"b","type":"d","obj":"Ik02"},{"name":"f","type":"f","obj":"aa"},{"name":"s","type":"s","obj":"bb"},{"name":"t","type":"f","obj":"Ix03"}],"summary":null}"#;
        let mut found = List::default();
        expand(&node(Kind::Directory, "k00"), &json[..], &mut found).unwrap();
        assert_eq!(found.0, ["k01", "aa", "bb"]);
        let nodes = [
            (Kind::Directory, "k01"),
            (Kind::Index, "Ik02"),
            (Kind::Directory, "Ik02"),
            (Kind::Index, "Ix03"),
        ];
        assert_eq!(found.1, nodes.map(|(kind, object)| node(kind, object)));
    }

    #[test]
    fn what_is_not_understood_is_damage() {
        let damaged = |kind, json: &str| {
            let outcome = expand(&node(kind, "k00"), json.as_bytes(), &mut List::default());
            assert!(matches!(outcome, Err(Error::DamagedObject { .. })), "{json}: {outcome:?}");
        };
        for entry in [
            r#"{"type":"f","obj":"zz"}"#,
            r#"{"type":"x","obj":"aa"}"#,
            r#"{"obj":"aa"}"#,
            r#"{"type":"f"}"#,
            "5",
        ] {
            damaged(
                Kind::Directory,
                &format!(r#"{{"stream":"kopia:directory","entries":[{entry}],"summary":null}}"#),
            );
        }
        damaged(Kind::Directory, r#"{"stream":"kopia:directory","entries":[{"type":"f","obj":"aa"}"#);
        damaged(Kind::Directory, "");
        for json in [
            "",
            "{}",
            r#"{"stream":"kopia:indirect","entries":[]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":1,"o":"00"}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":1,"o":"00"}]} x"#,
            r#"{"stream":"other","entries":[{"l":1,"o":"00"}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":1}]}"#,
            r#"{"stream":"kopia:indirect","entries":[{"l":1,"o":"nothing"}]}"#,
        ] {
            damaged(Kind::Index, json);
        }
    }

    #[test]
    fn nodes_are_told_apart_by_their_keys() {
        let nodes = [
            node(Kind::Directory, "k00"),
            node(Kind::Directory, "Ik00"),
            node(Kind::Index, "Ik00"),
            node(Kind::Index, "IIk00"),
            node(Kind::Directory, "Zaa"),
        ];
        for node in &nodes {
            assert_eq!(Node::from_key(&node.key()).unwrap(), *node);
        }
        assert!(Node::from_key(&[0, 0]).is_err() && Node::from_key(&[0, 200, 0, 0, 1]).is_err());
        assert_eq!(nodes.map(|node| node.single_content().is_some()), [true, false, true, false, false]);
    }
}
