//! What keeps a client out of a repository: an upgrade that is going on, or a feature it does not know.

use crate::gojson::{GoTime, Nanos, go_object};
use crate::{Error, Result};
use jiff::{SignedDuration, Timestamp};

/// The features that this program understands, the same as Kopia's.
const UNDERSTOOD: [&str; 2] = ["index-v1", "index-v2"];

go_object! {
    /// The announcement of an upgrade, and the lock that it becomes.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct UpgradeLock {
        /// Who upgrades.
        pub owner_id: String => "ownerID" omitempty,
        /// When the lock was placed.
        pub creation_time: GoTime => "creationTime",
        /// How long before the upgrade it was announced.
        pub advance_notice: Nanos => "advanceNoticeDuration" omitempty,
        /// How long a client may take to finish what it was doing.
        pub io_drain_timeout: Nanos => "ioDrainTimeout" omitempty,
        /// How often waiting clients look again.
        pub status_poll_interval: Nanos => "statusPollInterval" omitempty,
        /// What the owner says about it.
        pub message: String => "message" omitempty,
        /// How far clocks may be apart.
        pub max_permitted_clock_drift: Nanos => "maxPermittedClockDrift" omitempty,
    }
}

impl UpgradeLock {
    fn drain(&self) -> i128 {
        i128::from(self.max_permitted_clock_drift.0) + 2 * i128::from(self.io_drain_timeout.0)
    }

    /// Whether clients other than the owner must keep away at `now`.
    pub fn is_locked(&self, now: Timestamp) -> bool {
        let notice = i128::from(self.advance_notice.0);
        let begins = self.creation_time.0.as_nanosecond() + notice - self.drain();
        notice < self.drain() || now.as_nanosecond() >= begins
    }

    /// Whether at `now` all other clients have kept away for long enough, so that the owner is alone.
    pub fn is_exclusive(&self, now: Timestamp) -> bool {
        let wait = i128::from(self.advance_notice.0).max(self.drain());
        now.as_nanosecond() >= self.creation_time.0.as_nanosecond() + wait
    }

    /// When the owner is alone.
    pub fn established_at(&self) -> Timestamp {
        let wait = SignedDuration::from_nanos_i128(i128::from(self.advance_notice.0).max(self.drain()));
        self.creation_time.0.saturating_add(wait).unwrap_or(Timestamp::MAX)
    }

    /// Whether it can be placed at all.
    pub(super) fn validate(&self) -> Result<()> {
        let notice = i128::from(self.advance_notice.0);
        let rules = [
            (!self.owner_id.is_empty(), "an upgrade needs a name of its owner that nobody else uses"),
            (!self.message.is_empty(), "an upgrade needs a message for those who have to wait"),
            (self.io_drain_timeout.0 > 0, "the time for clients to finish must be positive"),
            (
                self.status_poll_interval <= self.io_drain_timeout,
                "the status must be polled within the time that clients have to finish",
            ),
            (self.max_permitted_clock_drift.0 > 0, "the permitted drift of clocks must be positive"),
            (notice == 0 || notice > self.drain(), "the advance notice must be longer than the drain"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Invalid((*rule).to_owned())),
            None => Ok(()),
        }
    }

    /// The lock that it becomes when its owner asks for `wanted`: only an advance notice can be put off.
    pub(super) fn updated(&self, wanted: &UpgradeLock) -> Result<UpgradeLock> {
        let refused = match (self.advance_notice.0, wanted.advance_notice.0) {
            _ if self.owner_id != wanted.owner_id => return Err(self.refusal()),
            (0, 0) => None,
            (0, _) => Some("a lock that is placed cannot get an advance notice"),
            (_, 0) => Some("the advance notice of a lock cannot be taken back"),
            _ if wanted.established_at() < self.established_at() => Some("an upgrade can only be put off"),
            _ => None,
        };
        match refused {
            Some(reason) => Err(Error::Invalid(reason.to_owned())),
            None => Ok(UpgradeLock { advance_notice: wanted.advance_notice, ..self.clone() }),
        }
    }

    fn refusal(&self) -> Error {
        Error::UpgradeInProgress {
            owner: self.owner_id.clone(),
            since: self.creation_time.0,
            message: Some(self.message.clone()).filter(|message| !message.is_empty()),
        }
    }

    /// Refuses everybody but `owner` while the lock holds.
    pub(super) fn check(&self, now: Timestamp, owner: Option<&str>) -> Result<()> {
        if !self.is_locked(now) || owner.is_some_and(|owner| owner == self.owner_id) {
            return Ok(());
        }
        Err(self.refusal())
    }
}

go_object! {
    /// What a client does that does not understand a feature.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct IfNotUnderstood {
        /// Go on with a warning instead of refusing.
        pub warn: bool => "warn",
        /// What to tell the user.
        pub message: String => "message" omitempty,
        /// Where there is more to read.
        pub url: String => "url" omitempty,
        /// Which version understands it.
        pub upgrade_to_version: String => "upgradeToVersion" omitempty,
    }
}

go_object! {
    /// Something that a client must understand in order to work with the repository.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RequiredFeature {
        /// Its name.
        pub feature: String => "feature",
        /// What to do otherwise.
        pub if_not_understood: IfNotUnderstood => "ifNotUnderstood",
    }
}

impl RequiredFeature {
    /// `Ok(None)` if understood, a warning if it is enough to warn, and an error otherwise.
    pub(super) fn check(&self) -> Result<Option<String>> {
        if UNDERSTOOD.contains(&self.feature.as_str()) {
            return Ok(None);
        }
        let message = self.if_not_understood.describe();
        if !self.if_not_understood.warn {
            return Err(Error::RequiredFeature { feature: self.feature.clone(), message });
        }
        let hint = message.map(|message| format!(": {message}")).unwrap_or_default();
        Ok(Some(format!(
            "the repository uses the feature {:?}, which this program does not know{hint}",
            self.feature
        )))
    }
}

impl IfNotUnderstood {
    fn describe(&self) -> Option<String> {
        let version = Some(&self.upgrade_to_version).filter(|version| !version.is_empty());
        let parts = [
            Some(self.message.clone()),
            Some(self.url.clone()),
            version.map(|version| format!("understood from version {version} on")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}
