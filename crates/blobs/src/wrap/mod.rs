//! Wrappers: each adds one behaviour to any store.
//!
//! They nest in any order. The usual one, from the inside out: the store, [`Metered`], [`Pace`], [`Limit`],
//! [`Retry`], [`Cached`], [`Prefix`], [`ReadOnly`]; so a retry waits for its turn again, is paced and counted.

pub mod cached;
pub mod fault;
mod limit;
mod listing;
mod metered;
pub(crate) mod pace;
mod prefix;
mod read_only;
mod retry;

pub use cached::Cached;
pub use fault::Fault;
pub use limit::Limit;
pub use metered::{Metered, Metrics, OperationMetrics, Snapshot};
pub use pace::{Pace, Pacer, Rates};
pub use prefix::Prefix;
pub use read_only::ReadOnly;
pub use retry::{Retry, RetryPolicy};
