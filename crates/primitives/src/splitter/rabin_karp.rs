//! Rabin-Karp over 64 bytes: the window as a polynomial over GF(2), modulo an irreducible one of degree 53.

use super::WINDOW;
use super::lanes::RollingHash;

/// The modulus, fixed by the format.
const MODULUS: u64 = 0x2e_3e3e_4a30_5605;
const DEGREE: u32 = 63 - MODULUS.leading_zeros();

/// The hash of the last 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RabinKarp(u64);

impl RollingHash for RabinKarp {
    fn of_window(window: &[u8; WINDOW]) -> Self {
        RabinKarp(hash(window))
    }

    #[inline(always)]
    fn roll(self, leaving: u8, entering: u8) -> Self {
        RabinKarp(append(self.0 ^ LEAVING[usize::from(leaving)], entering))
    }

    #[inline(always)]
    fn masked(self, mask: u32) -> u32 {
        self.0 as u32 & mask
    }
}

fn hash(window: &[u8]) -> u64 {
    window.iter().fold(0, |hash, &byte| append(hash, byte))
}

/// `hash · x⁸ + byte`, reduced.
#[inline(always)]
fn append(hash: u64, byte: u8) -> u64 {
    ((hash << 8) | u64::from(byte)) ^ OVERFLOW[(hash >> (DEGREE - 8)) as usize & 0xff]
}

/// For each value of the eight highest bits of a hash: what multiplying by x⁸ must be corrected by.
static OVERFLOW: [u64; 256] = {
    let mut table = [0; 256];
    let mut high = 0;
    while high < 256 {
        let shifted = (high as u64) << DEGREE;
        table[high] = shifted ^ reduce(shifted);
        high += 1;
    }
    table
};

/// What the oldest byte of a window contributes to its hash.
static LEAVING: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut hash = byte as u64;
        let mut age = 1;
        while age < WINDOW {
            hash = reduce(hash << 8);
            age += 1;
        }
        table[byte] = hash;
        byte += 1;
    }
    table
};

const fn reduce(mut polynomial: u64) -> u64 {
    let mut bit = 63;
    while bit >= DEGREE {
        if polynomial >> bit & 1 == 1 {
            polynomial ^= MODULUS << (bit - DEGREE);
        }
        bit -= 1;
    }
    polynomial
}

#[cfg(test)]
mod tests {
    #[test]
    fn strings_hash_to_the_values_of_the_library_that_kopia_uses() {
        assert_eq!(super::hash(b"a"), 0x61);
        assert_eq!(super::hash(b"abcdefg"), 0x0013_2021_ba35_9c68);
        assert_eq!(super::hash(b"abcdefghij"), 0x000e_9781_880d_dab2);
        assert_eq!(super::hash(b"Discard medicine more than two years old."), 0x001b_cc43_5d5a_6760);
    }
}
