//! The format blob and its copies in packs: no bytes make the readers panic.
#![no_main]

use lifeboat_kopia::format::{FormatBlob, find_recovery_block};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = FormatBlob::parse(bytes);
    if let Ok(Some(copy)) = find_recovery_block(bytes) {
        assert!(copy.len() < bytes.len());
        let _ = FormatBlob::parse(copy);
    }
});
