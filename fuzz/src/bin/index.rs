//! Index blobs, versions 1 and 2: no bytes make the reader panic, and what it lists it also finds.
#![no_main]

use lifeboat_index::IndexReader;

/// What encryption adds to a content of the default format.
const OVERHEAD: u32 = 28;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(reader) = IndexReader::parse(bytes, OVERHEAD) else { return };
    for entry in reader.iter() {
        // A damaged index need not be sorted, so a look-up may miss; it must not fail in another way.
        let Ok(entry) = entry else { return };
        let _ = reader.get(&entry.id);
    }
});
