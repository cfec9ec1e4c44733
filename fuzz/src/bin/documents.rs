//! The JSON documents of a repository and its clients: what is read can be written, and reads the same again.
#![no_main]

use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::SnapshotManifest;
use serde::{Serialize, de::DeserializeOwned};

fn settles<T: Serialize + DeserializeOwned>(json: &[u8]) {
    let Ok(document) = serde_json::from_slice::<T>(json) else { return };
    let written = serde_json::to_vec(&document).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(written, serde_json::to_vec(&again).expect("and written again"));
}

libfuzzer_sys::fuzz_target!(|json: &[u8]| {
    settles::<Policy>(json);
    settles::<SnapshotManifest>(json);
});
