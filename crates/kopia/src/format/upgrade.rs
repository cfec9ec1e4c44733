//! What keeps a client out of a repository: an upgrade that is going on, or a feature it does not know.

use crate::gojson::{GoTime, Nanos, go_object};
use crate::{Error, Result};
use jiff::Timestamp;

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

    /// Refuses everybody but `owner` while the lock holds.
    pub(super) fn check(&self, now: Timestamp, owner: Option<&str>) -> Result<()> {
        if !self.is_locked(now) || owner.is_some_and(|owner| owner == self.owner_id) {
            return Ok(());
        }
        Err(Error::UpgradeInProgress {
            owner: self.owner_id.clone(),
            since: self.creation_time.0,
            message: Some(self.message.clone()).filter(|message| !message.is_empty()),
        })
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
