//! What a mover and a node-agent say to each other: the reasons of Events, their JSON, and the pod's last words.
//!
//! Flags and environment are the other half of the protocol; the hosting pod of `lifeboat-exposer` passes them and the
//! command line of `lifeboat` takes them.

use lifeboat_exposer::Direction;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the message of a data path that was stopped ends; node-agents know it by nothing else.
pub const CANCELED: &str = "data path is canceled";
/// How the message of a data path ends whose container was ended from outside.
pub const INTERRUPTED: &str = "the container was told to end";
/// How the message of a restore ends that did not come to its end, of which the pod that waits for it was told.
pub const TOLD: &str = "the restored pod was told";
/// How it ends if that pod could not be told.
pub const NOT_TOLD: &str = "the restored pod could not be told";

/// The annotation of an operation that says how many of its movers were lost.
pub const MOVERS_LOST: &str = "lifeboat.io/movers-lost";

/// The file whose content becomes the termination message of the container.
pub use lifeboat_restore_helper::TERMINATION_LOG;

/// Kubernetes keeps so many bytes of the termination message, the last ones.
pub const MAX_TERMINATION_MESSAGE: usize = 4096;

/// Why a mover tells of itself: the reasons of its Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Data begins to move.
    Started,
    /// So much has moved; the message is a [`Progress`].
    Progress,
    /// All has moved; the message is a [`BackupResult`] or [`RestoreResult`].
    Completed,
    /// It could not be done; the message says why.
    Failed,
    /// It was stopped.
    Canceled,
    /// It was told to stop.
    Canceling,
    /// The mover ends; nothing follows.
    Stopped,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Started,
        Self::Progress,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::Canceling,
        Self::Stopped,
    ];

    /// The reason as it is in an Event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "Data-Path-Started",
            Self::Progress => "Data-Path-Progress",
            Self::Completed => "Data-Path-Completed",
            Self::Failed => "Data-Path-Failed",
            Self::Canceled => "Data-Path-Canceled",
            Self::Canceling => "Data-Path-Canceling",
            Self::Stopped => "Data-Path-Stopped",
        }
    }

    /// The reason of an Event; `None` if it is not one of a mover. Pods and claims share the operation's name, so most
    /// Events beside a mover's own are theirs.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a volume is to its user: a tree of files or a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum VolumeMode {
    /// A tree of files.
    #[default]
    Filesystem,
    /// A device.
    Block,
}

impl fmt::Display for VolumeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        })
    }
}

impl std::str::FromStr for VolumeMode {
    type Err = UnknownVolumeMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "Filesystem" => Ok(Self::Filesystem),
            "Block" => Ok(Self::Block),
            other => Err(UnknownVolumeMode(other.to_owned())),
        }
    }
}

/// A volume mode that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no volume mode; there are Filesystem and Block")]
pub struct UnknownVolumeMode(String);

/// How far a mover is: the message of [`Reason::Progress`]. The operation's status calls the second field `bytesDone`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Bytes to move, as far as known.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_bytes: i64,
    /// Bytes dealt with.
    #[serde(skip_serializing_if = "is_zero")]
    pub done_bytes: i64,
}

/// Where in the pod the volume is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessPoint {
    /// The path.
    pub by_path: String,
    /// What is there.
    pub volume_mode: VolumeMode,
}

/// What a backup came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupResult {
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Whether the volume was empty and there is no snapshot; old movers do that.
    pub empty_snapshot: bool,
    /// What was read.
    pub source: AccessPoint,
    /// Bytes of the volume.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_bytes: i64,
    /// Bytes among them that the parent did not have.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_bytes: i64,
}

/// What a restore came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreResult {
    /// What was written.
    pub target: AccessPoint,
    /// Bytes of the volume.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_bytes: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde asks for
fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// How a run of the data path ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The volume is in the repository.
    BackedUp(BackupResult),
    /// The volume has its data back.
    Restored(RestoreResult),
    /// It was stopped; the text says what was stopped.
    Canceled(String),
    /// Somebody ended the container, such as who drains its node; another mover may get through. The text says what was stopped.
    Interrupted(String),
    /// It could not be done; the text says why.
    Failed(String),
}

/// The last words of a pod that succeeded are not a result.
#[derive(Debug, thiserror::Error)]
#[error("the mover's pod succeeded but left {message:?} instead of a result: {source}")]
pub struct UnreadableResult {
    message: String,
    source: serde_json::Error,
}

impl Ending {
    /// What the container leaves as its termination message, at most [`MAX_TERMINATION_MESSAGE`] bytes of it. Success is
    /// the result and nothing else; a stop ends in [`CANCELED`] or
    /// [`INTERRUPTED`].
    #[must_use]
    pub fn termination_message(&self) -> String {
        match self {
            Self::BackedUp(result) => json(result),
            Self::Restored(result) => json(result),
            Self::Canceled(text) => shortened(&format!("{text}: {CANCELED}")),
            Self::Interrupted(text) => shortened(&format!("{text}: {INTERRUPTED}")),
            Self::Failed(text) => shortened(text),
        }
    }

    /// The same with one word more, if it has words.
    #[must_use]
    pub fn and(self, word: &str) -> Self {
        let with = |text: &str| format!("{text}; {word}");
        match self {
            Self::BackedUp(_) | Self::Restored(_) => self,
            Self::Canceled(text) => Self::Canceled(with(&text)),
            Self::Interrupted(text) => Self::Interrupted(with(&text)),
            Self::Failed(text) => Self::Failed(with(&text)),
        }
    }

    /// Whether it says that the restored pod was told ([`TOLD`]), or that it could not be; `None` if it does not speak of that.
    #[must_use]
    pub fn told(&self) -> Option<bool> {
        let (Self::Canceled(text) | Self::Interrupted(text) | Self::Failed(text)) = self else { return None };
        if text.ends_with(NOT_TOLD) { Some(false) } else { text.ends_with(TOLD).then_some(true) }
    }

    /// The line of its log by which a mover says that all has moved; other endings have more to say than a line, and the pod
    /// has it.
    #[must_use]
    pub fn log_line(&self) -> Option<String> {
        let moved = matches!(self, Self::BackedUp(_) | Self::Restored(_));
        moved.then(|| format!("{} {}", Reason::Completed, self.termination_message()))
    }

    /// The result in the last lines of a mover's log, if it says that all has moved. The last such line counts: nothing but the
    /// mover's end follows it, while names of files, which may look like it, come before.
    #[must_use]
    pub fn in_log(direction: Direction, lines: &str) -> Option<Self> {
        let result =
            |line: &str| line.strip_prefix(Reason::Completed.as_str())?.strip_prefix(' ').map(str::to_owned);
        Self::read(direction, true, &lines.lines().rev().find_map(result)?).ok()
    }

    /// The status with which the mover exits.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(matches!(self, Self::Canceled(_) | Self::Interrupted(_) | Self::Failed(_)))
    }

    /// The ending of a pod that is done, from whether it succeeded and from its termination message.
    ///
    /// # Errors
    /// If a pod that succeeded left no result.
    pub fn read(direction: Direction, succeeded: bool, message: &str) -> Result<Self, UnreadableResult> {
        if !succeeded {
            let text = message.trim_end();
            let before = |suffix| Some(text.strip_suffix(suffix)?.trim_end_matches([' ', ':']).to_owned());
            return Ok(match (before(CANCELED), before(INTERRUPTED)) {
                (Some(what), _) => Self::Canceled(what),
                (None, Some(what)) => Self::Interrupted(what),
                (None, None) => Self::Failed(text.to_owned()),
            });
        }
        match direction {
            Direction::Backup => result(message).and_then(|result: BackupResult| {
                if result.snapshot_id.is_empty() && !result.empty_snapshot {
                    let source = serde_json::Error::custom("it names no snapshot");
                    return Err(UnreadableResult { message: shortened(message), source });
                }
                Ok(Self::BackedUp(result))
            }),
            Direction::Restore => result(message).map(Self::Restored),
        }
    }
}

fn result<T: DeserializeOwned>(message: &str) -> Result<T, UnreadableResult> {
    serde_json::from_str(message).map_err(|source| UnreadableResult { message: shortened(message), source })
}

/// The JSON of a message. These types cannot fail to serialise: they hold only text, numbers and flags.
#[must_use]
pub fn json<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

/// A message that Kubernetes keeps whole: what failed is at its beginning and why is at its end, so the middle is left
/// out.
fn shortened(text: &str) -> String {
    const GAP: &str = " … ";
    if text.len() <= MAX_TERMINATION_MESSAGE {
        return text.to_owned();
    }
    let half = (MAX_TERMINATION_MESSAGE - GAP.len()) / 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len() - half);
    format!("{}{GAP}{}", &text[..head], &text[tail..])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    /// Termination messages of Velero 1.18.3, which are also the messages of its `Data-Path-Completed` Events.
    const BACKUP: &str = r#"{"snapshotID":"96ba2fb01d1fb4ad6a499516bcbecb6a","emptySnapshot":false,"source":{"byPath":"/8ce385b4-1224-4afc-91ee-1a20474fbc36","volumeMode":"Filesystem"},"totalBytes":300030,"incrementalBytes":300030}"#;
    const BLOCK_BACKUP: &str = r#"{"snapshotID":"a20651e234ea52be92b00212c9141c43","emptySnapshot":false,"source":{"byPath":"/4b887a8b-7754-491b-94df-8c7c26d9d34d","volumeMode":"Block"},"totalBytes":16777216}"#;
    const EMPTY_BACKUP: &str = r#"{"snapshotID":"0d19d2c5601ed9539fe4d1b4ae7d830d","emptySnapshot":false,"source":{"byPath":"/75d2670a-4fec-4b33-9a27-12523445f18a","volumeMode":"Filesystem"}}"#;
    const RESTORE: &str = r#"{"target":{"byPath":"/28499799-1c70-44f1-8477-3f4519f3ab2e","volumeMode":"Filesystem"},"totalBytes":300030}"#;
    const BLOCK_RESTORE: &str = r#"{"target":{"byPath":"/f1b303b9-9568-41bd-82b0-7e0a42b4f379","volumeMode":"Block"},"totalBytes":16777216}"#;
    const EMPTY_RESTORE: &str =
        r#"{"target":{"byPath":"/0dcb81b4-b658-4861-bb9a-1391237cf77b","volumeMode":"Filesystem"}}"#;

    #[test]
    fn results_of_velero_are_read_and_written_byte_for_byte() {
        for message in [BACKUP, BLOCK_BACKUP, EMPTY_BACKUP] {
            let ending = Ending::read(Direction::Backup, true, message).unwrap();
            assert_eq!(ending.termination_message(), message);
            assert_eq!(ending.exit_code(), 0);
        }
        for message in [RESTORE, BLOCK_RESTORE, EMPTY_RESTORE] {
            let ending = Ending::read(Direction::Restore, true, message).unwrap();
            assert_eq!(ending.termination_message(), message);
        }
        let without = Ending::read(Direction::Backup, true, "{}").unwrap_err();
        assert!(without.to_string().contains("names no snapshot"), "{without}");
        let Ending::BackedUp(result) = Ending::read(Direction::Backup, true, BACKUP).unwrap() else {
            panic!()
        };
        assert_eq!(result.snapshot_id, "96ba2fb01d1fb4ad6a499516bcbecb6a");
        assert_eq!((result.total_bytes, result.incremental_bytes), (300_030, 300_030));
        assert_eq!(result.source.volume_mode, VolumeMode::Filesystem);
    }

    #[test]
    fn last_words_say_whether_the_restored_pod_was_told_also_if_they_are_long() {
        let long = "x".repeat(MAX_TERMINATION_MESSAGE);
        for words in ["stopped", &long] {
            for ending in [Ending::Canceled(words.to_owned()), Ending::Failed(words.to_owned())] {
                let read = |ending: Ending| {
                    Ending::read(Direction::Restore, false, &ending.termination_message()).unwrap().told()
                };
                assert_eq!(read(ending.clone()), None);
                assert_eq!(read(ending.clone().and(TOLD)), Some(true));
                assert_eq!(read(ending.and(&format!("no room: {NOT_TOLD}"))), Some(false));
            }
        }
        let restored = Ending::read(Direction::Restore, true, RESTORE).unwrap();
        assert_eq!((restored.clone().and(TOLD), restored.told()), (restored, None));
    }

    #[test]
    fn a_result_is_found_in_the_log_and_only_the_last_one_counts() {
        let ending = Ending::read(Direction::Backup, true, BACKUP).unwrap();
        let line = ending.log_line().unwrap();
        let found = |lines: &str| Ending::in_log(Direction::Backup, lines);
        assert_eq!(found(&format!("moving\n{line}\nended\n")), Some(ending.clone()));
        // The name of a file that cannot be read, in a line that the mover wrote earlier.
        let forged = BACKUP.replace("96ba", "ffff");
        assert_eq!(found(&format!("cannot read a\n{} {forged}\n{line}\n", Reason::Completed)), Some(ending));
        assert_eq!(found(&line[..line.len() - 1]), None, "a line that is cut off");
        assert_eq!(found(&format!("{} {RESTORE}", Reason::Failed)), None);
        assert_eq!(found(""), None);
        assert_eq!(Ending::Failed("no bucket".to_owned()).log_line(), None);
        assert_eq!(Ending::Canceled("stopped".to_owned()).log_line(), None);
    }

    #[test]
    fn progress_of_velero_is_read_and_written_byte_for_byte() {
        for message in ["{}", r#"{"doneBytes":65536}"#, r#"{"totalBytes":300030,"doneBytes":300030}"#] {
            let progress: Progress = serde_json::from_str(message).unwrap();
            assert_eq!(json(&progress), message);
        }
    }

    #[test]
    fn every_reason_is_found_by_its_text() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("Pulled"), None);
    }

    #[test]
    fn a_stop_is_known_by_the_end_of_the_message() {
        let ending = Ending::Canceled("Data path for dm-x canceled".to_owned());
        let message = ending.termination_message();
        assert!(message.ends_with(CANCELED), "{message}");
        assert_eq!(ending.exit_code(), 1);
        assert_eq!(Ending::read(Direction::Backup, false, &format!("{message}\n")).unwrap(), ending);
        let interrupted = Ending::Interrupted("data path for dm-x stopped".to_owned());
        let message = interrupted.termination_message();
        assert_eq!(Ending::read(Direction::Backup, false, &message).unwrap(), interrupted);
        let other = Ending::read(Direction::Backup, false, "data path is canceled by mistake").unwrap();
        assert!(matches!(other, Ending::Failed(_)));
    }

    #[test]
    fn a_long_failure_keeps_its_beginning_and_its_cause() {
        let text = format!("cannot back up é: {}: no space left on device é", "é".repeat(9000));
        let message = Ending::Failed(text).termination_message();
        assert!(message.len() <= MAX_TERMINATION_MESSAGE);
        assert!(message.starts_with("cannot back up é"));
        assert!(message.ends_with("no space left on device é"));
        let canceled = Ending::Canceled("é".repeat(9000)).termination_message();
        assert!(canceled.len() <= MAX_TERMINATION_MESSAGE && canceled.ends_with(CANCELED));
    }

    #[test]
    fn a_success_without_a_result_is_an_error() {
        let error = Ending::read(Direction::Backup, true, "").unwrap_err();
        assert!(error.to_string().contains("instead of a result"), "{error}");
        assert!(Ending::read(Direction::Restore, true, r#"{"target":{"volumeMode":"Odd"}}"#).is_err());
    }
}
