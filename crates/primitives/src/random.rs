//! Random bytes as a parameter, so that the same code runs with the system's generator and under simulation.

use crate::{Error, Result};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A source of random bytes for nonces, keys and names.
pub trait Random: Send + Sync + fmt::Debug {
    /// Fills `out` completely, or fails without promising anything about its content.
    fn fill(&self, out: &mut [u8]) -> Result<()>;
}

/// The operating system's generator: the only source for real repositories.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        fill(out)
    }
}

/// Fills `out` from the operating system's generator.
pub fn fill(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out).map_err(|error| Error::Random(error.to_string()))
}

/// A reproducible stream of bytes for tests and simulations. Whoever knows the seed knows every byte: never use
/// it for a repository that must stay secret.
#[derive(Debug)]
pub struct SeededRandom(Mutex<blake3::OutputReader>);

impl SeededRandom {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        SeededRandom(Mutex::new(blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof()))
    }
}

impl Random for SeededRandom {
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        // A poisoned stream is still a stream: filling cannot leave it half-updated.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(out);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_stream_each_time_and_another_seed_another() {
        let take = |seed| {
            let random = SeededRandom::new(seed);
            let (mut first, mut second) = ([0; 16], [0; 16]);
            random.fill(&mut first).unwrap();
            random.fill(&mut second).unwrap();
            (first, second)
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        assert_ne!(take(1).0, take(1).1);
    }

    #[test]
    fn the_system_generator_fills_the_whole_buffer() {
        let mut bytes = [0; 64];
        OsRandom.fill(&mut bytes).unwrap();
        // A run of 16 zeros has a chance of 2^-128.
        assert!(bytes.chunks(16).all(|chunk| chunk != [0; 16]));
    }
}
