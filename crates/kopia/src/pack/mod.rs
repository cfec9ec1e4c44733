//! Packs: blobs that hold many sealed contents, and at their end what is needed to find them again.

mod builder;
mod postamble;
mod recover;

pub use builder::{PackBuilder, PackKind, PackRecord};
pub use postamble::Postamble;
pub use recover::LocalIndex;
