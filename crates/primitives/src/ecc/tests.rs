//! Shapes and bytes of the format specification and of Kopia, and repair of damage.

use super::*;
use crate::hash::{HashAlgorithm, Hasher};
use proptest::prelude::*;

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * i + 7 * i) % 251) as u8).collect()
}

fn encode(codec: &Codec, data: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    codec.encode(data, &mut stored).unwrap();
    stored
}

#[test]
fn each_overhead_has_its_shard_size_and_numbers_of_shards() {
    let expected = [
        (1, 1024, 254, 2),
        (2, 512, 164, 2),
        (3, 256, 139, 2),
        (4, 128, 228, 2),
        (5, 128, 128, 2),
        (6, 128, 128, 3),
        (7, 64, 254, 2),
        (8, 64, 128, 2),
        (10, 64, 128, 4),
        (15, 64, 128, 11),
        (20, 64, 128, 17),
        (25, 64, 128, 24),
        (50, 64, 128, 56),
        (100, 64, 128, 120),
    ];
    for (percent, shard, data, parity) in expected {
        let codec = Codec::new(percent).unwrap();
        assert_eq!(
            (codec.shard, codec.large.data(), codec.large.parity()),
            (shard, data, parity),
            "{percent} %"
        );
    }
    assert!(Codec::new(0).is_err());
    assert!(Codec::new(101).is_err());
}

#[test]
fn shard_counts_are_those_of_kopias_own_tests() {
    for (overhead, expected) in [(0.1, (254, 2)), (1.0, (200, 2)), (2.0, (128, 2)), (10.0, (128, 12))] {
        assert_eq!(shard_counts(overhead), expected, "{overhead} %");
    }
}

#[test]
fn stored_sizes_are_those_of_kopias_own_tests() {
    for (percent, input, stored) in [(2, 1, 40), (2, 10240, 11050), (10, 1_048_576, 1_163_704)] {
        let codec = Codec::with_shard(percent, 1024);
        assert_eq!(encode(&codec, &data(input)).len(), stored, "{percent} %, {input} bytes");
    }
}

#[test]
fn small_messages_have_the_known_bytes() {
    let codec = Codec::new(2).unwrap();
    assert_eq!(
        hex::encode(encode(&codec, &[1])),
        "4c667a2e074c667a2e07d202ef8d00d202ef8d00d202ef8d00a505df1b01a505df1b01d202ef8d00"
    );
    assert_eq!(
        hex::encode(encode(&codec, b"hello world")),
        "e3396797edd9807bc47ee4d8c681ff41d91200000063e8428b0b6865aac9b3346c6c6f7a7f0c0a20776f2ba3e4c6726c64\
         ff41d912000000"
    );
}

#[test]
fn what_is_stored_is_byte_for_byte_what_kopia_stores() {
    let hasher = Hasher::new(HashAlgorithm::HmacSha256, b"k").unwrap();
    for line in include_str!("../../tests/kopia/ecc.txt").lines().filter(|line| !line.starts_with('#')) {
        let [percent, len, stored_len, digest]: [&str; 4] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let stored = encode(&Codec::new(percent.parse().unwrap()).unwrap(), &data(len.parse().unwrap()));
        assert_eq!(stored.len().to_string(), stored_len, "{line}");
        assert_eq!(hex::encode(&hasher.hash(&stored).as_slice()[..8]), digest, "{line}");
    }
}

#[test]
fn every_length_around_a_change_of_layout_is_restored() {
    for percent in [1, 2, 3, 5, 7, 10, 25, 100] {
        let codec = Codec::new(percent).unwrap();
        let (small, block) = (codec.small_limit(), codec.large.data() * codec.shard);
        let around = |limit: usize| limit.saturating_sub(10)..limit + 6;
        for len in (0..40).chain(around(small)).chain(around(block)).chain(around(2 * block)) {
            let input = data(len);
            assert_eq!(codec.decode(&encode(&codec, &input)).unwrap(), input, "{percent} %, {len} bytes");
        }
    }
}

#[test]
fn as_many_damaged_shards_as_there_is_parity_are_repaired_and_one_more_is_reported() {
    for (percent, len) in [(2, 100), (5, 9000), (25, 60_000), (100, 60_000)] {
        let codec = Codec::new(percent).unwrap();
        let input = data(len);
        let stored = encode(&codec, &input);
        let layout = codec.layout_of_stored(stored.len());
        let (step, parity) = (CRC_LEN + layout.shard, layout.code.parity());
        let damage = |shards: usize| {
            let mut damaged = stored.clone();
            for shard in 0..shards {
                damaged[layout.stored_parity() + shard * step + CRC_LEN] ^= 0x10;
            }
            codec.decode(&damaged)
        };
        assert_eq!(damage(parity).unwrap(), input, "{percent} %");
        let error = damage(parity + 1).unwrap_err();
        assert!(error.to_string().contains("damaged, more than can be repaired"), "{error}");
    }
}

#[test]
fn stored_data_that_was_cut_off_is_never_taken_for_whole() {
    for (percent, len) in [(2, 100), (5, 9000), (10, 40_000)] {
        let codec = Codec::new(percent).unwrap();
        let stored = encode(&codec, &data(len));
        for cut in [1, 2, 63, 64, 68, 69, 1000] {
            assert!(
                codec.decode(&stored[..stored.len().saturating_sub(cut)]).is_err(),
                "{percent} %, -{cut}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn scattered_damage_within_the_parity_is_repaired(
        percent in 5u32..60,
        len in 0usize..30_000,
        places in prop::collection::vec(any::<prop::sample::Index>(), 2),
    ) {
        let codec = Codec::new(percent).unwrap();
        let input = data(len);
        let mut stored = encode(&codec, &input);
        // Two changed bytes spoil at most two shards, and there are always two for parity.
        for place in places {
            let at = place.index(stored.len());
            stored[at] ^= 0xff;
        }
        prop_assert_eq!(codec.decode(&stored).unwrap(), input);
    }

    #[test]
    fn arbitrary_bytes_never_panic(percent in 1u32..=100, bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
        _ = Codec::new(percent).unwrap().decode(&bytes);
    }
}
