//! The streams that a library handles as they are: gzip, deflate and LZ4.

use super::first_guess;
use crate::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Decompress, FlushDecompress, Status};
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use std::io::{self, Read, Write};

const GZIP: &str = "gzip data";
const DEFLATE: &str = "deflate data";
const LZ4: &str = "lz4 data";

pub(super) fn gzip(level: u32, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::new(level));
    encoder.write_all(data).and_then(|()| encoder.finish().map(drop)).map_err(|error| damaged(GZIP, &error))
}

pub(super) fn gunzip(stream: &[u8], limit: usize) -> Result<Vec<u8>> {
    // Go's reader takes any number of members too, and what follows the last one must be another.
    read_limited(MultiGzDecoder::new(stream), GZIP, first_guess(stream.len(), limit), limit)
}

pub(super) fn deflate(level: u32, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut encoder = DeflateEncoder::new(out, Compression::new(level));
    encoder
        .write_all(data)
        .and_then(|()| encoder.finish().map(drop))
        .map_err(|error| damaged(DEFLATE, &error))
}

/// Not through `DeflateDecoder`: that takes the end of the input for the end of the data, so that a truncated
/// stream would pass.
pub(super) fn inflate(stream: &[u8], limit: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(first_guess(stream.len(), limit).max(1));
    let mut inflater = Decompress::new(false);
    loop {
        // Cannot exceed the length of the stream.
        let consumed = inflater.total_in() as usize;
        let status = inflater
            .decompress_vec(&stream[consumed..], &mut out, FlushDecompress::Finish)
            .map_err(|error| Error::corrupt(DEFLATE, error.to_string()))?;
        if out.len() > limit {
            return Err(Error::TooLarge { what: DEFLATE, limit });
        }
        match status {
            Status::StreamEnd => return Ok(out),
            Status::Ok | Status::BufError if out.len() < out.capacity() => {
                return Err(Error::corrupt(DEFLATE, "it ends in the middle"));
            }
            // One byte beyond the limit tells data that fits from data that does not.
            Status::Ok | Status::BufError => out.reserve(out.len().min(limit + 1 - out.len()).max(1)),
        }
    }
}

pub(super) fn lz4(data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut encoder = FrameEncoder::new(out);
    encoder
        .write_all(data)
        .and_then(|()| encoder.finish().map(drop).map_err(io::Error::other))
        .map_err(|error| damaged(LZ4, &error))
}

pub(super) fn unlz4(stream: &[u8], limit: usize) -> Result<Vec<u8>> {
    // The decoder takes the end of the input for the end of the frame. Behind the input we put another end mark:
    // a complete frame leaves it alone, one that was cut off between two blocks reads it.
    const END_MARK: &[u8] = &[0; 4];
    let mut input = stream.chain(END_MARK);
    let out = read_limited(FrameDecoder::new(&mut input), LZ4, first_guess(stream.len(), limit), limit)?;
    let (rest, mark) = input.into_inner();
    if mark.len() < END_MARK.len() {
        return Err(Error::corrupt(LZ4, "it ends in the middle"));
    }
    if !rest.is_empty() {
        return Err(Error::corrupt(LZ4, format!("{} bytes follow its end", rest.len())));
    }
    Ok(out)
}

fn read_limited(reader: impl Read, what: &'static str, guess: usize, limit: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(guess);
    // One byte beyond the limit tells data that fits from data that does not.
    let mut reader = reader.take((limit as u64).saturating_add(1));
    reader.read_to_end(&mut out).map_err(|error| damaged(what, &error))?;
    if out.len() > limit {
        return Err(Error::TooLarge { what, limit });
    }
    Ok(out)
}

fn damaged(what: &'static str, error: &io::Error) -> Error {
    Error::corrupt(what, error.to_string())
}
