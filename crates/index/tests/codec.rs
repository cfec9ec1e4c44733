//! The encodings against known bytes, limits, and hostile input.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use lifeboat_index::{
    CodecError, ContentId, IndexBuilder, IndexEntry, IndexReader, IndexVersion, Prefix, shard_of, supersedes,
};
use proptest::prelude::*;
use sha1::{Digest, Sha1};

const P: &str = "p0123456789abcdef0123456789abcdef-s0123456789abcdef122";
const Q: &str = "q00000000000000000000000000000000-s0123456789abcdef122";
const V1: IndexVersion = IndexVersion::V1 { overhead: 28 };

fn entry(id: &str, timestamp_seconds: i64, pack: &str) -> IndexEntry {
    IndexEntry {
        id: id.parse().unwrap(),
        pack: pack.into(),
        pack_offset: 32,
        packed_length: 33,
        original_length: 5,
        timestamp_seconds,
        format_version: 3,
        compression: 0,
        encryption_key_id: 0,
        deleted: false,
    }
}

fn example() -> [IndexEntry; 3] {
    [
        entry("00112233445566778899aabbccddeeff", 1_700_000_000, P),
        IndexEntry {
            original_length: 1000,
            packed_length: 400,
            compression: 0x1101,
            ..entry("kffeeddccbbaa99887766554433221100", 1_700_000_001, Q)
        },
        IndexEntry {
            pack_offset: 432,
            original_length: 200,
            packed_length: 228,
            deleted: true,
            ..entry("m0f0e0d0c0b0a09080706050403020100", 1_700_000_002, Q)
        },
    ]
}

fn build(entries: impl IntoIterator<Item = IndexEntry>) -> IndexBuilder {
    let mut builder = IndexBuilder::new();
    builder.extend(entries);
    builder
}

fn read(bytes: &[u8]) -> Vec<IndexEntry> {
    IndexReader::parse(bytes, 28).unwrap().iter().collect::<Result<_, _>>().unwrap()
}

fn bytes_of(hex_lines: &[&str], names: &[&str]) -> Vec<u8> {
    let mut bytes = hex::decode(hex_lines.concat().replace(' ', "")).unwrap();
    names.iter().for_each(|name| bytes.extend_from_slice(name.as_bytes()));
    bytes
}

#[test]
fn version_2_bytes_are_those_of_the_format() {
    let expected = bytes_of(
        &[
            "02 11 0011 00000003 00000002 02 00000000",
            "00 00112233445566778899aabbccddeeff 6553f100 00000020 000005 000021 0000 00",
            "6b ffeeddccbbaa99887766554433221100 6553f101 00000020 0003e8 000190 0001 01",
            "6d 0f0e0d0c0b0a09080706050403020100 6553f102 800001b0 0000c8 0000e4 0001 00",
            "36 0000008d   36 000000c3",
            "00000000 03 00   00001101 03 00",
        ],
        &[P, Q],
    );
    assert_eq!(expected.len(), 249);
    assert_eq!(build(example()).encode(IndexVersion::V2, &[]).unwrap(), expected);
    assert_eq!(read(&expected), example());
}

#[test]
fn version_1_bytes_are_those_of_the_format() {
    let expected = bytes_of(
        &[
            "01 11 0014 00000002",
            "00 00112233445566778899aabbccddeeff 00006553f100 03 36 00000052 00000020 00000021",
            "6d 0f0e0d0c0b0a09080706050403020100 00006553f102 03 36 00000088 800001b0 000000e4",
        ],
        &[P, Q],
    );
    assert_eq!(expected.len(), 190);
    let [a, b, c] = example();
    assert_eq!(build([a.clone(), c.clone()]).encode(V1, &[]).unwrap(), expected);
    assert_eq!(read(&expected), [a, c]);
    let refused = build([b]).encode(V1, &[]).unwrap_err();
    assert!(matches!(refused, CodecError::Unrepresentable { version: 1, .. }), "{refused}");
}

#[test]
fn shards_are_those_of_the_format() {
    let id = |i: u32| {
        let letter = match i {
            i if i % 5 == 0 => b'm',
            i if i % 7 == 0 => b'y',
            i if i % 2 == 0 => b'x',
            _ => 0,
        };
        ContentId::new(Prefix::new(letter).unwrap(), &Sha1::digest(i.to_string())).unwrap()
    };
    let builder = build((0..10_000).map(|i| IndexEntry { id: id(i), ..entry("00", 1, P) }));
    let sizes = |max| {
        let mut sizes: Vec<usize> = builder.clone().shards(max).iter().map(IndexBuilder::len).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(100_000), [10_000]);
    assert_eq!(sizes(2000), [1952, 1995, 2005, 2013, 2035]);
    assert_eq!(sizes(1000), [945, 964, 988, 988, 993, 1002, 1014, 1017, 1021, 1068]);
    assert!(shard_of(&id(1), 0) == 0 && IndexBuilder::new().shards(10).is_empty());
}

#[test]
fn optional_bytes_appear_when_they_are_needed() {
    let entry_len = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
    let numbered = |i: u32, pack: &str| {
        let id = ContentId::new(Prefix::NONE, &i.to_be_bytes()).unwrap();
        IndexEntry { id, ..entry("00", i64::from(i), pack) }
    };
    let one = [numbered(1, P)];
    let formats = [numbered(1, P), IndexEntry { format_version: 2, ..numbered(2, P) }];
    let long = [IndexEntry { original_length: (1 << 28) - 1, packed_length: 1 << 24, ..numbered(1, P) }];
    let at_limit: Vec<_> = (0..65_536).map(|i| numbered(i, &format!("p{i}"))).collect();
    let many_packs: Vec<_> = (0..65_537).map(|i| numbered(i, &format!("p{i}"))).collect();
    for (entries, len) in [(&one[..], 16), (&formats, 17), (&at_limit, 16), (&many_packs, 18), (&long, 19)] {
        let bytes = build(entries.iter().cloned()).encode(IndexVersion::V2, &[]).unwrap();
        assert_eq!(entry_len(&bytes), len);
        assert_eq!(read(&bytes), entries);
    }
}

#[test]
fn entries_beyond_the_limits_are_refused_when_written() {
    let ok = entry("00ff", 1, P);
    let with = |change: &dyn Fn(&mut IndexEntry)| {
        let mut entry = ok.clone();
        change(&mut entry);
        entry
    };
    for bad in [
        with(&|e| e.original_length = 1 << 28),
        with(&|e| e.packed_length = 1 << 28),
        with(&|e| e.pack_offset = 1 << 30),
        with(&|e| e.timestamp_seconds = -1),
        with(&|e| e.timestamp_seconds = 1 << 32),
        with(&|e| e.encryption_key_id = 1),
    ] {
        let refused = build([bad]).encode(IndexVersion::V2, &[]).unwrap_err();
        assert!(matches!(refused, CodecError::Unrepresentable { version: 2, .. }), "{refused}");
    }
    for name in ["", &"p".repeat(256)] {
        assert!(build([with(&|e| e.pack = name.into())]).encode(IndexVersion::V2, &[]).is_err());
    }
    let mixed = build([ok, entry("00ffff", 1, P)]).encode(IndexVersion::V2, &[]).unwrap_err();
    assert!(matches!(mixed, CodecError::Unrepresentable { .. }), "{mixed}");
    let empty = IndexBuilder::new().encode(IndexVersion::V2, &[]).unwrap_err();
    assert!(matches!(empty, CodecError::Empty), "{empty}");
}

#[test]
fn unsorted_entries_are_refused_when_written() {
    let [a, b, _] = example();
    let refused = lifeboat_index::codec::encode(IndexVersion::V2, [&b, &a], &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, CodecError::Order(id) if id == a.id), "{refused}");
}

#[test]
fn oddities_of_other_writers_are_understood() {
    let mut bytes = build(example()).encode(IndexVersion::V2, &[7; 32]).unwrap();
    assert_eq!(read(&bytes), example(), "trailing bytes are ignored");
    bytes[13..17].copy_from_slice(&5_u32.to_be_bytes());
    assert_eq!(read(&bytes)[0].timestamp_seconds, 1_700_000_005, "the base timestamp counts");
    for version in [1, 2] {
        let mut empty = vec![0; 17];
        (empty[0], empty[1], empty[7]) = (version, 255, 9);
        let reader = IndexReader::parse(empty, 28).unwrap();
        assert!(reader.is_empty() && reader.iter().next().is_none());
        assert_eq!(reader.get(&example()[0].id).unwrap(), None);
    }
}

#[test]
fn another_encryption_key_is_refused() {
    let mut bytes = build(example()).encode(IndexVersion::V2, &[]).unwrap();
    let last_format_key = 17 + 3 * 34 + 2 * 5 + 2 * 6 - 1;
    bytes[last_format_key] = 1;
    assert!(matches!(IndexReader::parse(bytes, 28), Err(CodecError::KeyId(1))));
}

#[test]
fn damaged_tables_are_reported_not_followed() {
    let good = build(example()).encode(IndexVersion::V2, &[]).unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        match IndexReader::parse(bytes, 28) {
            Ok(reader) => reader.iter().find_map(Result::err).map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        }
    };
    for (what, message) in [
        ("version", damaged(&|b| b[0] = 3)),
        ("key size", damaged(&|b| b[1] = 1)),
        ("key size", damaged(&|b| b[1] = 34)),
        ("entry size", damaged(&|b| b[3] = 20)),
        ("entry count", damaged(&|b| b[4..8].fill(0xff))),
        ("pack count", damaged(&|b| b[8..12].fill(0xff))),
        ("format count", damaged(&|b| b[12] = 0xff)),
        ("prefix", damaged(&|b| b[17] = b'a')),
        ("pack index", damaged(&|b| b[17 + 17 + 15] = 2)),
        ("format index", damaged(&|b| b[17 + 17 + 16] = 2)),
        ("pack name offset", damaged(&|b| b[17 + 3 * 34 + 1] = 0xff)),
        ("pack name text", damaged(&|b| *b.last_mut().unwrap() = 0xff)),
        ("header", damaged(&|b| b.truncate(16))),
        ("nothing", damaged(&Vec::clear)),
    ] {
        assert!(message.is_some(), "{what}");
    }
}

fn any_entry() -> impl Strategy<Value = IndexEntry> {
    let id = (prop_oneof![Just(0), b'g'..=b'z'], any::<[u8; 4]>());
    let lengths = (0_u32..1 << 28, 0_u32..1 << 28, 0_u32..1 << 30);
    (id, 0_u32..6, lengths, any::<u32>(), 0_u8..3, 0_u32..4, any::<bool>()).prop_map(
        |((prefix, hash), pack, (original, packed, offset), timestamp, version, compression, deleted)| {
            IndexEntry {
                id: ContentId::new(Prefix::new(prefix).unwrap(), &hash).unwrap(),
                pack: format!("p{pack}").into(),
                pack_offset: offset,
                packed_length: packed,
                original_length: original,
                timestamp_seconds: i64::from(timestamp),
                format_version: version,
                compression,
                encryption_key_id: 0,
                deleted,
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(entries in prop::collection::vec(any_entry(), 1..60), probe in any_entry()) {
        let builder = build(entries);
        let bytes = builder.encode(IndexVersion::V2, b"suffix").unwrap();
        let reader = IndexReader::parse(&bytes[..], 28).unwrap();
        prop_assert!(reader.iter().map(Result::unwrap).eq(builder.iter().cloned()));
        for entry in builder.iter() {
            prop_assert_eq!(&reader.get(&entry.id).unwrap(), &Some(entry.clone()));
        }
        prop_assert_eq!(reader.get(&probe.id).unwrap(), builder.get(&probe.id).cloned());
        let above = builder.iter().filter(|entry| entry.id >= probe.id).cloned();
        prop_assert!(reader.iter_from(probe.id.key()).map(Result::unwrap).eq(above));
    }

    #[test]
    fn the_builder_keeps_the_entry_that_supersedes_all_others(entries in prop::collection::vec(any_entry(), 1..30)) {
        let id = entries[0].id;
        let same: Vec<_> = entries.into_iter().map(|entry| IndexEntry { id, ..entry }).collect();
        let builder = build(same.clone());
        let best = builder.get(&id).unwrap();
        prop_assert!(same.iter().all(|entry| entry == best || supersedes(best, entry)));
    }

    #[test]
    fn hostile_bytes_never_panic(
        version in 0_u8..4, head in prop::collection::vec(any::<u8>(), 0..40), tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [&[version, 17, 0, if version == 1 { 20 } else { 17 }, 0, 0, 0][..], &head, &tail].concat();
        exercise(&bytes);
    }

    #[test]
    fn damaged_indexes_never_panic(entries in prop::collection::vec(any_entry(), 1..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let mut bytes = build(entries).encode(IndexVersion::V2, &[]).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        exercise(&bytes);
    }
}

fn exercise(bytes: &[u8]) {
    if let Ok(reader) = IndexReader::parse(bytes, 28) {
        let read = reader.iter().take_while(Result::is_ok).count();
        assert!(read <= reader.len() as usize);
        let _ = reader.get(&example()[1].id);
        let _ = reader.iter_from(b"k").take(10).count();
    }
}
