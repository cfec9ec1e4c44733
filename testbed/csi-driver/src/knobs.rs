//! Faults on demand: rules in a JSON file that is read again for every call.
//!
//! The file may come, change and go while the driver runs. A file that does not parse fails every call, so that a
//! mistake in a test is not taken for a driver without faults.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Code;

/// The calls that rules can name.
pub const METHODS: [&str; 17] = [
    "CreateVolume",
    "DeleteVolume",
    "ValidateVolumeCapabilities",
    "ListVolumes",
    "GetCapacity",
    "ControllerExpandVolume",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ListSnapshots",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats",
    "NodeExpandVolume",
    "GetMetadataAllocated",
    "GetMetadataDelta",
];

/// The content of a knobs file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The first rule that fits a call and is not used up applies to it; no other.
    pub rules: Vec<Rule>,
}

/// What happens to the calls it fits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The call, one of [`METHODS`].
    pub method: String,
    /// Which calls of that method; all if empty.
    #[serde(rename = "match")]
    pub only: Match,
    /// How often the rule applies; for ever if not given. Counted anew when the driver starts or the rule changes.
    pub times: Option<u64>,
    /// How long the call takes longer.
    pub delay_ms: u64,
    /// The call fails so, as `CODE: text`.
    pub fail: Option<Failure>,
    /// Whether it fails instead of being carried out, or after it was.
    pub when: Moment,
    /// The snapshot is reported as not ready (`CreateSnapshot`, `ListSnapshots`).
    pub not_ready: bool,
    /// The snapshot that the call is about, or that a volume is to be made from, disappears first.
    pub lose: Option<Loss>,
    /// The answer about blocks is wrong (`GetMetadataAllocated`, `GetMetadataDelta`).
    pub blocks: Option<Lie>,
}

/// Conditions on a call; all that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// What the name of the volume or snapshot begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The id of the volume or snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id of the volume or snapshot it is made from or compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Parameters it was created with, such as `csi.storage.k8s.io/pvc/name`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// When a call fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Nothing was done.
    #[default]
    Before,
    /// All was done and only the answer is lost.
    After,
}

/// What is lost behind the driver's back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The content; the snapshot is still listed as ready.
    Content,
    /// The snapshot as a whole.
    Snapshot,
}

/// A wrong answer about blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// The first block is left out.
    Missing,
    /// One block too many, where there is room.
    Extra,
    /// The stream ends half way as if it were complete.
    Truncated,
    /// The stream breaks half way with an error.
    Broken,
    /// Twice the real capacity.
    Capacity,
    /// The blocks come in reverse order.
    Unordered,
}

/// A failure to answer with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Failure {
    /// The gRPC code.
    pub code: Code,
    /// The message.
    pub text: String,
}

const CODES: [(&str, Code); 16] = [
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

impl TryFrom<String> for Failure {
    type Error = String;

    fn try_from(given: String) -> std::result::Result<Failure, String> {
        let (name, text) = given.split_once(": ").ok_or("a failure is written as \"CODE: text\"")?;
        let (_, code) =
            CODES.iter().find(|(known, _)| *known == name).ok_or(format!("no gRPC code {name:?}"))?;
        Ok(Failure { code: *code, text: text.to_owned() })
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        let name = CODES.iter().find(|(_, code)| *code == failure.code).map_or("UNKNOWN", |(name, _)| name);
        format!("{name}: {}", failure.text)
    }
}

impl Rule {
    /// How much longer the call takes.
    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms)
    }

    /// The failure due at that moment, if any.
    pub(crate) fn failure(&self, moment: Moment) -> Result<()> {
        match &self.fail {
            Some(Failure { code, text }) if self.when == moment => {
                Err(Error::Injected { code: *code, text: text.clone() })
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let about_blocks = self.method.starts_with("GetMetadata");
        if !METHODS.contains(&self.method.as_str()) {
            return Err(format!("no method {:?} that can be made to fail", self.method));
        }
        if self.not_ready && !["CreateSnapshot", "ListSnapshots"].contains(&self.method.as_str()) {
            return Err(format!("{} does not say whether a snapshot is ready", self.method));
        }
        if self.blocks.is_some() && !about_blocks {
            return Err(format!("{} does not answer with blocks", self.method));
        }
        Ok(())
    }
}

/// What a call is about, for rules to match.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) parameters: BTreeMap<String, String>,
}

impl Match {
    fn fits(&self, subject: &Subject) -> bool {
        let is = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        self.name.as_ref().is_none_or(|prefix| !subject.name.is_empty() && subject.name.starts_with(prefix))
            && is(&self.id, &subject.id)
            && is(&self.source, &subject.source)
            && self.parameters.iter().all(|(key, value)| subject.parameters.get(key) == Some(value))
    }
}

/// The rules in force and how often each has applied.
#[derive(Debug, Default)]
pub struct Knobs {
    path: Option<PathBuf>,
    applied: Mutex<HashMap<String, u64>>,
}

impl Knobs {
    /// Rules from this file, or none at all.
    pub fn new(path: Option<PathBuf>) -> Knobs {
        Knobs { path, applied: Mutex::default() }
    }

    /// The rule for a call, which this counts; a rule without effect if none fits.
    pub(crate) fn consult(&self, method: &str, subject: &Subject) -> Result<Rule> {
        let Some(path) = &self.path else { return Ok(Rule::default()) };
        let rules = read(path)?;
        let mut applied = self.applied.lock();
        for rule in rules.rules {
            if rule.method != method || !rule.only.fits(subject) {
                continue;
            }
            let key = serde_json::to_string(&rule)
                .map_err(|error| Error::Malformed { path: path.clone(), reason: error.to_string() })?;
            let count = applied.entry(key).or_default();
            if rule.times.is_none_or(|times| *count < times) {
                *count += 1;
                return Ok(rule);
            }
        }
        Ok(Rule::default())
    }
}

fn read(path: &Path) -> Result<Rules> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Rules::default()),
        read => read.map_err(Error::io("read", path))?,
    };
    let malformed = |reason: String| Error::Malformed { path: path.to_owned(), reason };
    let rules: Rules = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    rules.rules.iter().try_for_each(Rule::check).map_err(malformed)?;
    Ok(rules)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(text: &str) -> (tempfile::NamedTempFile, Knobs) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let knobs = Knobs::new(Some(file.path().to_owned()));
        (file, knobs)
    }

    fn named(name: &str) -> Subject {
        Subject { name: name.into(), ..Subject::default() }
    }

    #[test]
    fn a_rule_applies_as_often_as_it_says_and_then_the_next_one_does() {
        let (_file, knobs) = with(
            r#"{"rules": [
                {"method": "CreateVolume", "match": {"name": "pvc-"}, "times": 2, "fail": "UNAVAILABLE: later"},
                {"method": "CreateVolume", "delay_ms": 7}
            ]}"#,
        );
        assert_eq!(knobs.consult("CreateVolume", &named("other")).unwrap().delay_ms, 7);
        for _ in 0..2 {
            assert!(knobs.consult("CreateVolume", &named("pvc-1")).unwrap().failure(Moment::Before).is_err());
        }
        assert_eq!(knobs.consult("CreateVolume", &named("pvc-1")).unwrap().delay_ms, 7);
        assert_eq!(knobs.consult("DeleteVolume", &named("pvc-1")).unwrap(), Rule::default());
    }

    #[test]
    fn rules_survive_being_written_and_read() {
        let rule = Rule {
            method: "GetMetadataDelta".into(),
            blocks: Some(Lie::Broken),
            fail: Some(Failure { code: Code::DataLoss, text: "gone: really".into() }),
            when: Moment::After,
            ..Rule::default()
        };
        let text = serde_json::to_string(&Rules { rules: vec![rule.clone()] }).unwrap();
        let (_file, knobs) = with(&text);
        assert_eq!(knobs.consult("GetMetadataDelta", &Subject::default()).unwrap(), rule);
    }

    #[test]
    fn mistakes_in_the_file_fail_the_call_and_a_missing_file_does_not() {
        for text in [
            "{",
            r#"{"rules": [{"method": "CreateVolumes"}]}"#,
            r#"{"rules": [{"method": "CreateVolume", "fail": "NO_SUCH_CODE: x"}]}"#,
            r#"{"rules": [{"method": "CreateVolume", "colour": "red"}]}"#,
            r#"{"rules": [{"method": "CreateVolume", "blocks": "extra"}]}"#,
            r#"{"rules": [{"method": "DeleteVolume", "not_ready": true}]}"#,
        ] {
            let (_file, knobs) = with(text);
            let outcome = knobs.consult("CreateVolume", &Subject::default());
            assert!(matches!(outcome, Err(Error::Malformed { .. })), "{text}");
        }
        let gone = Knobs::new(Some("/nonexistent/knobs.json".into()));
        assert_eq!(gone.consult("CreateVolume", &Subject::default()).unwrap(), Rule::default());
    }
}
