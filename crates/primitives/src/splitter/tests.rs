//! Cut points: the vectors of the format specification, and every fast path against a naive splitter.

use super::*;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;

fn algorithm(family: SplitterFamily, size: usize) -> SplitterAlgorithm {
    SplitterAlgorithm::new(family, size).unwrap()
}

/// Lengths of all pieces that end with a cut, by the streaming interface in calls of `step` bytes.
fn lengths(algorithm: SplitterAlgorithm, data: &[u8], step: usize) -> Vec<usize> {
    let mut splitter = Splitter::new(algorithm);
    let (mut lengths, mut current) = (Vec::new(), 0);
    for mut call in data.chunks(step) {
        while let Some(cut) = splitter.next_cut(call) {
            lengths.push(current + cut);
            current = 0;
            call = &call[cut..];
        }
        current += call.len();
        assert_eq!(splitter.pending(), current);
    }
    lengths
}

/// The same through regions that are scanned on their own and stitched.
fn stitched_lengths(algorithm: SplitterAlgorithm, data: &[u8], region: usize) -> Vec<usize> {
    let mut splitter = Splitter::new(algorithm);
    let (mut lengths, mut last) = (Vec::new(), 0);
    for (i, bytes) in data.chunks(region).enumerate() {
        let start = i * region;
        let candidates = scan_candidates(algorithm, &data[start.saturating_sub(WINDOW)..start], bytes);
        splitter.stitch(bytes, &candidates, |cut| {
            lengths.push(start + cut - last);
            last = start + cut;
        });
    }
    assert_eq!(splitter.pending(), data.len() - last);
    lengths
}

/// The definition, step by step: the hash of the whole window is computed anew at every position.
fn naive_lengths(algorithm: SplitterAlgorithm, data: &[u8]) -> Vec<usize> {
    let mut window = VecDeque::from(vec![0; WINDOW]);
    let (mut lengths, mut n) = (Vec::new(), 0);
    for &byte in data {
        window.pop_front();
        window.push_back(byte);
        n += 1;
        let candidate = n >= algorithm.min_size() && {
            let bytes: &[u8; WINDOW] = (&*window.make_contiguous()).try_into().unwrap();
            match algorithm.family {
                SplitterFamily::Fixed => false,
                SplitterFamily::Buzhash => buzhash::Buzhash::of_window(bytes).is_candidate(algorithm.mask()),
                SplitterFamily::RabinKarp => {
                    rabin_karp::RabinKarp::of_window(bytes).is_candidate(algorithm.mask())
                }
            }
        };
        if candidate || n == algorithm.max_size() {
            lengths.push(n);
            n = 0;
        }
    }
    lengths
}

/// The bytes that Go's `math/rand` yields for seed 5. Its generator adds the 607th and the 273rd number before;
/// `Read` hands out the low 56 bits of each, and low bits of sums depend on low bits only. So the first 607 numbers,
/// which are on file, determine the rest.
fn go_random_bytes(len: usize) -> Vec<u8> {
    let seed = include_bytes!("../../tests/kopia/go-rand-seed-5.bin");
    let mut numbers: Vec<u64> = seed
        .chunks_exact(7)
        .map(|bytes| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
        .collect();
    assert_eq!(numbers.len(), 607);
    while numbers.len() * 7 < len {
        let i = numbers.len();
        numbers.push(numbers[i - 607].wrapping_add(numbers[i - 273]) & ((1 << 56) - 1));
    }
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()[..7].to_vec()).collect();
    bytes.truncate(len);
    bytes
}

/// SHA-256 of 0, 1, 2, … as 64-bit little-endian numbers.
fn hashed_counter(len: usize) -> Vec<u8> {
    (0u64..).flat_map(|i| Sha256::digest(i.to_le_bytes())).take(len).collect()
}

#[test]
fn segment_statistics_are_those_of_kopias_own_tests() {
    let data = go_random_bytes(5_000_000);
    assert_eq!(data[..8], [0xc0, 0x09, 0x13, 0xe0, 0x2a, 0x63, 0xe4, 0xcf]);
    let expected = [
        (SplitterFamily::Buzhash, 32, (124_235, 40, 16, 64)),
        (SplitterFamily::Buzhash, 1024, (3835, 1303, 512, 2048)),
        (SplitterFamily::Buzhash, 2048, (1924, 2598, 1024, 4096)),
        (SplitterFamily::Buzhash, 32768, (112, 44642, 16413, 65536)),
        (SplitterFamily::Buzhash, 65536, (57, 87719, 32932, 131_072)),
        (SplitterFamily::RabinKarp, 32, (124_108, 40, 16, 64)),
        (SplitterFamily::RabinKarp, 1024, (3771, 1325, 512, 2048)),
        (SplitterFamily::RabinKarp, 2048, (1887, 2649, 1028, 4096)),
        (SplitterFamily::RabinKarp, 32768, (121, 41322, 16896, 65536)),
        (SplitterFamily::RabinKarp, 65536, (53, 94339, 35875, 131_072)),
    ];
    for (family, size, expected) in expected {
        let lengths = lengths(algorithm(family, size), &data, data.len());
        // Kopia's test divides the whole input by the number of complete segments.
        let average = data.len() / lengths.len();
        let found = (lengths.len(), average, *lengths.iter().min().unwrap(), *lengths.iter().max().unwrap());
        assert_eq!(found, expected, "{family:?} {size}");
    }
}

#[test]
fn first_segments_of_kopias_test_input_are_the_known_ones() {
    let data = go_random_bytes(1_000_000);
    let first = |size| lengths(algorithm(SplitterFamily::Buzhash, size), &data, data.len());
    assert_eq!(first(2048)[..6], [1522, 2486, 1575, 1830, 4096, 3372]);
    assert_eq!(first(65536)[..6], [34109, 39207, 120_597, 82313, 75033, 131_072]);
}

#[test]
fn named_splitters_cut_the_hashed_counter_where_the_format_specification_says() {
    let data = hashed_counter(16 << 20);
    assert_eq!(
        hex::encode(Sha256::digest(&data)),
        "01c65c8d6d336a8f1e9acf8bbfe807f7c1d0ec666ff41bc2db9f679849f03c03"
    );
    let expected: [(&str, usize, &[usize]); 4] = [
        (
            "DYNAMIC-128K-BUZHASH",
            2 << 20,
            &[
                259_127, 146_709, 136_437, 76078, 262_144, 71117, 241_300, 96596, 96233, 262_144, 177_864,
                177_072, 83043,
            ],
        ),
        (
            "DYNAMIC-128K-RABINKARP",
            2 << 20,
            &[
                94682, 175_669, 74997, 262_144, 82319, 78923, 148_528, 97730, 103_423, 262_144, 186_074,
                97042, 140_615, 129_763, 109_420,
            ],
        ),
        ("DYNAMIC-1M-BUZHASH", 8 << 20, &[1_009_336, 1_959_403, 1_823_944, 1_010_086, 1_121_637, 636_852]),
        ("DYNAMIC-4M-BUZHASH", 16 << 20, &[7_561_258, 3_145_347]),
    ];
    for (name, len, expected) in expected {
        let algorithm = SplitterAlgorithm::from_name(name).unwrap();
        for step in [len, 1 << 16, 4093] {
            assert_eq!(lengths(algorithm, &data[..len], step), expected, "{name} in steps of {step}");
            assert_eq!(stitched_lengths(algorithm, &data[..len], step), expected, "{name} by {step}");
        }
    }
}

#[test]
fn a_run_of_equal_bytes_is_cut_at_the_minimum_size() {
    let algorithm = SplitterAlgorithm::from_name("DYNAMIC-1M-BUZHASH").unwrap();
    for byte in [0, 7, 255] {
        let data = vec![byte; 5 << 20];
        assert_eq!(lengths(algorithm, &data, data.len()), [524_288; 10]);
        assert_eq!(stitched_lengths(algorithm, &data, 1 << 20), [524_288; 10]);
    }
}

#[test]
fn fixed_splitters_cut_after_every_so_many_bytes() {
    let algorithm = SplitterAlgorithm::from_name("FIXED-128K").unwrap();
    let data = vec![1; 3 * 131_072 + 5];
    for step in [1000, 131_072, 1 << 20] {
        assert_eq!(lengths(algorithm, &data, step), [131_072; 3]);
        assert_eq!(stitched_lengths(algorithm, &data, step), [131_072; 3]);
    }
}

#[test]
fn an_empty_object_has_no_cut_and_an_object_that_ends_with_one_nothing_after_it() {
    let mut splitter = Splitter::new(algorithm(SplitterFamily::Fixed, 4));
    assert_eq!((splitter.next_cut(b""), splitter.pending()), (None, 0));
    assert_eq!(splitter.next_cut(b"abcd"), Some(4));
    assert_eq!((splitter.next_cut(b""), splitter.pending()), (None, 0));
}

#[test]
fn a_reset_splitter_cuts_the_next_object_like_a_new_one() {
    let data = go_random_bytes(100_000);
    let algorithm = algorithm(SplitterFamily::Buzhash, 1024);
    let mut splitter = Splitter::new(algorithm);
    let first = splitter.next_cut(&data);
    splitter.next_cut(&data[5000..5100]);
    splitter.reset();
    assert_eq!(splitter.next_cut(&data), first);
}

#[test]
fn regions_with_more_candidates_than_can_be_listed_are_cut_serially() {
    let data = go_random_bytes(200_000);
    let algorithm = algorithm(SplitterFamily::Buzhash, 32);
    assert_eq!(scan_candidates(algorithm, &[], &data), Candidates { runs: None });
    assert_eq!(stitched_lengths(algorithm, &data, 50_000), lengths(algorithm, &data, data.len()));
}

#[test]
fn names_and_aliases_lead_to_their_splitter() {
    assert_eq!(SplitterAlgorithm::all().count(), 21);
    for algorithm in SplitterAlgorithm::all() {
        assert_eq!(SplitterAlgorithm::from_name(&algorithm.name()), Ok(algorithm));
    }
    assert_eq!(SplitterAlgorithm::from_name("FIXED").unwrap().name(), "FIXED-4M");
    assert_eq!(SplitterAlgorithm::from_name("DYNAMIC").unwrap(), SplitterAlgorithm::default());
    assert_eq!(SplitterAlgorithm::default().name(), "DYNAMIC-4M-BUZHASH");
    assert!(SplitterAlgorithm::from_name("DYNAMIC-16M-BUZHASH").is_err());
    assert!(SplitterAlgorithm::new(SplitterFamily::Buzhash, 1000).is_err());
    assert!(SplitterAlgorithm::new(SplitterFamily::Fixed, 0).is_err());
}

/// Data as it comes: random, constant, repeating, of few values, or pieces of all of these.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let random = (any::<u64>(), 0usize..60_000).prop_map(|(seed, len)| {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    });
    let constant = (any::<u8>(), 0usize..20_000).prop_map(|(byte, len)| vec![byte; len]);
    let repeating = (prop::collection::vec(any::<u8>(), 1..200), 0usize..300)
        .prop_map(|(pattern, times)| pattern.repeat(times));
    let few_values =
        random.clone().prop_map(|bytes| bytes.into_iter().map(|byte| byte & 1).collect::<Vec<u8>>());
    let piece = prop_oneof![random, constant, repeating, few_values];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn all_ways_give_the_cuts_of_the_naive_splitter(
        data in data(),
        log_size in 1u32..17,
        step in prop_oneof![1usize..300, 1usize..70_000],
        region in prop_oneof![1usize..300, 1usize..70_000],
        family in prop_oneof![
            Just(SplitterFamily::Fixed),
            Just(SplitterFamily::Buzhash),
            Just(SplitterFamily::RabinKarp)
        ],
    ) {
        let algorithm = algorithm(family, 1 << log_size);
        let expected = naive_lengths(algorithm, &data);
        prop_assert_eq!(lengths(algorithm, &data, step), &expected[..], "in steps of {}", step);
        prop_assert_eq!(stitched_lengths(algorithm, &data, region), &expected[..], "by regions of {}", region);
    }

    #[test]
    fn each_kernel_sees_the_same_lanes(data in data(), log_size in 4u32..14) {
        type Kernel = fn(&[u8], usize, u32) -> Option<u16>;
        fn check<H: RollingHash>(data: &[u8], mask: u32, count: usize, kernel: Kernel) {
            let lane = data.len().saturating_sub(WINDOW) / count / WINDOW * WINDOW;
            if lane > 0 {
                let block = &data[..WINDOW + count * lane];
                let expected = (0..count).fold(0, |bits, i| {
                    let lane = &block[i * lane..WINDOW + (i + 1) * lane];
                    bits | u16::from(lanes::find::<H>(lane, mask).is_some()) << i
                });
                // A kernel that this processor has no use for says nothing.
                assert_eq!(kernel(block, lane, mask).unwrap_or(expected), expected);
            }
        }
        fn check_chosen<H: RollingHash>(data: &[u8], mask: u32) {
            check::<H>(data, mask, H::lanes(), |block, lane, mask| Some(H::lanes_with_candidate(block, lane, mask)));
            check::<H>(data, mask, lanes::LANES, |block, lane, mask| {
                Some(lanes::interleaved_lanes::<H>(block, lane, mask))
            });
        }
        let mask = (1 << log_size) - 1;
        check_chosen::<buzhash::Buzhash>(&data, mask);
        check_chosen::<rabin_karp::RabinKarp>(&data, mask);
        #[cfg(target_arch = "x86_64")]
        {
            check::<buzhash::Buzhash>(&data, mask, avx512::LANES, avx512::lanes_with_candidate);
            check::<buzhash::Buzhash>(&data, mask, lanes::LANES, buzhash::x86::lanes_with_candidate);
        }
    }

    #[test]
    fn lanes_find_what_the_definition_finds(data in data(), log_size in 4u32..20) {
        fn check<H: RollingHash>(data: &[u8], mask: u32) {
            let hash_of = |window: &[u8]| H::of_window(window.try_into().unwrap());
            let first = (1..=data.len().saturating_sub(WINDOW))
                .find(|&i| hash_of(&data[i..i + WINDOW]).is_candidate(mask))
                .map(|i| i - 1);
            assert_eq!(lanes::find::<H>(data, mask), first);
        }
        let mask = (1 << log_size) - 1;
        check::<buzhash::Buzhash>(&data, mask);
        check::<rabin_karp::RabinKarp>(&data, mask);
    }
}
