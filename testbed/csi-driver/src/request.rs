//! Reading requests: capabilities, storage class parameters, sizes and places, checked before anything is done.

use crate::error::{Error, Result};
use crate::mounts;
use crate::proto::volume_capability::{AccessMode, AccessType as Access, access_mode::Mode};
use crate::proto::{CapacityRange, TopologyRequirement, VolumeCapability};
use crate::store::{AccessType, Backing, BlockStyle, ChangedBlocks};
use std::collections::HashMap;

/// Sizes are whole multiples of this, so that every block size divides them.
pub(crate) const SIZE_UNIT: u64 = 1 << 20;
/// The size of a volume of which none is asked.
const DEFAULT_SIZE: u64 = 1 << 30;
/// The largest volume; files on ext4 end here.
pub(crate) const MAXIMUM_SIZE: u64 = 8 << 40;
const DEFAULT_BLOCK_SIZE: u64 = 64 << 10;
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 4 << 10..=SIZE_UNIT;
/// Parameters that the sidecars add; they only serve to recognise objects.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// Fails unless a required text is there.
pub(crate) fn required<'a>(value: &'a str, what: &str) -> Result<&'a str> {
    if value.is_empty() { Err(Error::InvalidArgument(format!("{what} is missing"))) } else { Ok(value) }
}

/// One way a volume is to be used.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    pub(crate) access_type: AccessType,
    pub(crate) mode: Mode,
    pub(crate) filesystem: String,
    pub(crate) mount_options: Vec<String>,
}

impl Usage {
    /// Reads a capability and refuses what no volume of this driver can do.
    pub(crate) fn of(capability: Option<&VolumeCapability>) -> Result<Usage> {
        let missing = |what: &str| Error::InvalidArgument(format!("volume capability: {what} is missing"));
        let capability = capability.ok_or_else(|| missing("all of it"))?;
        let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, AccessMode::mode);
        if mode == Mode::Unknown {
            return Err(missing("access mode"));
        }
        match capability.access_type.as_ref().ok_or_else(|| missing("access type"))? {
            Access::Block(_) => Ok(Usage {
                access_type: AccessType::Block,
                mode,
                filesystem: String::new(),
                mount_options: Vec::new(),
            }),
            Access::Mount(mount) => {
                mounts::options(&mount.mount_flags)?;
                Ok(Usage {
                    access_type: AccessType::Mount,
                    mode,
                    filesystem: mount.fs_type.clone(),
                    mount_options: mount.mount_flags.clone(),
                })
            }
        }
    }

    /// Whether this use can never write.
    pub(crate) fn read_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }
}

/// Reads the capabilities a volume is to have: at least one, and all filesystem or all block.
pub(crate) fn usages(capabilities: &[VolumeCapability]) -> Result<Vec<Usage>> {
    let usages: Vec<Usage> = capabilities.iter().map(|one| Usage::of(Some(one))).collect::<Result<_>>()?;
    let Some(first) = usages.first() else {
        return Err(Error::InvalidArgument("volume capabilities are missing".into()));
    };
    if usages.iter().any(|other| other.access_type != first.access_type) {
        return Err(Error::InvalidArgument(
            "a volume is either a filesystem or a block device, not both".into(),
        ));
    }
    Ok(usages)
}

/// What a storage class can choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) backing: Option<Backing>,
    pub(crate) changed_blocks: ChangedBlocks,
    pub(crate) anywhere: bool,
}

impl Parameters {
    /// Reads storage class parameters; unknown ones are errors.
    pub(crate) fn of(given: &HashMap<String, String>) -> Result<Parameters> {
        let mut parameters = Parameters {
            backing: None,
            changed_blocks: ChangedBlocks { style: BlockStyle::Fixed, block_size: DEFAULT_BLOCK_SIZE },
            anywhere: false,
        };
        for (key, value) in given {
            let wrong = || Error::InvalidArgument(format!("parameter {key}: {value:?} is not possible"));
            match (key.as_str(), value.as_str()) {
                ("backing", "directory") => parameters.backing = Some(Backing::Directory),
                ("backing", "image") => parameters.backing = Some(Backing::Image),
                ("changedBlocks", "none") => parameters.changed_blocks.style = BlockStyle::None,
                ("changedBlocks", "fixed") => parameters.changed_blocks.style = BlockStyle::Fixed,
                ("changedBlocks", "variable") => parameters.changed_blocks.style = BlockStyle::Variable,
                ("changedBlockSize", text) => {
                    let size: u64 = text.parse().map_err(|_| wrong())?;
                    if !size.is_power_of_two() || !BLOCK_SIZES.contains(&size) {
                        return Err(wrong());
                    }
                    parameters.changed_blocks.block_size = size;
                }
                ("placement", "node") => parameters.anywhere = false,
                ("placement", "anywhere") => parameters.anywhere = true,
                ("backing" | "changedBlocks" | "placement", _) => return Err(wrong()),
                (other, _) if other.starts_with(SIDECAR_PREFIX) => {}
                (other, _) => return Err(Error::InvalidArgument(format!("unknown parameter {other:?}"))),
            }
        }
        Ok(parameters)
    }
}

/// Refuses snapshot class parameters other than those the sidecars add.
pub(crate) fn check_snapshot_parameters(given: &HashMap<String, String>) -> Result<()> {
    match given.keys().find(|key| !key.starts_with(SIDECAR_PREFIX)) {
        Some(key) => Err(Error::InvalidArgument(format!("unknown parameter {key:?}"))),
        None => Ok(()),
    }
}

/// The sizes that satisfy a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeRange {
    required: u64,
    limit: u64,
}

impl SizeRange {
    pub(crate) fn of(range: Option<&CapacityRange>) -> Result<SizeRange> {
        let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
        let (Ok(required), Ok(limit)) = (u64::try_from(required), u64::try_from(limit)) else {
            return Err(Error::InvalidArgument("sizes cannot be negative".into()));
        };
        let limit = if limit == 0 { MAXIMUM_SIZE } else { limit.min(MAXIMUM_SIZE) };
        if required > limit {
            return Err(Error::OutOfRange(format!("{required} bytes are more than the limit of {limit}")));
        }
        Ok(SizeRange { required, limit })
    }

    /// Whether a volume of that size will do.
    pub(crate) fn admits(self, size: u64) -> bool {
        (self.required..=self.limit).contains(&size)
    }

    /// The size to give a volume that must have at least `least` bytes.
    pub(crate) fn choose(self, least: Option<u64>) -> Result<u64> {
        let wanted = match (self.required, least) {
            (0, None) => DEFAULT_SIZE.min(self.limit - self.limit % SIZE_UNIT),
            (required, least) => required.max(least.unwrap_or(0)),
        };
        let size = wanted.max(SIZE_UNIT).next_multiple_of(SIZE_UNIT);
        if self.admits(size) {
            return Ok(size);
        }
        Err(Error::OutOfRange(format!("{size} bytes are needed, and at most {} are allowed", self.limit)))
    }
}

/// The node to place a volume on: the first one preferred, else the first one possible, else `here`.
pub(crate) fn choose_node(required: Option<&TopologyRequirement>, key: &str, here: &str) -> Result<String> {
    let Some(required) = required else { return Ok(here.to_owned()) };
    let mut choices = required.preferred.iter().chain(&required.requisite).peekable();
    if choices.peek().is_none() {
        return Ok(here.to_owned());
    }
    choices
        .find_map(|choice| choice.segments.get(key).cloned())
        .ok_or_else(|| Error::ResourceExhausted(format!("no topology that was asked for names {key}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proto::Topology;

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<SizeRange> {
        SizeRange::of(Some(&CapacityRange { required_bytes, limit_bytes }))
    }

    #[test]
    fn sizes_are_rounded_up_within_the_limit_and_refused_beyond_it() {
        assert_eq!(range(1, 0).unwrap().choose(None).unwrap(), SIZE_UNIT);
        assert_eq!(range(0, 0).unwrap().choose(None).unwrap(), DEFAULT_SIZE);
        assert_eq!(range(0, 0).unwrap().choose(Some(5 * SIZE_UNIT)).unwrap(), 5 * SIZE_UNIT);
        assert_eq!(range(0, 3 << 20).unwrap().choose(None).unwrap(), 3 << 20);
        assert!(matches!(range(1, 2).unwrap().choose(None), Err(Error::OutOfRange(_))));
        assert!(matches!(range(i64::MAX, 0), Err(Error::OutOfRange(_))));
        assert!(matches!(range(-1, 0), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn unknown_or_impossible_parameters_are_refused() {
        let parse =
            |key: &str, value: &str| Parameters::of(&HashMap::from([(key.to_owned(), value.to_owned())]));
        assert_eq!(parse("backing", "image").unwrap().backing, Some(Backing::Image));
        assert!(parse("csi.storage.k8s.io/pvc/name", "data").is_ok());
        for (key, value) in [("backing", "tape"), ("colour", "red"), ("changedBlockSize", "5000")] {
            assert!(matches!(parse(key, value), Err(Error::InvalidArgument(_))), "{key}={value}");
        }
    }

    #[test]
    fn a_volume_goes_where_its_first_consumer_will_run() {
        let place = |node: &str| Topology { segments: HashMap::from([("key".to_owned(), node.to_owned())]) };
        let required = TopologyRequirement {
            requisite: vec![place("a"), place("b")],
            preferred: vec![place("b"), place("a")],
        };
        assert_eq!(choose_node(Some(&required), "key", "here").unwrap(), "b");
        assert_eq!(choose_node(None, "key", "here").unwrap(), "here");
        assert!(matches!(choose_node(Some(&required), "other", "here"), Err(Error::ResourceExhausted(_))));
    }
}
