//! The file system that is backed up: what is in a directory, what each entry is, and what the policies leave out.

mod dir;
mod extras;
mod gone;
mod ignore;
mod names;
mod wildcard;

pub(crate) use dir::{SourceDir, changed};
pub(crate) use extras::{extras_of, extras_of_open, holes_of, is_sparse};
pub(crate) use ignore::is_cache;
pub use ignore::{Ignore, cache_tag, is_cache_tag, rules_in};
pub(crate) use names::{Kind, Names, Spelling};
