//! Error correction: no stored form makes the decoder panic. The first byte selects the overhead.
#![no_main]

use lifeboat_primitives::ecc::Codec;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((overhead, stored)) = input.split_first() else { return };
    if let Ok(codec) = Codec::new(u32::from(*overhead)) {
        let _ = codec.decode(stored);
    }
});
