//! Time and chance as parameters, so that the same code runs under simulation.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where the time comes from.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// Waits; under simulation time passes without it.
    fn sleep(&self, time: Duration) -> BoxFuture<'_, ()> {
        tokio::time::sleep(time).boxed()
    }
}

/// Where random bytes come from. Everything drawn here (pack names, session ids, nonces, salts) must never repeat.
pub trait Random: fmt::Debug + Send + Sync {
    /// Fills `out` with unpredictable bytes.
    fn fill(&self, out: &mut [u8]) -> crate::Result<()>;
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The operating system's generator.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, out: &mut [u8]) -> crate::Result<()> {
        getrandom::fill(out).map_err(|source| crate::Error::Random { reason: source.to_string() })
    }
}

/// What the repository takes from the world besides its storage.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The clock for timestamps of contents, sessions and manifests.
    pub clock: Arc<dyn Clock>,
    /// The generator for names, keys and nonces.
    pub random: Arc<dyn Random>,
}

impl Default for Environment {
    fn default() -> Self {
        Environment { clock: Arc::new(SystemClock), random: Arc::new(SystemRandom) }
    }
}

impl Environment {
    /// An array of random bytes.
    pub fn random_array<const N: usize>(&self) -> crate::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes)?;
        Ok(bytes)
    }
}

/// The kernels below draw their nonces from here too.
impl lifeboat_primitives::random::Random for Environment {
    fn fill(&self, out: &mut [u8]) -> lifeboat_primitives::Result<()> {
        self.random.fill(out).map_err(|error| lifeboat_primitives::Error::Random(error.to_string()))
    }
}
