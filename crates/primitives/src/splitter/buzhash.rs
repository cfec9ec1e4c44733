//! Buzhash over 64 bytes: a cyclic polynomial on 32 bits.

use super::WINDOW;
#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::lanes::RollingHash;
#[cfg(target_arch = "x86_64")]
use super::lanes::{LANES, interleaved_lanes};

/// The hash of the last 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buzhash(u32);

impl RollingHash for Buzhash {
    fn of_window(window: &[u8; WINDOW]) -> Self {
        Buzhash(hash(window))
    }

    #[inline(always)]
    fn roll(self, leaving: u8, entering: u8) -> Self {
        // The leaving byte has been rotated 64 times, which is twice around and so not at all.
        Buzhash(self.0.rotate_left(1) ^ TABLE[usize::from(leaving)] ^ TABLE[usize::from(entering)])
    }

    #[inline(always)]
    fn masked(self, mask: u32) -> u32 {
        self.0 & mask
    }

    #[cfg(target_arch = "x86_64")]
    fn lanes() -> usize {
        if avx512::is_detected() { avx512::LANES } else { LANES }
    }

    #[cfg(target_arch = "x86_64")]
    fn lanes_with_candidate(bytes: &[u8], lane: usize, mask: u32) -> u16 {
        avx512::lanes_with_candidate(bytes, lane, mask)
            .or_else(|| x86::lanes_with_candidate(bytes, lane, mask))
            .unwrap_or_else(|| interleaved_lanes::<Buzhash>(bytes, lane, mask))
    }
}

fn hash(window: &[u8]) -> u32 {
    window.iter().fold(0, |hash: u32, &byte| hash.rotate_left(1) ^ TABLE[usize::from(byte)])
}

/// All lanes in one AVX2 register.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
pub(super) mod x86 {
    use super::super::lanes::{LANES, window_at};
    use super::{TABLE, WINDOW};
    use std::arch::x86_64::{
        _mm256_and_si256, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_min_epu32, _mm256_movemask_ps,
        _mm256_or_si256, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_slli_epi32,
        _mm256_srli_epi32, _mm256_xor_si256,
    };
    use std::{array, mem};

    /// See `RollingHash::lanes_with_candidate`; `None` if the processor has no AVX2.
    pub(in super::super) fn lanes_with_candidate(bytes: &[u8], lane: usize, mask: u32) -> Option<u16> {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return None;
        }
        // SAFETY: the function demands nothing but AVX2, which was detected just now; it is safe code otherwise.
        Some(unsafe { lanes_with_candidate_avx2(bytes, lane, mask) })
    }

    /// Table entries are looked up once and used twice: when their byte enters the window and, 64 steps later, when
    /// it leaves. Plain loads do this faster than AVX2's gather instruction.
    #[target_feature(enable = "avx2")]
    fn lanes_with_candidate_avx2(bytes: &[u8], lane: usize, mask: u32) -> u16 {
        let zero = _mm256_setzero_si256();
        let mask = _mm256_set1_epi32(mask.cast_signed());
        let mut window = [zero; WINDOW];
        let mut hashes = zero;
        // The smallest masked hash of a lane is zero if and only if the lane has a candidate.
        let largest = _mm256_set1_epi32(-1);
        let mut smallest = largest;
        for start in (0..=lane).step_by(WINDOW) {
            if start == WINDOW {
                // Until here the window was being filled; now come the positions in question.
                smallest = largest;
            }
            let rows: [_; LANES] = array::from_fn(|i| window_at(bytes, start + i * lane));
            for (step, entry) in window.iter_mut().enumerate() {
                let of = |i: usize| TABLE[usize::from(rows[i][step])].cast_signed();
                let entering = _mm256_setr_epi32(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7));
                let leaving = mem::replace(entry, entering);
                let rotated = _mm256_or_si256(_mm256_slli_epi32(hashes, 1), _mm256_srli_epi32(hashes, 31));
                hashes = _mm256_xor_si256(rotated, _mm256_xor_si256(entering, leaving));
                smallest = _mm256_min_epu32(smallest, _mm256_and_si256(hashes, mask));
            }
        }
        let with_candidate = _mm256_cmpeq_epi32(smallest, zero);
        // One bit per lane, of which there are eight.
        _mm256_movemask_ps(_mm256_castsi256_ps(with_candidate)) as u16
    }
}

/// One random number per byte value, fixed by the format.
#[rustfmt::skip]
pub(super) static TABLE: [u32; 256] = [
    0x07fc_fd52, 0x5f3f_164f, 0x6695_721d, 0x7b4d_7c03, 0x49c6_e2d1, 0x0d1d_68d8, 0x7916_001e, 0x22c4_d294,
    0x3929_07a0, 0x189d_eb99, 0xf387_5d04, 0x95e9_4627, 0xba51_7936, 0x83c4_71d4, 0x7cb3_ad0b, 0xa426_55d9,
    0x7c4e_0b68, 0xd449_1d1b, 0x2563_2186, 0xa9d7_8d73, 0x169c_1121, 0xbb15_8644, 0xb68e_6a3f, 0x7598_05f5,
    0x2cdf_5b8a, 0x57d2_9245, 0xc5d6_d268, 0x6b83_d0e2, 0x7674_cb74, 0xb068_d9db, 0xbb94_57d8, 0xa15d_523b,
    0x7942_09ff, 0x9da1_d7eb, 0x5a25_e0cb, 0xf840_ec4b, 0x36d4_ff9b, 0xf4a5_ee3b, 0x5ad1_45f4, 0xf674_0304,
    0x3f71_f8cb, 0x9101_8d7c, 0xfcca_e224, 0xb186_b51f, 0x7d9e_8fbc, 0x93f9_3f33, 0xf63a_5b6f, 0x1947_6c36,
    0xbc89_7d06, 0x1698_73f5, 0x724c_7af1, 0x581e_eb39, 0x2257_bb7d, 0x6f26_9a28, 0xbe8e_9981, 0x7039_374b,
    0x2541_6fed, 0xded7_e411, 0x6678_e7aa, 0x244f_cd36, 0x56aa_6b86, 0xde45_61ad, 0x3e99_b0a8, 0xbed8_0a3a,
    0xe583_48b0, 0xaf63_e58d, 0x406a_ec9d, 0xc233_f007, 0xa5ea_d0bd, 0x0501_43a6, 0x738b_6829, 0x3699_caf3,
    0x967c_d710, 0x06f6_65a6, 0x25fd_3d7f, 0x0fd6_e479, 0x26fb_f29b, 0x16de_4c35, 0x2bf3_394b, 0x4af8_64ba,
    0x1cb9_e6c6, 0x4143_9089, 0x69a3_9144, 0xc34f_182d, 0x4216_57ff, 0xf9fc_6568, 0x8b02_c917, 0x6c9c_64b7,
    0x83d1_7909, 0xea3d_4ca5, 0xaf63_5d47, 0x7fc7_8769, 0xbe14_186f, 0x3539_b1ea, 0xe917_4548, 0xc051_e18a,
    0x07b7_3658, 0x29ec_300c, 0xa250_bf34, 0xa7ed_5d97, 0xfe3d_ea79, 0xb8b3_52f7, 0xc9b3_44e9, 0x8e5f_0475,
    0x1941_e52a, 0x2694_763d, 0x6b40_eabc, 0x8485_d68b, 0x336e_acca, 0x4399_a363, 0x6714_9b9c, 0xae10_a901,
    0x5a5f_fefb, 0x563b_26de, 0x6f00_f02b, 0x9f06_397d, 0x5458_36c4, 0x31d6_416b, 0x12f4_128d, 0x752f_33ff,
    0x4a30_5605, 0x0c8d_c214, 0x7252_1a90, 0x8eb3_e4a1, 0x83ef_c6c6, 0x090e_c04f, 0xc154_0864, 0xec2c_8aaa,
    0x70ab_53ba, 0x38d3_b494, 0x878d_4063, 0xa317_ae3f, 0x3cb6_2f07, 0xf360_412c, 0x4ffb_f3a9, 0x22d5_54b4,
    0x3f19_0476, 0x0796_a710, 0xf5c3_53cf, 0x04f5_9bb7, 0x2d23_0176, 0xe2d6_a9ce, 0x3f1d_7427, 0xafd9_15bb,
    0xb01a_a47d, 0xcde2_c269, 0x7417_bf38, 0x1e09_4f9a, 0x55ec_e0ea, 0xcb94_539b, 0x13d3_46b5, 0x54e0_c0c1,
    0x6db3_0e37, 0xdc02_b390, 0xa6e2_22f5, 0xe2f8_c1fe, 0x2e16_6bdf, 0x6758_8a74, 0x2189_8f34, 0x4c33_0f1d,
    0x19af_53ba, 0x7065_8b94, 0x133c_9673, 0x4efe_eadd, 0x0f21_2551, 0x070f_0914, 0x6f24_1c57, 0xf13e_41b7,
    0x3be7_0cb0, 0xf4b6_f47f, 0x20f3_1127, 0x6551_cb89, 0x289c_bd2c, 0x8946_f23d, 0x40a7_9c3b, 0x03c6_d982,
    0x0365_790c, 0x0cf5_2517, 0x0bb1_31e8, 0x3da5_475c, 0x139e_fcca, 0xbcd4_4eb4, 0xa54a_f747, 0xb73c_32ed,
    0x9f6c_47ac, 0xe8ba_8f22, 0x5404_3a66, 0x3b0a_7f20, 0xb492_6431, 0xe17c_02d5, 0x8f0d_2558, 0x014f_bff2,
    0x7f80_3594, 0x79b7_6fbe, 0x33fe_2656, 0x792c_8ee8, 0x6b41_292d, 0xfdff_9c32, 0x8209_3298, 0x5948_3870,
    0xb2d5_a113, 0x2dd9_6e5a, 0x5b8e_56a9, 0xebd9_dda9, 0x04f9_ce92, 0xcb44_0950, 0xa67e_52b1, 0x49f6_d261,
    0x9241_7fc3, 0x1c3b_6bd9, 0xb027_b7e0, 0x1f76_5a41, 0x44c9_ab40, 0x45d9_9121, 0xfd7a_84af, 0x99b7_5788,
    0xe3ab_ff4a, 0xa88a_a67f, 0x736e_41cc, 0x9cbc_be5e, 0x7b3c_cebc, 0xe1b7_fa93, 0x315a_e6af, 0x9cce_d2e2,
    0x19ea_0f2f, 0xa977_0722, 0x84a6_bfdc, 0x88f0_3f07, 0xa44a_03a4, 0x27a6_b885, 0xb580_c8ba, 0x0181_53da,
    0xb648_e604, 0x5118_0278, 0x893a_310f, 0x728f_5f4c, 0x37f5_198b, 0x3cc0_ea9b, 0xe39d_02db, 0x1388_3142,
    0xca59_9392, 0xc12d_154e, 0xc176_163d, 0x5c92_e2b8, 0xf9f9_5ede, 0xb802_bdfc, 0x8a92_8585, 0xdca6_e10b,
    0x8879_53e8, 0x48b9_e962, 0xe533_e9a3, 0x5e0c_e6e5, 0x1dba_77ae, 0xc821_4b8a, 0x53b4_28d7, 0x4cf2_0a65,
];

#[cfg(test)]
mod tests {
    #[test]
    fn strings_hash_to_the_values_of_the_library_that_kopia_uses() {
        assert_eq!(super::hash(b"a"), 0x29ec_300c);
        assert_eq!(super::hash(b"abcdefg"), 0x41d5_a953);
        assert_eq!(super::hash(b"abcdefghij"), 0x4dc2_d8f4);
        assert_eq!(super::hash(b"Discard medicine more than two years old."), 0x9906_5f04);
    }
}
