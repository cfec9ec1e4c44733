//! The compressors of the format: `u32be(id) ‖ stream`, where the id alone selects the decoder.

mod codecs;
mod s2;
mod zstandard;

use crate::{Error, Result};

/// Length of the id in front of a compressed stream.
pub const HEADER_LEN: usize = 4;

/// A compressor of the format. All of them can be read and written; see [`Compressor::is_deprecated`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Compressor {
    Gzip,
    GzipBestSpeed,
    GzipBestCompression,
    Zstd,
    ZstdFastest,
    ZstdBetterCompression,
    ZstdBestCompression,
    S2Default,
    S2Better,
    S2Parallel4,
    S2Parallel8,
    Pgzip,
    PgzipBestSpeed,
    PgzipBestCompression,
    Lz4,
    DeflateDefault,
    DeflateBestSpeed,
    DeflateBestCompression,
}

/// What lies behind the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// RFC 1952, with a level. The parallel variants of Kopia differ in how they are computed only.
    Gzip(u32),
    /// RFC 1951 without any frame, with a level.
    Deflate(u32),
    /// Zstandard frames, with a level.
    Zstd(i32),
    /// S2 frames, a superset of Snappy's.
    S2(s2::Effort),
    /// An LZ4 frame.
    Lz4,
}

const DEFAULT_LEVEL: u32 = 6;
const BEST_SPEED: u32 = 1;
const BEST_COMPRESSION: u32 = 9;

impl Compressor {
    /// Every compressor that Kopia registers.
    pub const ALL: [Compressor; 18] = [
        Compressor::Gzip,
        Compressor::GzipBestSpeed,
        Compressor::GzipBestCompression,
        Compressor::Zstd,
        Compressor::ZstdFastest,
        Compressor::ZstdBetterCompression,
        Compressor::ZstdBestCompression,
        Compressor::S2Default,
        Compressor::S2Better,
        Compressor::S2Parallel4,
        Compressor::S2Parallel8,
        Compressor::Pgzip,
        Compressor::PgzipBestSpeed,
        Compressor::PgzipBestCompression,
        Compressor::Lz4,
        Compressor::DeflateDefault,
        Compressor::DeflateBestSpeed,
        Compressor::DeflateBestCompression,
    ];

    /// Name, id and stream of each. The levels of zstd stand for those that Kopia's library calls default, fastest,
    /// better and best; all keep the window at 8 MiB or below, which every decoder accepts.
    fn facts(self) -> (&'static str, u32, Stream) {
        match self {
            Compressor::Gzip => ("gzip", 0x1000, Stream::Gzip(DEFAULT_LEVEL)),
            Compressor::GzipBestSpeed => ("gzip-best-speed", 0x1001, Stream::Gzip(BEST_SPEED)),
            Compressor::GzipBestCompression => {
                ("gzip-best-compression", 0x1002, Stream::Gzip(BEST_COMPRESSION))
            }
            Compressor::Zstd => ("zstd", 0x1100, Stream::Zstd(3)),
            Compressor::ZstdFastest => ("zstd-fastest", 0x1101, Stream::Zstd(1)),
            Compressor::ZstdBetterCompression => ("zstd-better-compression", 0x1102, Stream::Zstd(7)),
            Compressor::ZstdBestCompression => ("zstd-best-compression", 0x1103, Stream::Zstd(11)),
            Compressor::S2Default => ("s2-default", 0x1200, Stream::S2(s2::Effort::Default)),
            Compressor::S2Better => ("s2-better", 0x1201, Stream::S2(s2::Effort::Better)),
            Compressor::S2Parallel4 => ("s2-parallel-4", 0x1202, Stream::S2(s2::Effort::Default)),
            Compressor::S2Parallel8 => ("s2-parallel-8", 0x1203, Stream::S2(s2::Effort::Default)),
            Compressor::Pgzip => ("pgzip", 0x1300, Stream::Gzip(DEFAULT_LEVEL)),
            Compressor::PgzipBestSpeed => ("pgzip-best-speed", 0x1301, Stream::Gzip(BEST_SPEED)),
            Compressor::PgzipBestCompression => {
                ("pgzip-best-compression", 0x1302, Stream::Gzip(BEST_COMPRESSION))
            }
            Compressor::Lz4 => ("lz4", 0x1400, Stream::Lz4),
            Compressor::DeflateDefault => ("deflate-default", 0x1500, Stream::Deflate(DEFAULT_LEVEL)),
            Compressor::DeflateBestSpeed => ("deflate-best-speed", 0x1501, Stream::Deflate(BEST_SPEED)),
            Compressor::DeflateBestCompression => {
                ("deflate-best-compression", 0x1502, Stream::Deflate(BEST_COMPRESSION))
            }
        }
    }

    /// The name in policies.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The id in front of the stream and in index entries.
    pub fn id(self) -> u32 {
        self.facts().1
    }

    /// The compressor called `name` in a policy.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|compressor| compressor.name() == name)
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "compression", name: name.into() })
    }

    /// The compressor with the id `id`.
    pub fn from_id(id: u32) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|compressor| compressor.id() == id)
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "compression id", name: format!("{id:#x}") })
    }

    /// Whether new data should not use it: Kopia keeps it for reading only, and newer versions of Kopia no longer
    /// read `lz4`.
    pub fn is_deprecated(self) -> bool {
        matches!(self, Compressor::Lz4 | Compressor::ZstdBestCompression)
    }

    /// Appends `id ‖ stream` of `data` to `out`. The result may be longer than `data`; whoever stores it keeps the
    /// shorter one. On failure `out` is as before.
    pub fn compress(self, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let (_, id, stream) = self.facts();
        let start = out.len();
        out.extend_from_slice(&id.to_be_bytes());
        let result = match stream {
            Stream::Gzip(level) => codecs::gzip(level, data, out),
            Stream::Deflate(level) => codecs::deflate(level, data, out),
            Stream::Zstd(level) => zstandard::compress(level, data, out),
            Stream::S2(effort) => s2::compress(effort, data, out),
            Stream::Lz4 => codecs::lz4(data, out),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// The data of `compressed`, which must begin with the id of this compressor and expand to at most `limit`
    /// bytes. Memory stays within a small multiple of `limit` and the input, whatever the stream claims.
    pub fn decompress(self, compressed: &[u8], limit: usize) -> Result<Vec<u8>> {
        let (found, stream) = split_header(compressed)?;
        if found != self.id() {
            return Err(Error::corrupt(
                "compressed data",
                format!(
                    "it starts with the id {found:#x} where {:#x} ({}) is expected",
                    self.id(),
                    self.name()
                ),
            ));
        }
        match self.facts().2 {
            Stream::Gzip(_) => codecs::gunzip(stream, limit),
            Stream::Deflate(_) => codecs::inflate(stream, limit),
            Stream::Zstd(_) => zstandard::decompress(stream, limit),
            Stream::S2(_) => s2::decompress(stream, limit),
            Stream::Lz4 => codecs::unlz4(stream, limit),
        }
    }
}

/// The data of `compressed`, whose own id selects the decoder. See [`Compressor::decompress`].
pub fn decompress_by_header(compressed: &[u8], limit: usize) -> Result<Vec<u8>> {
    Compressor::from_id(split_header(compressed)?.0)?.decompress(compressed, limit)
}

fn split_header(compressed: &[u8]) -> Result<(u32, &[u8])> {
    compressed
        .split_first_chunk::<HEADER_LEN>()
        .map(|(id, stream)| (u32::from_be_bytes(*id), stream))
        .ok_or_else(|| Error::corrupt("compressed data", "it is too short for its header"))
}

/// How much to allocate before the size of the result is known: most data shrinks to no less than a quarter.
fn first_guess(compressed: usize, limit: usize) -> usize {
    compressed.saturating_mul(4).max(4 << 10).min(limit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
