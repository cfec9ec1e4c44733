//! The contents that are lost: as many as there may be, in a file in order of their ids.

use crate::content::ContentStore;
use crate::sort::{Merge, Probe, Scratch, Sorted, Sorter};
use crate::verify::ContentDamage;
use crate::{Error, Result};
use lifeboat_index::{ContentId, Prefix};
use std::collections::HashMap;
use std::sync::Arc;

/// A record's tail: the number of the pack.
const PACK: usize = size_of::<u32>();

/// Takes lost contents in any order.
pub(super) struct Collector {
    sorter: Sorter,
    /// The packs that should hold them, numbered as they come. Damage comes pack by pack, so they are far fewer.
    packs: HashMap<String, u32>,
    count: u64,
    manifests: u64,
    failed: Option<Error>,
}

impl Collector {
    pub(super) fn new(scratch: &Scratch) -> Self {
        let sorter = scratch.sorter(PACK);
        Collector { sorter, packs: HashMap::new(), count: 0, manifests: 0, failed: None }
    }

    pub(super) fn add(&mut self, damage: &ContentDamage) {
        self.count += 1;
        self.manifests += u64::from(damage.id.prefix() == Prefix::MANIFEST);
        let next = self.packs.len() as u32;
        let pack = *self.packs.entry(damage.pack.clone()).or_insert(next);
        if let Err(error) = self.sorter.push(damage.id.key(), &pack.to_be_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Ends the input; fails if something could not be taken.
    pub(super) fn finish(self) -> Result<Lost> {
        let Collector { sorter, packs, count, manifests, failed } = self;
        failed.map_or(Ok(()), Err)?;
        let mut names = vec![String::new(); packs.len()];
        for (name, number) in packs {
            names[number as usize] = name;
        }
        Ok(Lost { contents: sorter.finish()?, packs: names.into(), count, manifests })
    }
}

/// All contents that are lost.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    contents: Sorted,
    packs: Arc<[String]>,
    pub(super) count: u64,
    /// Those of them that hold manifests.
    pub(super) manifests: u64,
}

impl Lost {
    /// To forget them one after the other.
    pub(super) fn forget(&self) -> Result<Forget> {
        Ok(Forget { contents: self.contents.read()?, packs: self.packs.clone() })
    }

    /// To find out which of contents in ascending order of their ids are among them.
    pub(super) fn probe(&self) -> Result<Probe> {
        self.contents.probe()
    }
}

/// Makes a client forget contents.
pub(super) struct Forget {
    contents: Merge,
    packs: Arc<[String]>,
}

impl Forget {
    /// Forgets the next ones; `false` when there are no more.
    pub(super) fn next(&mut self, count: usize, from: &ContentStore) -> Result<bool> {
        for _ in 0..count {
            let Some((id, pack)) = self.take()? else { return Ok(false) };
            from.forget(&id, pack)?;
        }
        Ok(true)
    }

    /// The next content and its pack.
    fn take(&mut self) -> Result<Option<(ContentId, &str)>> {
        if !self.contents.advance()? {
            return Ok(None);
        }
        let number = self.contents.tail().first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let pack = number.and_then(|number| self.packs.get(number as usize));
        match (ContentId::from_key(self.contents.key()), pack) {
            (Ok(id), Some(pack)) => Ok(Some((id, pack))),
            _ => Err(Error::Worker("a temporary file does not hold what was written to it".into())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_budget::Budget;

    /// Pseudo-random ids, of which one in ten is of a manifest.
    fn content(number: u64) -> ContentId {
        let prefix = if number.is_multiple_of(10) { "m" } else { "" };
        format!("{prefix}{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).parse().unwrap()
    }

    #[test]
    fn any_number_is_kept_in_order_with_little_memory() {
        const COUNT: u64 = 50_000;
        let scratch = Scratch { folder: std::env::temp_dir(), budget: Budget::new(1 << 20) };
        let mut collector = Collector::new(&scratch);
        for number in 0..COUNT {
            let (pack, reason) = (format!("p{}", number % 3), String::new());
            collector.add(&ContentDamage { id: content(number), pack, reason });
        }
        let lost = collector.finish().unwrap();
        assert_eq!((lost.count, lost.manifests), (COUNT, COUNT / 10));
        let mut expected: Vec<(ContentId, String)> =
            (0..COUNT).map(|number| (content(number), format!("p{}", number % 3))).collect();
        expected.sort();
        let mut forget = lost.forget().unwrap();
        for (id, pack) in &expected {
            assert_eq!(forget.take().unwrap(), Some((*id, pack.as_str())));
        }
        assert_eq!(forget.take().unwrap(), None);
        let mut probe = lost.probe().unwrap();
        let mut asked: Vec<u64> = (0..2 * COUNT).collect();
        asked.sort_by_key(|number| content(*number));
        for number in asked {
            assert_eq!(probe.contains(content(number).key()).unwrap(), number < COUNT, "{number}");
        }
    }
}
