//! The end of a pack: whatever is found there, its range lies inside the pack.
#![no_main]

use lifeboat_kopia::pack::Postamble;

libfuzzer_sys::fuzz_target!(|tail: &[u8]| {
    let Some(postamble) = Postamble::find(tail) else { return };
    let len = tail.len() as u64;
    if let Some(range) = postamble.range(len) {
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len}");
    }
});
