//! Where a blob's file lies: Kopia's sharding rules and the `.shards` file that records them.

use crate::{BlobId, Error, ErrorKind, Operation, Result};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Name of the file with the sharding parameters, in the root folder.
pub(super) const SHARDS_FILE: &str = ".shards";
/// What the name of every complete blob's file ends with.
pub(super) const SUFFIX: &str = ".f";
/// Kopia's choice when it creates a repository.
pub(super) const SHARDS_OF_NEW: [u32; 2] = [1, 3];
/// What Kopia assumes of a repository without `.shards`: its layout before that file existed.
pub(super) const SHARDS_WHEN_UNRECORDED: [u32; 2] = [3, 3];
const MAX_NON_SHARDED_LENGTH: i64 = 20;

/// The content of `.shards`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    #[serde(deserialize_with = "or_empty")]
    default: Vec<u32>,
    #[serde(rename = "maxNonShardedLength", default)]
    max_non_sharded_length: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_empty")]
    overrides: Vec<Override>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Override {
    prefix: String,
    #[serde(default, deserialize_with = "or_empty")]
    shards: Vec<u32>,
}

/// Kopia writes an absent list as `null`.
fn or_empty<'de, D, T>(deserializer: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

impl Layout {
    pub(super) fn of_shards(shards: &[u32]) -> Self {
        Layout {
            default: shards.to_vec(),
            max_non_sharded_length: MAX_NON_SHARDED_LENGTH,
            overrides: Vec::new(),
        }
    }

    pub(super) fn parse(bytes: &[u8], store: &str) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| {
            let detail = format!("its {SHARDS_FILE} file is damaged: {error}");
            Error::new(ErrorKind::Corrupt, Operation::Open, "", store, detail)
                .with_remedy("restore that file: it decides where every blob lies")
        })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// The path of a blob's file below the root.
    ///
    /// Fails for names that are not one plain file name per level, so that no name leads out of the root.
    pub(super) fn path(&self, operation: Operation, id: &BlobId, store: &str) -> Result<PathBuf> {
        let mut rest = id.as_str().as_bytes();
        let mut path = PathBuf::new();
        let is_plain = |part: &[u8]| part != b"." && part != b"..";
        let mut plain = !rest.contains(&b'/');
        if rest.len() as i64 > self.max_non_sharded_length {
            for &size in self.shards_of(id) {
                let size = size as usize;
                if rest.len() <= size {
                    break;
                }
                // Cut by bytes, as Kopia does: a part need not be valid UTF-8.
                let (part, tail) = rest.split_at(size);
                plain &= is_plain(part);
                path.push(OsStr::from_bytes(part));
                rest = tail;
            }
        }
        if !plain {
            let detail = "a folder cannot hold a blob of this name";
            return Err(Error::new(ErrorKind::Configuration, operation, id, store, detail));
        }
        path.push(OsString::from_vec([rest, SUFFIX.as_bytes()].concat()));
        Ok(path)
    }

    fn shards_of(&self, id: &BlobId) -> &[u32] {
        let special = self.overrides.iter().find(|special| id.as_str().starts_with(&special.prefix));
        special.map_or(&self.default, |special| &special.shards)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn path(layout: &Layout, name: &str) -> String {
        let id = BlobId::new(name).unwrap();
        layout.path(Operation::Get, &id, "test").unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn paths_are_those_of_kopia() {
        let long = "foobarbaz12345678910123213123";
        assert_eq!(path(&Layout::of_shards(&[1, 3]), long), "f/oob/arbaz12345678910123213123.f");
        assert_eq!(path(&Layout::of_shards(&[3, 3]), long), "foo/bar/baz12345678910123213123.f");
        assert_eq!(path(&Layout::of_shards(&[]), long), format!("{long}.f"));
        assert_eq!(path(&Layout::of_shards(&[1, 3]), "kopia.repository"), "kopia.repository.f");

        let text = r#"{"default":[3,2,1],"maxNonShardedLength":2,
            "overrides":[{"prefix":"p","shards":[2,2]},{"prefix":"x","shards":[1,1,1]}]}"#;
        let layout = Layout::parse(text.as_bytes(), "test").unwrap();
        assert_eq!(path(&layout, "ab"), "ab.f");
        assert_eq!(path(&layout, "defaultsharded"), "def/au/l/tsharded.f");
        assert_eq!(path(&layout, "phello"), "ph/el/lo.f");
        assert_eq!(path(&layout, "xbye"), "x/b/y/e.f");

        let layout = Layout { max_non_sharded_length: 0, ..Layout::of_shards(&[3, 3]) };
        assert_eq!(path(&layout, "foo"), "foo.f");
        assert_eq!(path(&layout, "foob"), "foo/b.f");
        assert_eq!(path(&layout, "foobar"), "foo/bar.f");
        assert_eq!(path(&layout, "foobar2"), "foo/bar/2.f");
    }

    #[test]
    fn the_file_is_written_as_kopia_writes_it_and_null_is_read_as_empty() {
        let layout = Layout::of_shards(&[1, 3]);
        assert_eq!(layout.to_bytes(), b"{\"default\":[1,3],\"maxNonShardedLength\":20}\n");
        assert_eq!(Layout::parse(&layout.to_bytes(), "test").unwrap(), layout);
        let nulls = br#"{"default":null,"maxNonShardedLength":20,"overrides":null}"#;
        assert_eq!(Layout::parse(nulls, "test").unwrap(), Layout::of_shards(&[]));
    }

    #[test]
    fn damaged_parameters_are_an_error_that_names_the_file() {
        for text in ["", "{", r#"{"default":[-1]}"#, r#"{"default":["a"]}"#, "[]"] {
            let error = Layout::parse(text.as_bytes(), "test").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(".shards"), "{error}");
        }
    }

    #[test]
    fn no_name_leads_out_of_the_root() {
        let layout = Layout { max_non_sharded_length: 0, ..Layout::of_shards(&[2, 1]) };
        for name in ["../x", "a/b", "/etc/passwd", "..abc", "ab.c", "x/"] {
            let id = BlobId::new(name).unwrap();
            let error = layout.path(Operation::Put, &id, "test").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{name}");
        }
        // The suffix makes a plain file name of them.
        let flat = Layout::of_shards(&[]);
        assert_eq!(path(&flat, ".."), "...f");
        assert_eq!(path(&flat, "."), "..f");
    }
}
