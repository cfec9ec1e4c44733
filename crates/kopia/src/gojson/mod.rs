//! JSON exactly as Go's standard encoder writes it, and as forgiving as Go's decoder reads it.
//!
//! Two clients deduplicate an unchanged directory only if both write the same bytes for it, so the escapes, the
//! order of fields and the fields left out are part of the format. Everything here serialises through [`to_vec`]
//! and friends; the types are declared with the macro `go_object!`, which also keeps the fields that this program
//! does not know.

mod format;
mod object;
mod values;

pub use format::{GoFormatter, to_pretty_line, to_string, to_vec, write};
pub use object::{OmitEmpty, Unknown};
pub(crate) use object::{go_object, object_field};
pub use values::{Base64, GoTime, Nanos};

#[cfg(test)]
mod tests;
