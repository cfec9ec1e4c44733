//! Streams that Kopia wrote, round trips, and hostile input.

use super::*;
use proptest::prelude::*;

/// The text that the recorded streams hold.
fn sample(lines: usize) -> Vec<u8> {
    (0..lines).flat_map(|i| format!("line {} of the sample\n", i * i % 977).into_bytes()).collect()
}

fn compressed(compressor: Compressor, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compressor.compress(data, &mut out).unwrap();
    out
}

/// One compressor for each kind of stream.
const KINDS: [Compressor; 6] = [
    Compressor::Gzip,
    Compressor::DeflateDefault,
    Compressor::Zstd,
    Compressor::S2Default,
    Compressor::S2Better,
    Compressor::Lz4,
];

#[test]
fn what_kopia_compressed_is_read_with_every_compressor() {
    let expected = sample(40);
    let mut seen = 0;
    for line in include_str!("../../tests/kopia/compressed.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let (name, stream) = line.split_once(' ').unwrap();
        let stream = hex::decode(stream).unwrap();
        let compressor = Compressor::from_name(name).unwrap();
        assert_eq!(compressor.decompress(&stream, expected.len()).unwrap(), expected, "{name}");
        assert_eq!(decompress_by_header(&stream, expected.len()).unwrap(), expected, "{name}");
        seen += 1;
    }
    assert_eq!(seen, Compressor::ALL.len());
}

#[test]
fn what_kopia_compressed_in_many_blocks_is_read() {
    let recorded: [(&str, &[u8]); 10] = [
        ("gzip-best-compression", include_bytes!("../../tests/kopia/large/gzip-best-compression.bin")),
        ("pgzip-best-compression", include_bytes!("../../tests/kopia/large/pgzip-best-compression.bin")),
        ("deflate-best-compression", include_bytes!("../../tests/kopia/large/deflate-best-compression.bin")),
        ("s2-default", include_bytes!("../../tests/kopia/large/s2-default.bin")),
        ("s2-better", include_bytes!("../../tests/kopia/large/s2-better.bin")),
        ("zstd", include_bytes!("../../tests/kopia/large/zstd.bin")),
        ("zstd-fastest", include_bytes!("../../tests/kopia/large/zstd-fastest.bin")),
        ("zstd-better-compression", include_bytes!("../../tests/kopia/large/zstd-better-compression.bin")),
        ("zstd-best-compression", include_bytes!("../../tests/kopia/large/zstd-best-compression.bin")),
        ("lz4", include_bytes!("../../tests/kopia/large/lz4.bin")),
    ];
    let expected = sample(60_000);
    for (name, stream) in recorded {
        let compressor = Compressor::from_name(name).unwrap();
        // Compared, not asserted equal: a difference would print megabytes.
        assert!(compressor.decompress(stream, expected.len()).unwrap() == expected, "{name}");
        assert!(compressor.decompress(stream, 1 << 30).unwrap() == expected, "{name}");
        let error = compressor.decompress(stream, expected.len() - 1).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{name}: {error}");
    }
}

#[test]
fn every_compressor_restores_what_it_compressed() {
    let mut noise = vec![0; 300_000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    for data in [Vec::new(), b"x".to_vec(), sample(30_000), vec![0; 5 << 20], noise] {
        for compressor in Compressor::ALL {
            let stream = compressed(compressor, &data);
            assert_eq!(stream[..HEADER_LEN], compressor.id().to_be_bytes());
            let restored = compressor.decompress(&stream, data.len()).unwrap();
            assert!(restored == data, "{} on {} bytes", compressor.name(), data.len());
        }
    }
}

#[test]
fn compressing_appends_to_what_is_there() {
    for compressor in Compressor::ALL {
        let mut out = b"before".to_vec();
        compressor.compress(&sample(100), &mut out).unwrap();
        assert_eq!(&out[..6], b"before");
        assert_eq!(compressor.decompress(&out[6..], 1 << 20).unwrap(), sample(100));
    }
}

#[test]
fn repetitive_data_shrinks_with_every_compressor() {
    let data = sample(1000);
    for compressor in Compressor::ALL {
        let len = compressed(compressor, &data).len();
        assert!(len < data.len() / 2, "{}: {len} of {}", compressor.name(), data.len());
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let data = vec![0; 64 << 20];
    for compressor in KINDS {
        let bomb = compressed(compressor, &data);
        for limit in [0, 1, 1000, data.len() - 1] {
            let error = compressor.decompress(&bomb, limit).unwrap_err();
            assert!(matches!(error, Error::TooLarge { .. }), "{}: {error}", compressor.name());
        }
    }
}

#[test]
fn a_stream_that_was_cut_off_anywhere_is_an_error() {
    let data = sample(200);
    for compressor in KINDS {
        let stream = compressed(compressor, &data);
        // An S2 stream has no end mark: behind a complete block it may end. Everything else must be noticed.
        for length in 0..stream.len() {
            match compressor.decompress(&stream[..length], 1 << 20) {
                Err(_) => {}
                Ok(part) => assert!(
                    part.is_empty() && length <= HEADER_LEN + 10,
                    "{} cut to {length} of {} bytes gave {} bytes",
                    compressor.name(),
                    stream.len(),
                    part.len()
                ),
            }
        }
    }
}

#[test]
fn the_header_must_be_the_one_that_is_expected() {
    let stream = compressed(Compressor::Zstd, b"data");
    let error = Compressor::Gzip.decompress(&stream, 100).unwrap_err();
    assert!(error.to_string().contains("0x1100 where 0x1000 (gzip)"), "{error}");
    assert!(matches!(decompress_by_header(&[0, 0, 0x99, 0], 100), Err(Error::UnknownAlgorithm { .. })));
    assert!(matches!(decompress_by_header(&[0, 0, 0x10], 100), Err(Error::Corrupt { .. })));
}

#[test]
fn names_and_ids_lead_back_to_their_compressor() {
    for compressor in Compressor::ALL {
        assert_eq!(Compressor::from_name(compressor.name()), Ok(compressor));
        assert_eq!(Compressor::from_id(compressor.id()), Ok(compressor));
    }
    assert!(Compressor::from_name("none").is_err());
}

#[test]
fn an_endless_row_of_skippable_chunks_is_no_danger_to_the_stack() {
    let mut stream = Compressor::S2Default.id().to_be_bytes().to_vec();
    stream.extend_from_slice(b"\xff\x06\x00\x00S2sTwO");
    stream.extend_from_slice(&[0xfe, 0, 0, 0].repeat(1_000_000));
    assert_eq!(Compressor::S2Default.decompress(&stream, 10).unwrap(), b"");
}

#[test]
fn a_zstd_frame_that_holds_more_than_it_declares_is_an_error() {
    // A frame header that declares no content, followed by a block of data.
    let mut stream = Compressor::Zstd.id().to_be_bytes().to_vec();
    stream.extend_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x03, 0xfc, 0x00, 0x00]);
    for limit in [0, 1, 3807, 1 << 20] {
        assert!(Compressor::Zstd.decompress(&stream, limit).is_err(), "limit {limit}");
    }
}

#[test]
fn concatenated_zstd_frames_are_read_to_the_end() {
    let mut stream = compressed(Compressor::Zstd, b"");
    stream.extend_from_slice(&compressed(Compressor::Zstd, &sample(10_000))[HEADER_LEN..]);
    assert!(Compressor::Zstd.decompress(&stream, 1 << 20).unwrap() == sample(10_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_streams_never_panic_and_stay_within_the_limit(
        stream in prop::collection::vec(any::<u8>(), 0..300),
        limit in 0usize..2000,
    ) {
        for compressor in KINDS {
            let mut input = compressor.id().to_be_bytes().to_vec();
            input.extend_from_slice(&stream);
            if let Ok(out) = compressor.decompress(&input, limit) {
                prop_assert!(out.len() <= limit);
            }
        }
    }

    #[test]
    fn damaged_streams_never_panic_and_stay_within_the_limit(
        lines in 0usize..300,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        limit in 0usize..10_000,
    ) {
        for compressor in KINDS {
            let mut stream = compressed(compressor, &sample(lines));
            for (at, value) in &damage {
                let at = at.index(stream.len());
                stream[at] = *value;
            }
            if let Ok(out) = decompress_by_header(&stream, limit) {
                prop_assert!(out.len() <= limit);
            }
        }
    }

    /// Tags of S2 blocks, well-formed or not, in chunks whose checksum does not matter here: the decoder of the
    /// library must reject or accept them without a panic.
    #[test]
    fn arbitrary_s2_blocks_never_panic(block in prop::collection::vec(any::<u8>(), 0..200), length in 0u8..200) {
        let mut chunk = vec![0; 4];
        chunk.push(length & 0x7f);
        chunk.extend_from_slice(&block);
        let mut stream = Compressor::S2Default.id().to_be_bytes().to_vec();
        stream.extend_from_slice(b"\xff\x06\x00\x00S2sTwO\x00");
        stream.extend_from_slice(&(chunk.len() as u32).to_le_bytes()[..3]);
        stream.extend_from_slice(&chunk);
        _ = Compressor::S2Default.decompress(&stream, 1000);
    }

    #[test]
    fn every_kind_of_stream_restores_arbitrary_data(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        for compressor in KINDS {
            prop_assert_eq!(&compressor.decompress(&compressed(compressor, &data), data.len()).unwrap(), &data);
        }
    }
}
