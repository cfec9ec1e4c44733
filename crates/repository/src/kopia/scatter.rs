//! Scattered reads: the interface's destinations as the engine sees them.

use super::object::object_id;
use crate::{Destination, Result, ScatterOptions, ScatterTotals, Wanted};
use lifeboat_kopia::object::{self, Objects};
use std::ops::ControlFlow;
use std::sync::Arc;

struct To<'a>(Arc<dyn Destination + 'a>);

impl object::Destination for To<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        self.0.deliver(offset, bytes)
    }

    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()> {
        self.0.zeros(offset, length)
    }

    fn kept(&self, offset: u64, length: u64) -> ControlFlow<()> {
        self.0.kept(offset, length)
    }

    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.read_back(offset, buffer)
    }

    fn finished(&self, outcome: lifeboat_kopia::Result<u64>) {
        self.0.finished(outcome.map_err(Into::into));
    }
}

/// Reads all of `wanted`.
pub(super) fn read<'a>(
    objects: &Objects,
    wanted: &mut dyn Iterator<Item = Wanted<'a>>,
    options: ScatterOptions<'_>,
) -> Result<ScatterTotals> {
    let understood = wanted.filter_map(|Wanted { id, to, compare }| match object_id(&id) {
        Ok(object) => Some(object::Wanted { object, to: To(to), compare }),
        Err(error) => {
            to.finished(Err(error));
            None
        }
    });
    let engine_options = object::ScatterOptions { threads: options.threads, stop: options.stop };
    let object::ScatterTotals { reads, bytes } = objects.read_scattered(understood, engine_options)?;
    Ok(ScatterTotals { reads, bytes })
}
