//! The framing of S2 streams: a sequence of chunks, each with a type, a length and, for data, a checksum.
//!
//! The library decodes and encodes the blocks inside. Its own stream reader is not used: it recurses once per
//! skippable chunk and takes a cut-off chunk header for the end of the stream.

use super::first_guess;
use crate::{Error, Result};
use crc_fast::crc32_iscsi as crc32c;
use minlz::s2::{decode_into, decode_len, encode, encode_better};

const S2: &str = "s2 data";
const STREAM_START: &[u8] = b"\xff\x06\x00\x00S2sTwO";
const MAGIC: &[u8] = b"S2sTwO";
const SNAPPY_MAGIC: &[u8] = b"sNaPpY";
const CHECKSUM_LEN: usize = 4;

/// The format allows 4 MiB; a block that claims more is damaged.
const MAX_BLOCK: usize = 4 << 20;
/// The block size of Kopia's encoder.
const BLOCK: usize = 1 << 20;

const COMPRESSED: u8 = 0x00;
const UNCOMPRESSED: u8 = 0x01;
const FIRST_SKIPPABLE: u8 = 0x80;
const STREAM_ID: u8 = 0xff;

/// How hard to look for matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    Default,
    Better,
}

pub(super) fn compress(effort: Effort, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(STREAM_START);
    for block in data.chunks(BLOCK) {
        let encoded = match effort {
            Effort::Default => encode(block),
            Effort::Better => encode_better(block),
        };
        let (kind, body) =
            if encoded.len() < block.len() { (COMPRESSED, &encoded[..]) } else { (UNCOMPRESSED, block) };
        // A block and its checksum are far below the 2^24 bytes that the length can tell.
        let length = ((body.len() + CHECKSUM_LEN) as u32).to_le_bytes();
        out.extend_from_slice(&[kind, length[0], length[1], length[2]]);
        out.extend_from_slice(&masked_crc32c(block).to_le_bytes());
        out.extend_from_slice(body);
    }
    Ok(())
}

pub(super) fn decompress(mut stream: &[u8], limit: usize) -> Result<Vec<u8>> {
    let truncated = || Error::corrupt(S2, "it ends in the middle");
    let mut out = Vec::with_capacity(first_guess(stream.len(), limit));
    let mut started = false;
    while !stream.is_empty() {
        let (&[kind, l0, l1, l2], rest) = stream.split_first_chunk().ok_or_else(truncated)?;
        let length = u32::from_le_bytes([l0, l1, l2, 0]) as usize;
        let (chunk, rest) = rest.split_at_checked(length).ok_or_else(truncated)?;
        stream = rest;
        if !started && kind != STREAM_ID {
            return Err(Error::corrupt(S2, "it does not start with a stream identifier"));
        }
        match kind {
            STREAM_ID if chunk == MAGIC || chunk == SNAPPY_MAGIC => started = true,
            STREAM_ID => return Err(Error::corrupt(S2, "its stream identifier is unknown")),
            COMPRESSED | UNCOMPRESSED => append_block(kind, chunk, limit, &mut out)?,
            FIRST_SKIPPABLE.. => {}
            _ => return Err(Error::corrupt(S2, format!("a chunk has the unknown type {kind:#04x}"))),
        }
    }
    Ok(out)
}

fn append_block(kind: u8, chunk: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<()> {
    let (checksum, body) = chunk
        .split_first_chunk::<CHECKSUM_LEN>()
        .ok_or_else(|| Error::corrupt(S2, "a chunk is too short for its checksum"))?;
    let length = if kind == COMPRESSED {
        decode_len(body).map_err(|error| Error::corrupt(S2, error.to_string()))?.0
    } else {
        body.len()
    };
    if length > MAX_BLOCK {
        return Err(Error::corrupt(S2, format!("a block claims {length} bytes")));
    }
    if length > limit - out.len() {
        return Err(Error::TooLarge { what: S2, limit });
    }
    let start = out.len();
    if kind == COMPRESSED {
        out.resize(start + length, 0);
        decode_into(&mut out[start..], body).map_err(|error| Error::corrupt(S2, error.to_string()))?;
    } else {
        out.extend_from_slice(body);
    }
    if masked_crc32c(&out[start..]).to_le_bytes() != *checksum {
        return Err(Error::corrupt(S2, "the checksum of a block does not match"));
    }
    Ok(())
}

/// Snappy's checksum: rotated and shifted, so that data which contains its own checksum does not weaken it.
fn masked_crc32c(block: &[u8]) -> u32 {
    crc32c(block).rotate_right(15).wrapping_add(0xa282_ead8)
}
