//! Writes the committed corpus anew: small well-formed inputs of every kind, for the fuzzer to start from.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --example seeds`

use lifeboat_index::{ContentId, IndexBuilder, IndexEntry, IndexVersion, PackName, Prefix};
use lifeboat_kopia::pack::Postamble;
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::DirWriter;
use lifeboat_kopia::{format, snapshot};
use lifeboat_primitives::{compress::Compressor, ecc::Codec};
use std::error::Error;
use std::path::Path;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    decompress()?;
    ecc()?;
    index()?;
    repository()
}

fn seed(target: &str, name: &str, bytes: &[u8]) -> Result {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&dir)?;
    Ok(std::fs::write(dir.join(name), bytes)?)
}

fn decompress() -> Result {
    let text = "the quick brown fox jumps over the lazy dog; ".repeat(12);
    for compressor in Compressor::ALL {
        let mut out = Vec::new();
        // Some are only read, not written.
        if compressor.compress(text.as_bytes(), &mut out).is_ok() {
            seed("decompress", compressor.name(), &out)?;
        }
    }
    Ok(())
}

fn ecc() -> Result {
    for (overhead, len) in [(1, 100), (2, 3000), (10, 10), (50, 700)] {
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut out = vec![overhead];
        Codec::new(u32::from(overhead))?.encode(&data, &mut out)?;
        seed("ecc", &format!("{overhead}-percent-of-{len}"), &out)?;
    }
    Ok(())
}

fn index() -> Result {
    for (version, name) in [(IndexVersion::V1 { overhead: 28 }, "v1"), (IndexVersion::V2, "v2")] {
        for count in [1u8, 2, 9] {
            let mut builder = IndexBuilder::new();
            for number in 0..count {
                builder.add(entry(number)?);
            }
            seed("index", &format!("{name}-{count}-entries"), &builder.encode(version, b"suffix")?)?;
        }
    }
    Ok(())
}

/// Entries with and without prefix, alive and deleted, in a few packs.
fn entry(number: u8) -> Result<IndexEntry> {
    let prefix = if number.is_multiple_of(3) { Prefix::NONE } else { Prefix::DIRECTORY };
    let packed_length = 1000 + u32::from(number);
    Ok(IndexEntry {
        id: ContentId::new(prefix, &[number; 16])?,
        pack: PackName::from(format!("p{:032x}", number / 4)),
        pack_offset: 28 + 1000 * u32::from(number),
        packed_length,
        original_length: packed_length - 28,
        timestamp_seconds: 1_700_000_000 + i64::from(number),
        format_version: 2,
        compression: 0,
        encryption_key_id: 0,
        deleted: number.is_multiple_of(5),
    })
}

fn repository() -> Result {
    let format_blob = br#"{"tool":"https://github.com/kopia/kopia","buildVersion":"0.22.3","buildInfo":"","uniqueID":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","keyAlgo":"scrypt-65536-8-1","encryption":"AES256_GCM","encryptedBlockFormat":"AAECAwQFBgcICQoLDA0ODw=="}"#;
    seed("format_blob", "blob", format_blob)?;
    seed("format_blob", "copy-in-a-pack", &format::recovery_block(format_blob)?)?;

    let postamble = Postamble { iv: vec![7; 16], offset: 28, length: 100 };
    seed("postamble", "alone", &postamble.encode())?;
    seed("postamble", "after-a-pack", &[vec![0; 200], postamble.encode()].concat())?;

    seed("directory", "empty", &DirWriter::new().finish(&snapshot::DirSummary::default())?)?;
    seed("directory", "entries", LISTING)?;

    for text in ["9f3c1d", "Zk0123456789abcdef", "Ix0123456789abcdef", "IIIx00", "k0123456789abcdef"] {
        seed("object_id", text, text.as_bytes())?;
    }

    seed("documents", "policy", &serde_json::to_vec(&Policy::default())?)?;
    seed("documents", "snapshot", SNAPSHOT)
}

const LISTING: &[u8] = br#"{"stream":"kopia:directory","entries":[{"name":"a b\u2028","type":"f","mode":"0644","size":5,"mtime":"2024-02-29T23:59:59.123456789Z","uid":1000,"gid":1000,"obj":"0123456789abcdef0123456789abcdef"},{"name":"d","type":"d","mode":"0755","mtime":"2001-01-01T00:00:00Z","obj":"k0123456789abcdef0123456789abcdef","summ":{"size":5,"files":1,"symlinks":0,"dirs":1,"maxTime":"2001-01-01T00:00:00Z","numFailed":0}},{"name":"l","type":"s","mode":"0777","size":3,"mtime":"2001-01-01T00:00:00Z","obj":"0123456789abcdef0123456789abcdef"}],"summary":{"size":10,"files":2,"symlinks":1,"dirs":2,"maxTime":"2024-02-29T23:59:59.123456789Z","numFailed":0}}
"#;

const SNAPSHOT: &[u8] = br#"{"id":"","source":{"host":"h","userName":"u","path":"/p"},"description":"","startTime":"2024-02-29T23:59:59.123456789Z","endTime":"2024-02-29T23:59:59.999Z","stats":{"totalSize":5,"excludedTotalSize":0,"fileCount":1,"cachedFiles":0,"nonCachedFiles":1,"dirCount":1,"excludedFileCount":0,"excludedDirCount":0,"ignoredErrorCount":0,"errorCount":0},"rootEntry":{"name":"p","type":"d","mode":"0755","mtime":"2001-01-01T00:00:00Z","obj":"k0123456789abcdef0123456789abcdef","summ":{"size":5,"files":1,"symlinks":0,"dirs":1,"maxTime":"2001-01-01T00:00:00Z","numFailed":0}},"tags":{"tag:a":"b"},"pins":["velero-pin"]}"#;
