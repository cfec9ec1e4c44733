//! The file system that is backed up: what is in a directory, what each entry is, and what the policies leave out.

mod dir;
mod extras;
mod ignore;
mod names;
mod wildcard;

pub(crate) use dir::{SourceDir, changed};
pub(crate) use extras::{extras_of, extras_of_open, holes_of, is_sparse};
pub(crate) use ignore::{Ignore, is_cache};
pub(crate) use names::{Kind, Names};
