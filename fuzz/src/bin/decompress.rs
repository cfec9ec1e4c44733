//! Compressed contents: no stream makes a decoder panic or give more than it was allowed to.
#![no_main]

use lifeboat_primitives::compress::decompress_by_header;

const LIMIT: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|compressed: &[u8]| {
    if let Ok(data) = decompress_by_header(compressed, LIMIT) {
        assert!(data.len() <= LIMIT);
    }
});
