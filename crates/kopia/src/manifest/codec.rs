//! The bytes of a manifest content: a gzip stream of `{"entries":[…]}` and a newline.

use super::{Labels, ManifestId};
use crate::gojson::{self, GoTime, go_object};
use crate::{Error, Result};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{BufReader, Read, Write};

/// The most bytes that a manifest content may unpack to (that is some hundred thousand snapshots); more is
/// taken for damage or an attack.
pub const MAX_UNPACKED: u64 = 256 << 20;

go_object! {
    /// One manifest as stored: an entry, or the tombstone of one.
    #[derive(Debug, Clone, Default)]
    pub struct StoredEntry {
        /// Its name.
        pub id: ManifestId => "id",
        /// Its labels; `null` in a tombstone.
        pub labels: Option<Labels> => "labels",
        /// When it was written; decides which of several entries with one id counts.
        pub modified: GoTime => "modified",
        /// Whether this is a tombstone.
        pub deleted: bool => "deleted" omitempty,
        /// The document; `null` in a tombstone.
        pub data: Option<Box<RawValue>> => "data",
    }
}

/// What a content held, and what of it could not be understood.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub entries: Vec<StoredEntry>,
    /// Why some of it was left out.
    pub damage: Vec<String>,
}

/// Only `entries`, once: Kopia's parser stumbles over anything else.
#[derive(Serialize)]
struct Envelope<'a> {
    entries: &'a [&'a StoredEntry],
}

#[derive(Deserialize)]
struct RawEnvelope {
    entries: Option<Vec<Box<RawValue>>>,
}

/// The bytes for `entries`.
pub(super) fn encode(entries: &[&StoredEntry]) -> Result<Vec<u8>> {
    let failed = |source: std::io::Error| Error::Invalid(format!("cannot encode manifests: {source}"));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gojson::write(&mut gzip, &Envelope { entries }).map_err(|source| failed(source.into()))?;
    gzip.write_all(b"\n").map_err(failed)?;
    gzip.finish().map_err(failed)
}

/// Takes a content apart. An entry that is not understood costs only itself; an `Err` means that there is no list
/// of entries at all.
pub(super) fn decode(content: &[u8]) -> std::result::Result<Decoded, String> {
    let unpacked = BufReader::new(MultiGzDecoder::new(content).take(MAX_UNPACKED));
    let mut parser = serde_json::Deserializer::from_reader(unpacked);
    let envelope = RawEnvelope::deserialize(&mut parser).map_err(|source| source.to_string())?;
    let mut decoded = Decoded::default();
    for raw in envelope.entries.unwrap_or_default() {
        match serde_json::from_str::<StoredEntry>(raw.get()) {
            Ok(entry) if entry.id.as_str().is_empty() => decoded.damage.push("an entry has no id".to_owned()),
            Ok(entry) => decoded.entries.push(entry),
            Err(source) => decoded.damage.push(format!("an entry is not understood: {source}")),
        }
    }
    Ok(decoded)
}
