//! BLAKE2b in AVX-512 registers: eight messages side by side, four, or one alone.
//!
//! Side by side, a vector holds the same word of every message, so that the function is written as for one message
//! and words of messages are transposed on their way in. Native rotations and 32 registers, enough for the
//! state and a block, make it faster than AVX2 even where a processor has to halve the wide vectors.
//!
//! `unsafe` stands for two things here. Functions that are compiled for certain features of the processor are
//! called where those are not known at compile time: only through a [`Kernel`], which exists only if all of them were
//! detected. And vectors are loaded and stored through pointers: always those of arrays of the vector's size, or of a
//! slice with a mask of its length.

use super::wide::{BLOCK, IV, Lane};
use std::arch::x86_64::*;
use std::array;

/// Proof that this processor has what the functions of this module are compiled for.
#[derive(Clone, Copy)]
pub(super) struct Kernel(());

impl Kernel {
    /// How many messages run side by side at most.
    pub(super) const LANES: usize = 8;

    /// `None` if the processor lacks a feature.
    pub(super) fn detect() -> Option<Self> {
        let detected = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vl");
        detected.then_some(Kernel(()))
    }

    /// Takes `blocks` of each of up to [`Kernel::LANES`] messages into its state; the shortest has that many left.
    #[allow(unsafe_code)]
    pub(super) fn run(self, lanes: &mut [Lane<'_>], blocks: usize) {
        debug_assert!(lanes.len() <= Self::LANES);
        // SAFETY: the functions demand nothing but the features that were detected when `self` was made.
        unsafe {
            match lanes {
                [] => {}
                [lane] => alone::run(lane, blocks),
                [_, _] | [_, _, _] | [_, _, _, _] => four::run(lanes, blocks),
                _ => eight::run(lanes, blocks),
            }
        }
    }
}

/// In which order each round takes the words of a block.
#[rustfmt::skip]
const SIGMA: [[u8; 16]; 12] = [
    [ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15],
    [14, 10,  4,  8,  9, 15, 13,  6,  1, 12,  0,  2, 11,  7,  5,  3],
    [11,  8, 12,  0,  5,  2, 15, 13, 10, 14,  3,  6,  7,  1,  9,  4],
    [ 7,  9,  3,  1, 13, 12, 11, 14,  2,  6,  5, 10,  4,  0, 15,  8],
    [ 9,  0,  5,  7,  2,  4, 10, 15, 14,  1, 11, 12,  6,  8,  3, 13],
    [ 2, 12,  6, 10,  0, 11,  8,  3,  4, 13,  7,  5, 15, 14,  1,  9],
    [12,  5,  1, 15, 14, 13,  4, 10,  0,  7,  6,  3,  9,  2,  8, 11],
    [13, 11,  7, 14, 12,  1,  3,  9,  5,  0, 15,  4,  8,  6,  2, 10],
    [ 6, 15, 14,  9, 11,  3,  0,  8, 12,  2, 13,  7,  1,  4, 10,  5],
    [10,  2,  8,  4,  7,  6,  1,  5, 15, 11,  9, 14,  3, 12, 13,  0],
    [ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15],
    [14, 10,  4,  8,  9, 15, 13,  6,  1, 12,  0,  2, 11,  7,  5,  3],
];

/// The function for several messages, whose vectors are `$V` with one 64-bit lane for each of `$LANES`.
macro_rules! side_by_side {
    ($V:ty, $LANES:literal, $add:ident, $xor:ident, $ror:ident, $set1:ident, $load:ident, $store:ident) => {
        /// See [`Kernel::run`]. Lanes without a message do again what the last one does.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        pub(super) fn run(lanes: &mut [Lane<'_>], blocks: usize) {
            let last_lane = lanes.len() - 1;
            let lane = |i: usize| &lanes[i.min(last_lane)];
            let whole: [&[[u8; BLOCK]]; $LANES] = array::from_fn(|i| lane(i).rest.as_chunks().0);
            // Only messages that end here may lack a whole block.
            let padded: [[u8; BLOCK]; $LANES] = array::from_fn(|i| match whole[i].get(blocks - 1) {
                Some(_) => [0; BLOCK],
                None => padded(lane(i).rest.as_chunks::<BLOCK>().1),
            });
            let last: [_; $LANES] = array::from_fn(|i| whole[i].get(blocks - 1).unwrap_or(&padded[i]));
            let mut words = transposed_state(array::from_fn(|i| &lane(i).words));
            let mut counts = load(&array::from_fn(|i| lane(i).count));
            let mut flags = $set1(0);
            for n in 0..blocks {
                let block: [&[u8; BLOCK]; $LANES] = if n + 1 < blocks {
                    counts = $add(counts, $set1(BLOCK as i64));
                    array::from_fn(|i| &whole[i][n])
                } else {
                    counts = load(&array::from_fn(|i| lane(i).count_after(blocks)));
                    flags = load(&array::from_fn(|i| if lane(i).ends_within(blocks) { u64::MAX } else { 0 }));
                    last
                };
                compress(&mut words, &transposed_message(block), counts, flags);
            }
            for (n, words) in words.as_chunks().0.iter().enumerate() {
                for (lane, vector) in lanes.iter_mut().zip(transposed(*words)) {
                    store(vector, &mut lane.words.as_chunks_mut().0[n]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn compress(words: &mut [$V; 8], message: &[$V; 16], counts: $V, flags: $V) {
            let iv = |i: usize| $set1(IV[i].cast_signed());
            let mut v = array::from_fn(|i| if i < 8 { words[i] } else { iv(i - 8) });
            v[12] = $xor(v[12], counts);
            v[14] = $xor(v[14], flags);
            round::<0>(&mut v, message);
            round::<1>(&mut v, message);
            round::<2>(&mut v, message);
            round::<3>(&mut v, message);
            round::<4>(&mut v, message);
            round::<5>(&mut v, message);
            round::<6>(&mut v, message);
            round::<7>(&mut v, message);
            round::<8>(&mut v, message);
            round::<9>(&mut v, message);
            round::<10>(&mut v, message);
            round::<11>(&mut v, message);
            for i in 0..8 {
                words[i] = $xor(words[i], $xor(v[i], v[i + 8]));
            }
        }

        /// Constant numbers let the compiler keep all vectors in registers.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn round<const R: usize>(v: &mut [$V; 16], message: &[$V; 16]) {
            let m = |i: usize| message[usize::from(const { SIGMA[R] }[i])];
            mix(v, 0, [m(0), m(2), m(4), m(6)], [m(1), m(3), m(5), m(7)]);
            mix(v, 1, [m(8), m(10), m(12), m(14)], [m(9), m(11), m(13), m(15)]);
        }

        /// Half a round: four independent mixes, step by step. The first half takes columns of the four by four words
        /// (`diagonal` is 0), the second one diagonals (1).
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn mix(v: &mut [$V; 16], diagonal: usize, x: [$V; 4], y: [$V; 4]) {
            let b = |i: usize| 4 + (i + diagonal) % 4;
            let c = |i: usize| 8 + (i + 2 * diagonal) % 4;
            let d = |i: usize| 12 + (i + 3 * diagonal) % 4;
            for i in 0..4 {
                v[i] = $add($add(v[i], x[i]), v[b(i)]);
            }
            for i in 0..4 {
                v[d(i)] = $ror::<32>($xor(v[d(i)], v[i]));
            }
            for i in 0..4 {
                v[c(i)] = $add(v[c(i)], v[d(i)]);
            }
            for i in 0..4 {
                v[b(i)] = $ror::<24>($xor(v[b(i)], v[c(i)]));
            }
            for i in 0..4 {
                v[i] = $add($add(v[i], y[i]), v[b(i)]);
            }
            for i in 0..4 {
                v[d(i)] = $ror::<16>($xor(v[d(i)], v[i]));
            }
            for i in 0..4 {
                v[c(i)] = $add(v[c(i)], v[d(i)]);
            }
            for i in 0..4 {
                v[b(i)] = $ror::<63>($xor(v[b(i)], v[c(i)]));
            }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        #[allow(unsafe_code)]
        fn load(words: &[u64; $LANES]) -> $V {
            // SAFETY: the array is as large as the vector, and need not be aligned.
            unsafe { $load(words.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        #[allow(unsafe_code)]
        fn load_bytes(bytes: &[u8; 8 * $LANES]) -> $V {
            // SAFETY: the array is as large as the vector, and need not be aligned.
            unsafe { $load(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        #[allow(unsafe_code)]
        fn store(vector: $V, words: &mut [u64; $LANES]) {
            // SAFETY: the array is as large as the vector, and need not be aligned.
            unsafe { $store(words.as_mut_ptr().cast(), vector) }
        }

        /// Piece `number` of an array that consists of pieces of the size of a vector.
        #[inline]
        fn piece<T, const PIECE: usize>(array: &[T], number: usize) -> &[T; PIECE] {
            &array.as_chunks().0[number]
        }

        /// All words of a block of each message.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn transposed_message(blocks: [&[u8; BLOCK]; $LANES]) -> [$V; 16] {
            let mut words = [$set1(0); 16];
            for (n, words) in words.as_chunks_mut().0.iter_mut().enumerate() {
                *words = transposed(array::from_fn(|i| load_bytes(piece(blocks[i], n))));
            }
            words
        }

        /// The state of each message, one vector per word.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn transposed_state(states: [&[u64; 8]; $LANES]) -> [$V; 8] {
            let mut words = [$set1(0); 8];
            for (n, words) in words.as_chunks_mut().0.iter_mut().enumerate() {
                *words = transposed(array::from_fn(|i| load(piece(states[i], n))));
            }
            words
        }
    };
}

/// The last bytes of a message, which are less than a block, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn padded(end: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let (low, high) = end.split_at(end.len().min(BLOCK / 2));
    for (half, end) in block.as_chunks_mut().0.iter_mut().zip([low, high]) {
        store_bytes(load_part(end), half);
    }
    block
}

/// A vector from up to 64 bytes, and zeros. Copying so few bytes in other ways takes longer than hashing them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[allow(unsafe_code)]
fn load_part(bytes: &[u8]) -> __m512i {
    let mask = u64::MAX.unbounded_shr(64_u32.saturating_sub(bytes.len() as u32));
    // SAFETY: the mask leaves only bytes of the slice; others are not touched.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[allow(unsafe_code)]
fn store_bytes(vector: __m512i, bytes: &mut [u8; 64]) {
    // SAFETY: the array is as large as the vector, and need not be aligned.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Eight messages in vectors of 512 bits.
mod eight {
    use super::*;

    side_by_side! {
        __m512i, 8, _mm512_add_epi64, _mm512_xor_si512, _mm512_ror_epi64, _mm512_set1_epi64, _mm512_loadu_si512,
        _mm512_storeu_si512
    }

    /// Columns become rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn transposed(rows: [__m512i; 8]) -> [__m512i; 8] {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
        let [w0, w2, w4, w6] = quarters(
            _mm512_unpacklo_epi64(r0, r1),
            _mm512_unpacklo_epi64(r2, r3),
            _mm512_unpacklo_epi64(r4, r5),
            _mm512_unpacklo_epi64(r6, r7),
        );
        let [w1, w3, w5, w7] = quarters(
            _mm512_unpackhi_epi64(r0, r1),
            _mm512_unpackhi_epi64(r2, r3),
            _mm512_unpackhi_epi64(r4, r5),
            _mm512_unpackhi_epi64(r6, r7),
        );
        [w0, w1, w2, w3, w4, w5, w6, w7]
    }

    /// The same for four by four quarters of vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let (ab_even, ab_odd) = (_mm512_shuffle_i64x2::<EVEN>(a, b), _mm512_shuffle_i64x2::<ODD>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i64x2::<EVEN>(c, d), _mm512_shuffle_i64x2::<ODD>(c, d));
        [
            _mm512_shuffle_i64x2::<EVEN>(ab_even, cd_even),
            _mm512_shuffle_i64x2::<EVEN>(ab_odd, cd_odd),
            _mm512_shuffle_i64x2::<ODD>(ab_even, cd_even),
            _mm512_shuffle_i64x2::<ODD>(ab_odd, cd_odd),
        ]
    }
}

/// Four messages in vectors of 256 bits: faster than eight of which half are idle.
mod four {
    use super::*;

    side_by_side! {
        __m256i, 4, _mm256_add_epi64, _mm256_xor_si256, _mm256_ror_epi64, _mm256_set1_epi64x, _mm256_loadu_si256,
        _mm256_storeu_si256
    }

    /// Columns become rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn transposed(rows: [__m256i; 4]) -> [__m256i; 4] {
        let [r0, r1, r2, r3] = rows;
        let (even01, odd01) = (_mm256_unpacklo_epi64(r0, r1), _mm256_unpackhi_epi64(r0, r1));
        let (even23, odd23) = (_mm256_unpacklo_epi64(r2, r3), _mm256_unpackhi_epi64(r2, r3));
        [
            _mm256_permute2x128_si256::<0x20>(even01, even23),
            _mm256_permute2x128_si256::<0x20>(odd01, odd23),
            _mm256_permute2x128_si256::<0x31>(even01, even23),
            _mm256_permute2x128_si256::<0x31>(odd01, odd23),
        ]
    }
}

/// One message: a vector holds a row of the four by four words, and a half round mixes all columns at once.
mod alone {
    use super::*;

    /// For each round, which words of a block its four steps take: those of the columns and those of the diagonals,
    /// the latter as they lie when the second row keeps its place.
    const WORDS: [[[u64; 4]; 4]; 12] = {
        let places = [[0, 2, 4, 6], [1, 3, 5, 7], [14, 8, 10, 12], [15, 9, 11, 13]];
        let mut words = [[[0; 4]; 4]; 12];
        let mut n = 0;
        while n < 12 * 4 * 4 {
            let (round, step, column) = (n / 16, n / 4 % 4, n % 4);
            words[round][step][column] = SIGMA[round][places[step][column]] as u64;
            n += 1;
        }
        words
    };

    /// See [`Kernel::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn run(lane: &mut Lane<'_>, blocks: usize) {
        let (iv_low, iv_high) = (load(&IV, 0), load(&IV, 1));
        let (mut low, mut high) = (load(&lane.words, 0), load(&lane.words, 1));
        for n in 1..=blocks {
            let block = &lane.rest[(n - 1) * BLOCK..lane.rest.len().min(n * BLOCK)];
            let (first, second) = block.split_at(block.len().min(BLOCK / 2));
            let message = (load_part(first), load_part(second));
            let flag = if lane.ends_within(n) { -1 } else { 0 };
            let mut rows = Rows {
                a: low,
                b: high,
                c: iv_low,
                d: _mm256_xor_si256(
                    iv_high,
                    _mm256_set_epi64x(0, flag, 0, lane.count_after(n).cast_signed()),
                ),
            };
            for words in &WORDS {
                let step = |i: usize| {
                    let places = _mm512_castsi256_si512(load(words.as_flattened(), i));
                    _mm512_castsi512_si256(_mm512_permutex2var_epi64(message.0, places, message.1))
                };
                rows.mix(step(0), step(1));
                // The second row is the one that the next step waits for: it stays, and the others move around it.
                rows.a = _mm256_permute4x64_epi64::<0b10_01_00_11>(rows.a);
                rows.c = _mm256_permute4x64_epi64::<0b00_11_10_01>(rows.c);
                rows.d = _mm256_permute4x64_epi64::<0b01_00_11_10>(rows.d);
                rows.mix(step(2), step(3));
                rows.a = _mm256_permute4x64_epi64::<0b00_11_10_01>(rows.a);
                rows.c = _mm256_permute4x64_epi64::<0b10_01_00_11>(rows.c);
                rows.d = _mm256_permute4x64_epi64::<0b01_00_11_10>(rows.d);
            }
            low = _mm256_xor_si256(low, _mm256_xor_si256(rows.a, rows.c));
            high = _mm256_xor_si256(high, _mm256_xor_si256(rows.b, rows.d));
        }
        store(low, &mut lane.words, 0);
        store(high, &mut lane.words, 1);
    }

    struct Rows {
        a: __m256i,
        b: __m256i,
        c: __m256i,
        d: __m256i,
    }

    impl Rows {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn mix(&mut self, x: __m256i, y: __m256i) {
            self.a = _mm256_add_epi64(_mm256_add_epi64(self.a, x), self.b);
            self.d = _mm256_ror_epi64::<32>(_mm256_xor_si256(self.d, self.a));
            self.c = _mm256_add_epi64(self.c, self.d);
            self.b = _mm256_ror_epi64::<24>(_mm256_xor_si256(self.b, self.c));
            self.a = _mm256_add_epi64(_mm256_add_epi64(self.a, y), self.b);
            self.d = _mm256_ror_epi64::<16>(_mm256_xor_si256(self.d, self.a));
            self.c = _mm256_add_epi64(self.c, self.d);
            self.b = _mm256_ror_epi64::<63>(_mm256_xor_si256(self.b, self.c));
        }
    }

    /// Vector `number` of an array of words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[allow(unsafe_code)]
    fn load(words: &[u64], number: usize) -> __m256i {
        let words: &[u64; 4] = &words.as_chunks().0[number];
        // SAFETY: the array is as large as the vector, and need not be aligned.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[allow(unsafe_code)]
    fn store(vector: __m256i, words: &mut [u64; 8], number: usize) {
        let words: &mut [u64; 4] = &mut words.as_chunks_mut().0[number];
        // SAFETY: the array is as large as the vector, and need not be aligned.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) }
    }
}
