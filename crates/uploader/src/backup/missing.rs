//! What was listed and then not found: it is looked for again, since it may have been replaced at that moment, and is only
//! left out if it is gone.

use super::directory::Directory;
use super::files::{Batch, FileWork, Item, Outcome};
use super::{Room, Run};
use crate::source::{Kind, SourceDir};
use crate::{Error, Result};
use std::ffi::CStr;

/// How often something is looked for that is there whenever one looks only whether it is.
pub(super) const TRIES: usize = 3;

/// Whether there is anything of this name.
pub(super) fn is_there(directory: &SourceDir, name: &CStr) -> bool {
    !directory.stat(name).is_err_and(|error| error.is_not_found())
}

impl Run<'_> {
    /// Which of these entries, each of which was looked for several times in vain, are gone.
    pub(super) fn are_gone(&self, directory: &Directory, names: &[(&CStr, Kind)]) -> Vec<bool> {
        match self.own_clock && directory.device == self.device {
            // Our own kernel knows. A listing of all that is there, for each that is gone, would take too long.
            true => vec![true; names.len()],
            false => directory.open.are_gone(names),
        }
    }
}

impl FileWork<'_, '_> {
    /// Looks again for the items that were not found.
    pub(super) fn look_again(&mut self, batch: &Batch, missing: &[usize], room: &mut Room) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        // In the room, objects lie in the order of the items.
        self.write(room)?;
        let mut absent = Vec::new();
        for number in missing {
            let Some(item) = batch.items.get(*number) else { continue };
            self.has_large_behind =
                self.outcomes[*number..].iter().any(|outcome| matches!(outcome, Outcome::Large(_)));
            match self.examine_again(batch, *number, item, room)? {
                Ok(outcome) => self.outcomes[*number] = outcome,
                Err(error) => absent.push((item, error)),
            }
        }
        let names: Vec<_> = absent.iter().map(|(item, _)| (batch.name(item), item.kind)).collect();
        for (is_gone, (item, error)) in self.run.are_gone(self.directory, &names).into_iter().zip(&absent) {
            match is_gone {
                // That it is not in the snapshot is right.
                true => self.run.vanished(&self.directory.join(batch.listed(item))),
                false => self.failed(batch, item, error)?,
            }
        }
        Ok(())
    }

    /// What became of an item that was not found at first, or the error if it is not there.
    fn examine_again(
        &mut self,
        batch: &Batch,
        number: usize,
        item: &Item,
        room: &mut Room,
    ) -> Result<std::result::Result<Outcome, Error>> {
        let mut tries = 1;
        loop {
            self.run.check()?;
            let outcome = match self.examine(batch, number, item, room) {
                Err(error @ Error::File { .. }) if error.is_not_found() => {
                    if !is_there(&self.directory.open, batch.name(item)) {
                        return Ok(Err(error));
                    }
                    Err(error)
                }
                outcome => return self.settled(batch, item, outcome).map(Ok),
            };
            tries += 1;
            if tries == TRIES {
                return self.settled(batch, item, outcome).map(Ok);
            }
        }
    }
}
