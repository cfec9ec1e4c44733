//! A directory is opened in one that is open.

use super::directory::{Directory, Open, Part};
use super::files::Child;
use super::missing::{TRIES, is_there};
use super::{Place, Room, Run};
use crate::source::Kind;
use crate::{Error, Result};
use std::sync::Arc;

impl Run<'_> {
    /// Opens a directory and goes on with it.
    pub(super) fn open_child(
        &self,
        directory: &Arc<Directory>,
        slot: u64,
        child: &Child,
        room: &mut Room,
    ) -> Result<()> {
        let path = directory.join(&child.listed);
        let excluded = || {
            // A directory that the parent has and we leave out makes a difference.
            let same = child.previous.first().is_none_or(Option::is_none);
            self.progress.excluded_directory();
            directory.details.directory_ignored(&path);
            directory.complete(self, slot, Part { same, ..Part::default() })
        };
        if directory.ignore.has_rules() && directory.ignore.leaves_out(&path, true) {
            return excluded();
        }
        let policies = directory.policies.child(&String::from_utf8_lossy(&child.listed));
        let failed = |error: Error| {
            let ignored = policies.policy().error_handling.ignore_directory_errors.unwrap_or(false);
            self.entry_failed(&path, &error, ignored)?;
            directory.complete(self, slot, Part::failed(&path, &error, ignored))
        };
        if self.is_placeholder(&child.name) {
            return match self.directory_of_placeholder(&directory.open, child) {
                Err(error @ Error::File { .. }) => failed(error),
                part => directory.complete(self, slot, part?),
            };
        }
        let enter = || {
            let open = directory.open.child(&child.name)?;
            let place = Place {
                parent: Some((directory.clone(), slot)),
                path: path.clone(),
                name: child.listed.clone(),
            };
            let (previous, parents) = child.known_to_parents();
            self.enter(open, place, &policies, &directory.ignore, previous, &parents)
        };
        let is_missing = |error: &Error| matches!(error, Error::File { .. }) && error.is_not_found();
        let mut opened = enter();
        for _ in 1..TRIES {
            match &opened {
                Err(error) if is_missing(error) => opened = enter(),
                _ => break,
            }
        }
        match opened {
            Ok(Some(opened)) => {
                directory.note(slot, Open::Directory(Arc::downgrade(&opened)));
                self.go_on(opened, room)
            }
            Ok(None) => excluded(),
            Err(error) if is_missing(&error) => {
                // If it is there, it is something in it that was not found.
                let is_gone = !is_there(&directory.open, &child.name)
                    && self.are_gone(directory, &[(&*child.name, Kind::Directory)]) == [true];
                if !is_gone {
                    return failed(error);
                }
                self.vanished(&path);
                directory.complete(self, slot, Part { same: false, ..Part::default() })
            }
            Err(error @ (Error::File { .. } | Error::Action { .. })) => failed(error),
            Err(error) => Err(error),
        }
    }
}
