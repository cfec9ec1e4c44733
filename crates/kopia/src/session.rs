//! Write sessions: the id that marks everything one writer uploads between two flushes, and the marker blob that
//! keeps garbage collection away from it.

use crate::{Environment, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Prefix of marker blobs. No other blob may start with it: maintenance fails on names that it cannot read.
pub const MARKER_PREFIX: &str = "s";

/// 2000-01-01T00:00:00Z in unix seconds, from which the coarse time in a session id counts.
const ID_EPOCH: i64 = 946_684_800;
/// The unit of that time: 30 days.
const ID_UNIT: i64 = 30 * 24 * 3600;

/// The id of one session; never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// A fresh id.
    pub fn generate(environment: &Environment) -> Result<Self> {
        Ok(Self::from_parts(environment.random_array()?, environment.clock.now()))
    }

    fn from_parts(random: [u8; 8], now: Timestamp) -> Self {
        let months = (now.as_second() - ID_EPOCH).div_euclid(ID_UNIT).max(0);
        SessionId(format!("s{}{months:x}", hex::encode(random)))
    }

    /// The session that a blob belongs to, by its name: the first part after a dash that starts with `s`.
    pub fn of_blob(name: &str) -> Option<Self> {
        name.split('-').skip(1).find(|part| part.starts_with('s')).map(|part| SessionId(part.to_owned()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a marker blob says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionMarker {
    /// The session.
    pub id: SessionId,
    /// When it began.
    pub start_time: Timestamp,
    /// When its writer was last known to be alive; packs are protected for 96 hours from here.
    pub checkpoint_time: Timestamp,
    /// Who writes.
    pub username: String,
    /// From where.
    pub hostname: String,
}

impl SessionMarker {
    /// The marker of a session that begins now.
    pub fn new(id: SessionId, now: Timestamp, username: &str, hostname: &str) -> Self {
        let (username, hostname) = (username.to_owned(), hostname.to_owned());
        SessionMarker { id, start_time: now, checkpoint_time: now, username, hostname }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_carry_the_months_since_2000_in_hex() {
        let now: Timestamp = "2023-11-14T22:13:20Z".parse().unwrap();
        let id = SessionId::from_parts([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef], now);
        assert_eq!(id.as_str(), "s0123456789abcdef122");
    }

    #[test]
    fn the_session_is_found_in_every_kind_of_name() {
        let id = |name| SessionId::of_blob(name).map(|id| id.to_string());
        assert_eq!(id("p00ff-s01122"), Some("s01122".to_owned()));
        assert_eq!(id("xn3_00ff-s01122-c1"), Some("s01122".to_owned()));
        assert_eq!(id("s00ff-s01122"), Some("s01122".to_owned()));
        assert_eq!(id("s00ff"), None);
        assert_eq!(id("n00ff-c1"), None);
    }

    #[test]
    fn markers_are_written_as_kopia_writes_them() {
        let now: Timestamp = "2026-08-20T10:00:05.25Z".parse().unwrap();
        let marker = SessionMarker::new(SessionId("s1".into()), now, "alice", "host1");
        let json = r#"{"id":"s1","startTime":"2026-08-20T10:00:05.25Z","checkpointTime":"2026-08-20T10:00:05.25Z","username":"alice","hostname":"host1"}"#;
        assert_eq!(serde_json::to_string(&marker).unwrap(), json);
        assert_eq!(serde_json::from_str::<SessionMarker>(json).unwrap(), marker);
    }
}
