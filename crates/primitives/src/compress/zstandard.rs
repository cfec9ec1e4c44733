//! Zstandard, with one compression and one decompression context per thread: setting them up costs more than a
//! small content.

use super::first_guess;
use crate::{Error, Result};
use std::cell::RefCell;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, InBuffer, OutBuffer, ResetDirective, compress_bound, get_error_name,
    get_frame_content_size,
};

const ZSTD: &str = "zstd data";

/// What a second attempt has room for at least, even if the stream declared that it holds nothing.
const MIN_GROWTH: usize = 64 << 10;

thread_local! {
    static COMPRESSION: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSION: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

pub(super) fn compress(level: i32, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let failed = |code| Error::corrupt(ZSTD, format!("compression failed: {}", get_error_name(code)));
    COMPRESSION.with_borrow_mut(|context| {
        context.reset(ResetDirective::SessionAndParameters).map_err(failed)?;
        context.set_parameter(CParameter::CompressionLevel(level)).map_err(failed)?;
        // With room for the worst case, the first call completes the frame and writes straight into `out`.
        out.reserve(compress_bound(data.len()));
        let start = out.len();
        let mut output = OutBuffer::around_pos(out, start);
        let mut input = InBuffer::around(data);
        match context.compress_stream2(&mut output, &mut input, ZSTD_EndDirective::ZSTD_e_end) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Error::Internal("zstd compression")),
            Err(code) => Err(failed(code)),
        }
    })
}

/// Decodes in one call, straight into the result: unlike the streaming decoder this allocates no window, however
/// large the frame says it is.
pub(super) fn decompress(stream: &[u8], limit: usize) -> Result<Vec<u8>> {
    let too_large = Error::TooLarge { what: ZSTD, limit };
    let declared = match get_frame_content_size(stream) {
        Ok(Some(size)) => Some(usize::try_from(size).ok().filter(|&size| size <= limit).ok_or(too_large)?),
        // No size, or no valid header, which decoding reports.
        Ok(None) | Err(_) => None,
    };
    // Kopia's encoder leaves the size out of larger frames, and the size of the first frame need not be all: try with
    // growing buffers.
    let mut capacity = declared.unwrap_or_else(|| first_guess(stream.len(), limit));
    loop {
        let mut out = Vec::with_capacity(capacity);
        let result = DECOMPRESSION.with_borrow_mut(|context| context.decompress(&mut out, stream));
        match result {
            Ok(_) if out.len() <= limit => return Ok(out),
            Ok(_) => return Err(Error::TooLarge { what: ZSTD, limit }),
            Err(code) if is_too_small(code) && capacity < limit => {
                capacity = capacity.saturating_mul(4).max(MIN_GROWTH).min(limit);
            }
            Err(code) if is_too_small(code) => return Err(Error::TooLarge { what: ZSTD, limit }),
            Err(code) => return Err(Error::corrupt(ZSTD, get_error_name(code))),
        }
    }
}

/// Whether decoding failed for lack of room. zstd keeps this code (70, negated) stable.
fn is_too_small(code: usize) -> bool {
    const DST_SIZE_TOO_SMALL: usize = 70_usize.wrapping_neg();
    code == DST_SIZE_TOO_SMALL
}
