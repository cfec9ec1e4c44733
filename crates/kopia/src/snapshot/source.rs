//! Who backed up what.

use crate::gojson::go_object;
use crate::manifest::{Labels, TYPE_LABEL};
use std::fmt;

/// The label with the host of a source.
pub const HOSTNAME_LABEL: &str = "hostname";
/// The label with the user of a source.
pub const USERNAME_LABEL: &str = "username";
/// The label with the path of a source.
pub const PATH_LABEL: &str = "path";

go_object! {
    /// What a snapshot is of, or what a policy is for: everything, a host, a user on it, or a path of that user.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct SourceInfo {
        /// The host.
        pub host: String => "host",
        /// The user.
        pub user_name: String => "userName",
        /// The path.
        pub path: String => "path",
    }
}

impl SourceInfo {
    /// The source `user@host:path`.
    pub fn new(user_name: impl Into<String>, host: impl Into<String>, path: impl Into<String>) -> Self {
        SourceInfo {
            host: host.into(),
            user_name: user_name.into(),
            path: path.into(),
            ..SourceInfo::default()
        }
    }

    /// Everything: the target of the global policy.
    pub fn global() -> Self {
        SourceInfo::default()
    }

    /// The source that manifest labels name.
    pub fn from_labels(labels: &Labels) -> Self {
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        SourceInfo::new(label(USERNAME_LABEL), label(HOSTNAME_LABEL), label(PATH_LABEL))
    }

    /// The labels that select manifests of type `manifest_type` of this source; empty parts select nothing.
    pub fn labels(&self, manifest_type: &str) -> Labels {
        let parts = [
            (TYPE_LABEL, manifest_type),
            (HOSTNAME_LABEL, &self.host),
            (USERNAME_LABEL, &self.user_name),
            (PATH_LABEL, &self.path),
        ];
        let given = parts.iter().filter(|(_, value)| !value.is_empty());
        given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Parses `user@host:path`, `user@host`, `@host` or `(global)`. Anything else is `None`: a bare path belongs to
    /// whoever asks.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "(global)" {
            return Some(SourceInfo::global());
        }
        let at = text.find('@')?;
        let (user, rest) = (&text[..at], &text[at + 1..]);
        match text.find(':') {
            Some(colon) if at > 0 && at < colon => {
                Some(SourceInfo::new(user, &text[at + 1..colon], &text[colon + 1..]))
            }
            None if !rest.is_empty() => Some(SourceInfo::new(user, rest, "")),
            _ => None,
        }
    }
}

impl fmt::Display for SourceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.user_name.as_str(), self.host.as_str(), self.path.as_str()) {
            ("", "", "") => f.write_str("(global)"),
            (user, host, "") => write!(f, "{user}@{host}"),
            (user, host, path) => write!(f, "{user}@{host}:{path}"),
        }
    }
}
