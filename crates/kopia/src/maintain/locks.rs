//! When the object locks of a repository end, as far as its own configuration tells.

use super::ledger::last_success;
use super::{Result, Session};
use crate::format::BlobConfig;
use crate::maintenance::Task;
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::BlobId;

/// The locks that the repository puts on its blobs.
#[derive(Debug, Clone)]
pub(super) struct Locks {
    config: BlobConfig,
    period: SignedDuration,
    /// When locks were last extended.
    extended: Option<Timestamp>,
}

impl Locks {
    /// When the lock of a blob that was written at `written` ends, if it was not extended since. Deleting it before
    /// would fail, or only hide it.
    pub(super) fn of(&self, name: &str, written: Timestamp) -> Timestamp {
        let options =
            BlobId::new(name).map_err(crate::Error::from).and_then(|id| self.config.put_options(&id));
        match options.is_ok_and(|options| options.retention.is_some()) {
            true => later(written, self.period),
            false => Timestamp::MIN,
        }
    }

    /// When all locks have ended that the store knows of and that are no longer extended.
    pub(super) fn latest(&self, now: Timestamp) -> Timestamp {
        later(self.extended.unwrap_or(now), self.period)
    }
}

impl Session {
    /// The locks of the repository.
    pub(super) fn locks(&self) -> Result<Locks> {
        let config = self.format.config().clone();
        let period = config.retention()?.map_or(SignedDuration::ZERO, |lock| {
            SignedDuration::try_from(lock.period).unwrap_or(SignedDuration::MAX)
        });
        let extended = last_success(self.ledger.schedule(), &[Task::ExtendBlobRetentionTime]);
        Ok(Locks { config, period, extended })
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}
