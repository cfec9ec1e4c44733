//! Object ids: what is accepted is written back the same.
#![no_main]

use lifeboat_kopia::object::ObjectId;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(id) = text.parse::<ObjectId>() {
        assert_eq!(id.to_string().parse::<ObjectId>().ok(), Some(id));
    }
});
