//! Trees of files: made from a seed, and compared exactly.

mod compare;
mod grow;
mod random;

pub use compare::{Compare, assert_same, differences};
pub use grow::{Grown, TreeSpec};
pub use random::Random;
