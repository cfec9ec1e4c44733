//! Buzhash of sixteen lanes side by side, in AVX-512 registers.
//!
//! What costs most elsewhere is looking 16 bytes up in the table, one at a time. Here the table is kept in registers, as
//! four planes: the lowest bytes of all entries, the next ones, and so on. A permutation looks 64 bytes up in a plane at
//! once, which makes four steps of all lanes; what comes out of the four planes is woven into entries.
//!
//! `unsafe` stands for two things here: a function that is compiled for certain features of the processor is called
//! where those were detected just before, and vectors are loaded through pointers to slices of their size.

use super::WINDOW;
use super::buzhash::TABLE;
use super::lanes::window_at;
use std::arch::x86_64::*;
use std::{array, mem};

/// How many lanes run side by side.
pub(super) const LANES: usize = 16;
/// As many bytes of a lane as fit an entry of the transposed block.
const STEPS: usize = 4;

/// Whether this processor has what the function is compiled for.
#[inline]
pub(super) fn is_detected() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vbmi")
}

/// See `RollingHash::lanes_with_candidate`; `None` if the processor lacks a feature.
#[allow(unsafe_code)]
pub(super) fn lanes_with_candidate(bytes: &[u8], lane: usize, mask: u32) -> Option<u16> {
    // SAFETY: the function demands nothing but the features that are detected here.
    is_detected().then(|| unsafe { search(bytes, lane, mask) })
}

/// The bytes of all entries of the table, by their place in the entry.
static PLANES: [[u8; 256]; 4] = {
    let mut planes = [[0; 256]; 4];
    let mut at = 0;
    while at < 256 {
        let entry = TABLE[at].to_le_bytes();
        let mut place = 0;
        while place < 4 {
            planes[place][at] = entry[place];
            place += 1;
        }
        at += 1;
    }
    planes
};

/// The planes in registers, each in four quarters.
type Planes = [[__m512i; 4]; 4];

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn search(bytes: &[u8], lane: usize, mask: u32) -> u16 {
    let planes: Planes =
        array::from_fn(|place| array::from_fn(|quarter| load(window_at(&PLANES[place], quarter * 64))));
    let zero = _mm512_setzero_si512();
    let mask = _mm512_set1_epi32(mask.cast_signed());
    let mut window = [zero; WINDOW];
    let mut hashes = zero;
    // The smallest masked hash of a lane is zero if and only if the lane has a candidate.
    let largest = _mm512_set1_epi32(-1);
    let mut smallest = largest;
    for start in (0..=lane).step_by(WINDOW) {
        if start == WINDOW {
            // Until here the window was being filled; now come the positions in question.
            smallest = largest;
        }
        let rows: [_; LANES] = array::from_fn(|i| load(window_at(bytes, start + i * lane)));
        for (of_window, column) in window.as_chunks_mut::<STEPS>().0.iter_mut().zip(transposed(rows)) {
            for (entry, entering) in of_window.iter_mut().zip(look_up(column, &planes)) {
                let leaving = mem::replace(entry, entering);
                // All three, exclusive or.
                hashes = _mm512_ternarylogic_epi32::<0x96>(_mm512_rol_epi32::<1>(hashes), entering, leaving);
                smallest = _mm512_min_epu32(smallest, _mm512_and_si512(hashes, mask));
            }
        }
    }
    _mm512_cmpeq_epi32_mask(smallest, zero)
}

#[allow(unsafe_code)]
#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; WINDOW]) -> __m512i {
    // SAFETY: the array has as many bytes as the vector, and the load demands no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The entries of four bytes of every lane, as vectors of all lanes' first, second, third and fourth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up(column: __m512i, planes: &Planes) -> [__m512i; STEPS] {
    // In each quarter, first bytes before second ones, so that weaving leaves each lane in its place.
    let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let index = _mm512_shuffle_epi8(column, _mm512_broadcast_i32x4(order));
    // A permutation knows 128 bytes, by the lower seven bits of the index; the highest one chooses between two.
    let upper = _mm512_movepi8_mask(index);
    let [a, b, c, d]: [_; 4] = array::from_fn(|place| {
        let [q0, q1, q2, q3] = planes[place];
        let from_lower = _mm512_permutex2var_epi8(q0, index, q1);
        _mm512_mask_mov_epi8(from_lower, upper, _mm512_permutex2var_epi8(q2, index, q3))
    });
    let (ab_low, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab_low, cd_low),
        _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// From 64 bytes of each lane to vectors of all lanes' first four bytes, next four, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // First within quarters of vectors, four rows together …
    let mut quarters = [_mm512_setzero_si512(); LANES];
    for (rows, quarters) in rows.as_chunks::<4>().0.iter().zip(quarters.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = *rows;
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        *quarters = [
            _mm512_unpacklo_epi64(ab_low, cd_low),
            _mm512_unpackhi_epi64(ab_low, cd_low),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }
    // … then the quarters: every fourth vector has a column's four rows in each of them.
    let mut columns = [_mm512_setzero_si512(); LANES];
    for at in 0..4 {
        let (a, b, c, d) = (quarters[at], quarters[4 + at], quarters[8 + at], quarters[12 + at]);
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[at] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
        columns[4 + at] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
        columns[8 + at] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
        columns[12 + at] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
    }
    columns
}
