#![allow(clippy::unwrap_used)]

use super::*;
use crate::Error;
use crate::gojson;
use crate::manifest::ManifestId;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Written by Kopia 0.22.3 for a directory with all kinds of entries and names.
const KOPIA_LISTING: &str = include_str!("testdata/listing.json");

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn entries(listing: &[u8]) -> crate::Result<(Vec<DirEntry>, Option<DirSummary>)> {
    let mut reader = DirEntries::new("kroot", listing);
    let found = reader.by_ref().collect::<crate::Result<Vec<_>>>()?;
    Ok((found, reader.finish()?))
}

fn write(entries: &[DirEntry], summary: &DirSummary) -> Vec<u8> {
    let mut writer = DirWriter::new();
    let mut bytes = Vec::new();
    for entry in entries {
        writer.push(entry).unwrap();
        bytes.extend(writer.take());
    }
    bytes.extend(writer.finish(summary).unwrap());
    bytes
}

fn file(name: &str, size: u64) -> DirEntry {
    DirEntry {
        name: name.into(),
        entry_type: EntryType::File,
        mode: GoMode::from_unix(0o644),
        size,
        object: "bc2cf927f9ed52cc29116e6a5cfdbdf9".into(),
        ..DirEntry::default()
    }
}

fn directory(name: &str, summary: DirSummary) -> DirEntry {
    DirEntry {
        name: name.into(),
        entry_type: EntryType::Directory,
        object: "k00112233445566778899aabbccddeeff".into(),
        summary: Some(summary),
        ..DirEntry::default()
    }
}

#[test]
fn a_listing_of_kopia_is_reproduced_byte_for_byte() {
    let (mut found, summary) = entries(KOPIA_LISTING.as_bytes()).unwrap();
    assert_eq!(found.len(), 11);
    // On disk this name had two bytes that are no UTF-8.
    let replaced = found.iter_mut().find(|entry| entry.name.as_str() == Some("bad\u{fffd}\u{fffd}")).unwrap();
    replaced.name = b"bad\xff\xfe".to_vec().into();
    let written = write(&found, &summary.unwrap());
    assert_eq!(String::from_utf8(written).unwrap(), KOPIA_LISTING);
}

#[test]
fn raw_entries_are_the_bytes_of_a_listing_and_give_it_back() {
    let (found, summary) = entries(KOPIA_LISTING.as_bytes()).unwrap();
    let mut reader = DirEntries::new("kroot", KOPIA_LISTING.as_bytes());
    let mut writer = DirWriter::new();
    for entry in &found {
        let raw = reader.next_raw().unwrap().unwrap();
        let (name, is_dir) = raw.head().unwrap();
        assert_eq!((&*name, is_dir), (entry.name.as_bytes(), entry.is_dir()));
        assert_eq!(raw.parse().unwrap(), *entry);
        writer.push_encoded(raw.bytes());
    }
    assert_eq!(reader.next_raw().unwrap(), None);
    let written = writer.finish(&summary.unwrap()).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), KOPIA_LISTING);
}

#[test]
fn the_head_of_a_raw_entry_does_not_depend_on_the_order_of_its_members() {
    let listing = br#"{"stream":"kopia:directory","entries":[{"type":"d","name":"a\u0062"},{"name":"c","type":"f","x":1},5]}"#;
    let mut reader = DirEntries::new("kroot", &listing[..]);
    let mut heads = Vec::new();
    while let Some(raw) = reader.next_raw().unwrap() {
        heads.push(raw.head().map(|(name, is_dir)| (name.into_owned(), is_dir)));
    }
    assert_eq!(heads, [Some((b"ab".to_vec(), true)), Some((b"c".to_vec(), false)), None]);
}

#[test]
fn the_entries_of_a_listing_of_kopia_mean_what_they_should() {
    let (found, _) = entries(KOPIA_LISTING.as_bytes()).unwrap();
    let get = |name: &str| found.iter().find(|entry| entry.name == *name).unwrap();
    assert_eq!(get("Zdir").mode.to_unix(), 0o1777);
    assert_eq!(get("suid").mode.to_unix(), 0o4755);
    assert_eq!(get("link").entry_type, EntryType::Symlink);
    assert_eq!(get("hello.txt").mtime, time("2020-02-29T12:34:56.12Z"));
    assert_eq!(get("empty").size, 0);
    assert!(get("sub").is_dir());
    assert_eq!(get("sub").summary.as_ref().unwrap().dirs, 2);
    assert!(found.iter().any(|entry| entry.name == *"new\nline\ttab\u{8}\u{c}\u{1}\u{7f}\"q\\"));
}

#[test]
fn the_summary_is_the_one_that_kopia_computes() {
    let (found, summary) = entries(KOPIA_LISTING.as_bytes()).unwrap();
    let mut builder = SummaryBuilder::default();
    found.iter().for_each(|entry| builder.add(entry));
    assert_eq!(builder.build(time("2026-11-16T00:30:18.919049779Z"), ""), summary.unwrap());
}

#[test]
fn an_empty_directory_has_null_entries_and_its_own_time() {
    let summary = SummaryBuilder::default().build(time("2026-08-19T08:00:00Z"), "");
    let written = write(&[], &summary);
    assert_eq!(
        String::from_utf8(written.clone()).unwrap(),
        "{\"stream\":\"kopia:directory\",\"entries\":null,\"summary\":{\"size\":0,\"files\":0,\"symlinks\":0,\
         \"dirs\":1,\"maxTime\":\"2026-08-19T08:00:00Z\",\"numFailed\":0}}\n"
    );
    assert_eq!(entries(&written).unwrap(), (vec![], Some(summary)));
}

#[test]
fn an_entry_looks_as_specified() {
    let entry = DirEntry {
        name: "hello.txt".into(),
        mtime: time("2026-08-19T08:00:00.123456789Z"),
        uid: 1000,
        gid: 1000,
        ..file("", 5)
    };
    assert_eq!(
        gojson::to_string(&entry).unwrap(),
        r#"{"name":"hello.txt","type":"f","mode":"0644","size":5,"mtime":"2026-08-19T08:00:00.123456789Z","uid":1000,"gid":1000,"obj":"bc2cf927f9ed52cc29116e6a5cfdbdf9"}"#
    );
    assert_eq!(gojson::to_string(&DirEntry::default()).unwrap(), r#"{"obj":""}"#);
}

#[test]
fn a_summary_of_parts_is_the_summary_of_the_whole() {
    let (found, _) = entries(KOPIA_LISTING.as_bytes()).unwrap();
    let (mut whole, mut parts) = (SummaryBuilder::default(), SummaryBuilder::default());
    for half in found.chunks(4) {
        let mut part = SummaryBuilder::default();
        for entry in half {
            whole.add(entry);
            part.add(entry);
        }
        part.add_failure(half[0].name.to_string(), "gone", true);
        whole.add_failure(half[0].name.to_string(), "gone", true);
        parts.add_part(&part);
    }
    assert_eq!(parts.build(time("2026-08-19T08:00:00Z"), ""), whole.build(time("2026-08-19T08:00:00Z"), ""));
}

#[test]
fn a_summary_counts_failures_and_names_the_first_by_path() {
    let mut below = SummaryBuilder::default();
    below.add_failure("sub/z", "denied", true);
    let below = below.build(time("2020-01-01T00:00:00Z"), "checkpoint");
    let mut builder = SummaryBuilder::default();
    for i in (0..15).rev() {
        builder.add_failure(format!("f{i:02}"), "denied", false);
    }
    builder.add(&directory("sub", below));
    // Older than the epoch: does not count.
    builder.add(&DirEntry { mtime: time("1960-01-01T00:00:00Z"), ..file("old", 7) });
    let summary = builder.build(time("2026-01-01T00:00:00Z"), "");
    assert_eq!((summary.failed, summary.ignored_errors, summary.dirs, summary.size), (15, 1, 2, 7));
    assert_eq!(summary.max_time, time("2020-01-01T00:00:00Z"));
    let paths: Vec<_> = summary.errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["f00", "f01", "f02", "f03", "f04", "f05", "f06", "f07", "f08", "f09"]);
}

#[test]
fn sums_of_hostile_summaries_do_not_overflow() {
    let mut builder = SummaryBuilder::default();
    for name in ["a", "b"] {
        let max = DirSummary {
            size: i64::MAX,
            files: i64::MAX,
            dirs: i64::MAX,
            failed: i64::MAX,
            ..Default::default()
        };
        builder.add(&directory(name, max));
        builder.add(&file(name, u64::MAX));
    }
    let summary = builder.build(Timestamp::UNIX_EPOCH, "");
    assert_eq!((summary.size, summary.dirs), (i64::MAX, i64::MAX));
}

#[test]
fn modes_have_go_s_bits() {
    for (unix, json) in [(0o755, "0755"), (0o1777, "04000777"), (0o4755, "040000755"), (0o2750, "020000750")]
    {
        let mode = GoMode::from_unix(0o100_000 | unix);
        assert_eq!(gojson::to_string(&mode).unwrap(), format!("\"{json}\""));
        assert_eq!(serde_json::from_str::<GoMode>(&format!("\"{json}\"")).unwrap(), mode);
        assert_eq!(mode.to_unix(), unix);
    }
    for (text, bits) in [("0x1ff", 0o777), ("0o644", 0o644), ("493", 0o755), ("0b11", 3), ("0", 0)] {
        assert_eq!(serde_json::from_str::<GoMode>(&format!("\"{text}\"")).unwrap(), GoMode(bits));
    }
    for text in ["", "0x", "-1", "+7", "0+7", "99999999999", "020000000000", "08", "rwx", "é1"] {
        assert!(serde_json::from_str::<GoMode>(&format!("\"{text}\"")).is_err(), "{text}");
    }
}

#[test]
fn names_that_could_leave_the_target_are_not_safe() {
    for name in ["", ".", "..", "a/b", "/etc/passwd", "nul\0", "../x"] {
        assert_eq!(file(name, 0).safe_name(), None, "{name:?}");
    }
    for name in ["a", "...", "..a", " ", "\n", "\\", "-rf"] {
        assert_eq!(file(name, 0).safe_name(), Some(name.as_bytes()));
    }
}

#[test]
fn the_writer_refuses_entries_out_of_order() {
    let refused = |first: &DirEntry, second: &DirEntry| {
        let mut writer = DirWriter::new();
        writer.push(first).unwrap();
        matches!(writer.push(second), Err(Error::Invalid(_)))
    };
    let dir = |name: &str| directory(name, DirSummary::default());
    assert!(refused(&file("b", 0), &file("a", 0)));
    assert!(refused(&file("a", 0), &dir("b")));
    assert!(refused(&file("\u{fffd}", 0), &dir("b")));
    assert!(!refused(&dir("b"), &file("a", 0)));
    assert!(!refused(&file("a", 0), &file("a", 0)));
    assert!(!refused(&file("x\u{fffd}", 0), &file("a", 0)));
    // Bytewise, not by character class: upper case comes first.
    assert!(!refused(&file("Z", 0), &file("a", 0)));
}

#[test]
fn unknown_fields_of_entries_are_kept_and_accessible() {
    let json = r#"{"name":"a","obj":"x","xattrs":{"user.k": "dg=="}}"#;
    let mut entry: DirEntry = serde_json::from_str(json).unwrap();
    assert_eq!(entry.unknown.get("xattrs").unwrap().get(), r#"{"user.k": "dg=="}"#);
    entry.unknown.set("n", RawValue::from_string("1".into()).unwrap());
    let written = write(&[entry.clone()], &DirSummary::default());
    assert_eq!(entries(&written).unwrap().0, [entry]);
}

#[test]
fn a_listing_is_understood_in_any_order_with_blanks_and_unknown_fields() {
    let listing = b" { \"future\" : [ {\"]\":\"}\"} , 1 ] ,\n\"summary\":null, \"entries\" : [ {\"name\":\"]}\\\"\",\"obj\":\"o\"} ,\n {\"obj\":\"p\"}\t] , \"n\":-1.5e3 ,\"stream\":\"kopia:directory\" } trailing";
    let (found, summary) = entries(listing).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].name, *"]}\"");
    assert_eq!(summary, None);
}

#[test]
fn an_entry_that_is_not_understood_costs_only_itself() {
    let listing = br#"{"stream":"kopia:directory","entries":[{"name":"a","obj":"1"},{"name":"b","uid":-1},null,{"name":"c","obj":"3"}],"summary":null}"#;
    let mut reader = DirEntries::new("kroot", &listing[..]);
    let results: Vec<_> = reader.by_ref().collect();
    let names: Vec<_> =
        results.iter().map(|r| r.as_ref().map(|e| e.name.to_string()).unwrap_or_default()).collect();
    assert_eq!(names, ["a", "", "", "c"]);
    assert!(matches!(&results[1], Err(Error::DamagedObject { id, .. }) if id == "kroot"));
    assert!(reader.finish().is_ok());
}

#[test]
fn what_is_no_whole_listing_is_an_error_that_names_the_object() {
    let broken: [&[u8]; 12] = [
        b"",
        b"null",
        b"{}",
        b"{\"entries\":[]}",
        b"{\"stream\":\"kopia:indirect\",\"entries\":[]}",
        b"{\"stream\":\"kopia:directory\",\"entries\":[",
        b"{\"stream\":\"kopia:directory\",\"entries\":[{\"obj\":\"a\"}",
        b"{\"stream\":\"kopia:directory\",\"entries\":[{\"obj\":\"a\"},]}",
        b"{\"stream\":\"kopia:directory\",\"entries\":[,]}",
        b"{\"stream\":\"kopia:directory\",\"entries\":7}",
        b"{\"stream\":\"kopia:directory\",\"entries\":[]",
        b"{\"stream\":\"kopia:directory\" \"entries\":[]}",
    ];
    for listing in broken {
        let error = entries(listing).unwrap_err();
        assert!(matches!(&error, Error::DamagedObject { id, .. } if id == "kroot"), "{error}");
    }
    let mut reader = DirEntries::new("kroot", &b"{\"stream\":\"kopia:directory\",\"entries\":[]] x"[..]);
    assert!(reader.next().is_some_and(|result| result.is_err()));
    assert!(reader.next().is_none(), "a broken listing ends");
}

#[test]
fn a_value_without_end_is_refused_before_it_fills_the_memory() {
    let mut parser = DirParser::new("kroot");
    parser.feed(b"{\"stream\":\"kopia:directory\",\"entries\":[{\"name\":\"");
    let chunk = vec![b'a'; 1 << 20];
    let fed = (0..1000).position(|_| {
        parser.feed(&chunk);
        parser.next_entry().is_err()
    });
    assert_eq!(fed, Some((MAX_VALUE_LEN >> 20) - 1));
    assert!(parser.finish().is_err());
}

#[test]
fn a_directory_of_many_entries_needs_memory_for_one() {
    const COUNT: u64 = 200_000;
    let mut writer = DirWriter::new();
    let mut parser = DirParser::new("kroot");
    let mut found = 0;
    for i in 0..COUNT {
        writer.push(&file(&format!("file-{i:08}"), i)).unwrap();
        if writer.buffered() > 4096 {
            parser.feed(&writer.take());
            while let Some(entry) = parser.next_entry().unwrap() {
                assert_eq!(entry.size, found);
                found += 1;
            }
        }
    }
    parser.feed(&writer.finish(&DirSummary::default()).unwrap());
    while parser.next_entry().unwrap().is_some() {
        found += 1;
    }
    assert_eq!(found, COUNT);
    assert!(parser.finish().unwrap().is_some());
}

#[test]
fn times_outside_of_what_json_holds_are_moved_to_its_edge() {
    assert_eq!(entry_time(0, 5).as_nanosecond(), 5);
    assert_eq!(entry_time(i64::MAX, 0), Timestamp::MAX);
    for seconds in [i64::MIN, -100_000_000_000] {
        let json = gojson::to_string(&entry_time(seconds, 999_999_999)).unwrap();
        assert_eq!(json, "\"0000-01-01T00:00:00Z\"");
        assert!(serde_json::from_str::<Timestamp>(&json).is_ok());
    }
    assert_eq!(entry_time(-1, 500_000_000).as_nanosecond(), -500_000_000);
}

#[test]
fn go_s_zero_time_of_velero_s_block_volumes_is_understood() {
    let entry: DirEntry = serde_json::from_str(
        r#"{"name":"/dev/block","type":"f","mode":"0777","mtime":"1754-08-30T22:43:41.128654848Z","obj":"x"}"#,
    )
    .unwrap();
    assert_eq!(entry.safe_name(), None);
    assert_eq!(entry.mtime.as_nanosecond(), -6_795_364_578_871_345_152);
}

fn snapshot(start: &str, incomplete: &str) -> SnapshotManifest {
    SnapshotManifest {
        source: SourceInfo::new("alice", "host1", "/data"),
        start_time: time(start),
        end_time: time(start),
        incomplete: incomplete.into(),
        root_entry: Some(directory("data", DirSummary::default())),
        ..SnapshotManifest::default()
    }
}

#[test]
fn a_snapshot_manifest_is_written_as_specified() {
    let json = concat!(
        r#"{"id":"","source":{"host":"host1","userName":"alice","path":"/data"},"description":"","#,
        r#""startTime":"2026-08-20T10:00:00.5Z","endTime":"2026-08-20T10:00:05.2Z","#,
        r#""stats":{"totalSize":5,"excludedTotalSize":0,"fileCount":1,"cachedFiles":0,"nonCachedFiles":1,"dirCount":1,"#,
        r#""excludedFileCount":0,"excludedDirCount":0,"ignoredErrorCount":0,"errorCount":0},"#,
        r#""rootEntry":{"name":"data","type":"d","mode":"0755","mtime":"2026-08-19T08:00:00Z","uid":1000,"gid":1000,"#,
        r#""obj":"k00112233445566778899aabbccddeeff","#,
        r#""summ":{"size":5,"files":1,"symlinks":0,"dirs":1,"maxTime":"2026-08-19T08:00:00Z","numFailed":0}}}"#
    );
    let snapshot: SnapshotManifest = serde_json::from_str(json).unwrap();
    assert_eq!(gojson::to_string(&snapshot).unwrap(), json);
    assert!(snapshot.is_complete());
    assert_eq!(snapshot.root_object(), Some("k00112233445566778899aabbccddeeff"));
    let extended = json.replacen(r#""rootEntry""#, r#""incomplete":"checkpoint","rootEntry""#, 1);
    let extended =
        format!(r#"{},"tags":{{"a":"b"}},"pins":["p"],"new":[1]}}"#, extended.strip_suffix('}').unwrap());
    let snapshot: SnapshotManifest = serde_json::from_str(&extended).unwrap();
    assert_eq!(gojson::to_string(&snapshot).unwrap(), extended);
    assert_eq!(snapshot.incomplete, IncompleteReason::Checkpoint.as_str());
}

#[test]
fn tags_become_labels_and_must_not_hide_the_source() {
    let mut tagged = snapshot("2026-01-01T00:00:00Z", "");
    tagged.tags = BTreeMap::from([("tag:a".into(), "b".into())]);
    let labels = tagged.labels().unwrap();
    let expected = [
        ("hostname", "host1"),
        ("path", "/data"),
        ("tag:a", "b"),
        ("type", "snapshot"),
        ("username", "alice"),
    ];
    assert!(labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    tagged.tags.insert("path".into(), "/".into());
    assert!(tagged.labels().is_err());
    for part in ["host", "user_name", "path"] {
        let mut source = SourceInfo::new("u", "h", "p");
        match part {
            "host" => source.host.clear(),
            "path" => source.path.clear(),
            _ => source.user_name.clear(),
        }
        assert!(
            SnapshotManifest { source, ..snapshot("2026-01-01T00:00:00Z", "") }.labels().is_err(),
            "{part}"
        );
    }
}

#[test]
fn pins_are_added_and_removed() {
    let mut pinned = snapshot("2026-01-01T00:00:00Z", "");
    assert!(pinned.update_pins(["b", "a", "b"], []));
    assert_eq!(pinned.pins, ["a", "b"]);
    assert!(!pinned.update_pins(["a"], ["c"]));
    assert!(pinned.update_pins([], ["a"]));
    assert_eq!(pinned.pins, ["b"]);
}

#[test]
fn the_parents_are_the_last_complete_snapshot_and_the_incomplete_ones_after_it() {
    let all = [
        snapshot("2026-01-01T00:00:00Z", ""),
        snapshot("2026-01-02T00:00:00Z", "checkpoint"),
        snapshot("2026-01-03T00:00:00Z", ""),
        snapshot("2026-01-04T00:00:00Z", "checkpoint"),
        snapshot("2026-01-05T00:00:00Z", "canceled"),
    ];
    let starts = |limit: Option<&str>| -> Vec<i8> {
        let parents = previous(&all, limit.map(time));
        parents.iter().map(|s| s.start_time.to_zoned(jiff::tz::TimeZone::UTC).day()).collect()
    };
    assert_eq!(starts(None), [3, 4, 5]);
    assert_eq!(starts(Some("2026-01-02T12:00:00Z")), [1, 2]);
    assert_eq!(starts(Some("2025-01-01T00:00:00Z")), Vec::<i8>::new());
}

#[test]
fn sources_are_printed_and_parsed_as_kopia_does_it() {
    for text in ["alice@host1:/data", "alice@host1", "@host1", "(global)", "a@h:relative/path:x"] {
        assert_eq!(SourceInfo::parse(text).unwrap().to_string(), text);
    }
    for text in ["/data", "", "alice@", ":a@b"] {
        assert_eq!(SourceInfo::parse(text), None, "{text}");
    }
    let source = SourceInfo::new("u", "h", "/p");
    assert_eq!(SourceInfo::from_labels(&source.labels(SNAPSHOT_TYPE)), source);
}

#[test]
fn manifest_ids_are_opaque_text() {
    assert_eq!(ManifestId::from("x").to_string(), "x");
}

fn any_entry() -> impl Strategy<Value = DirEntry> {
    let name = proptest::collection::vec(any::<u8>(), 0..12);
    let kind = prop_oneof![
        Just(EntryType::File),
        Just(EntryType::Directory),
        Just(EntryType::Symlink),
        Just(EntryType::Other("p".into()))
    ];
    (name, kind, 0..0o10000u32, any::<u64>(), any::<u32>(), any::<u32>(), -62_167_219_200i64..253_402_000_000)
        .prop_map(|(name, entry_type, mode, size, uid, gid, seconds)| DirEntry {
            name: name.into(),
            entry_type,
            mode: GoMode::from_unix(mode),
            size,
            uid,
            gid,
            mtime: entry_time(seconds, uid % 1_000_000_000),
            object: "o".into(),
            ..DirEntry::default()
        })
}

proptest! {
    #[test]
    fn listings_round_trip_whatever_the_pieces(mut all in proptest::collection::vec(any_entry(), 0..20), piece in 1..50usize) {
        all.sort_by(DirEntry::listing_order);
        let written = write(&all, &DirSummary::default());
        let mut parser = DirParser::new("k");
        let mut found = Vec::new();
        for piece in written.chunks(piece) {
            parser.feed(piece);
            while let Some(entry) = parser.next_entry().unwrap() {
                found.push(entry);
            }
        }
        prop_assert!(parser.finish().is_ok());
        // Bytes that are no text come back as replacement characters, one for each byte.
        for entry in &mut all {
            let text = |chunk: std::str::Utf8Chunk<'_>| chunk.valid().to_owned() + &"\u{fffd}".repeat(chunk.invalid().len());
            entry.name = entry.name.as_bytes().utf8_chunks().map(text).collect::<String>().into();
        }
        prop_assert_eq!(found, all);
    }

    #[test]
    fn damaged_listings_never_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut bytes = KOPIA_LISTING.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        let mut reader = DirEntries::new("k", &bytes[..]);
        prop_assert!(reader.by_ref().count() <= 1000);
        let _ = reader.finish();
    }

    #[test]
    fn any_bytes_are_no_listing_but_never_a_panic(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\ ".to_vec())], 0..300)) {
        let mut reader = DirEntries::new("k", &bytes[..]);
        prop_assert!(reader.by_ref().count() <= 1000);
        let _ = reader.finish();
    }

    #[test]
    fn an_entry_is_plain_only_if_it_is_written_as_we_write_it(mut entry in any_entry(), plain_name in "[a-z. é\u{2028}&]{1,9}", at: prop::sample::Index, byte in 0..128u8, damage: bool) {
        entry.name = plain_name.as_str().into();
        let mut json = Vec::new();
        encode_entry(&entry, &mut json).unwrap();
        if damage {
            let at = at.index(json.len());
            json[at] = byte;
        }
        let raw = RawEntry::new(&json);
        let is_file = matches!(entry.entry_type, EntryType::File | EntryType::Symlink);
        let is_escaped = plain_name.contains(['&', '\u{2028}']);
        match raw.plain().filter(|plain| plain.rest == b"}") {
            Some(plain) => {
                let found = raw.parse().unwrap();
                let same = DirEntry {
                    name: plain.name.into(),
                    entry_type: plain.entry_type.clone(),
                    mode: plain.mode,
                    size: plain.size,
                    mtime: plain.mtime,
                    uid: plain.uid,
                    gid: plain.gid,
                    object: plain.object.to_owned(),
                    ..DirEntry::default()
                };
                prop_assert_eq!(&same, &found);
                let mut again = Vec::new();
                encode_entry(&same, &mut again).unwrap();
                prop_assert_eq!(again, json);
            }
            None => prop_assert!(damage || !is_file || is_escaped),
        }
    }

    #[test]
    fn unix_modes_round_trip(mode in 0..0o10000u32) {
        prop_assert_eq!(GoMode::from_unix(mode).to_unix(), mode);
    }
}
