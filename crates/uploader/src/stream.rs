//! A stream of bytes becomes a snapshot: a directory with one file.

use crate::compression::compressor_for;
use crate::progress::{Cancel, Progress};
use crate::single::{self, Single};
use crate::{Error, Result};
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::{SnapshotManifest, SourceInfo};
use lifeboat_repository::{DataType, ObjectWriteOptions, Repository};
use std::io::Read;

/// The stream is read in pieces of this size.
const PIECE: usize = 1 << 20;
/// What the file and the directory may be used for: whoever takes the snapshot said nothing of others.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// What to back up, and how.
#[derive(Debug, Clone)]
pub struct StreamBackupOptions {
    /// The name of the file.
    pub name: String,
    /// Under which identity the snapshot is saved.
    pub source: SourceInfo,
    /// Compression of data and metadata.
    pub policy: Policy,
    /// Free text.
    pub description: String,
}

/// Backs up everything that comes out of `stream`.
///
/// The snapshot is returned, not saved: its data is durable after the repository's next flush. A backup that is
/// cancelled leaves nothing to go on from: the stream is gone.
pub fn back_up_stream(
    repository: &dyn Repository,
    options: &StreamBackupOptions,
    stream: &mut dyn Read,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<SnapshotManifest> {
    let start_time = repository.now();
    let write_options = ObjectWriteOptions {
        full_path: options.name.clone(),
        data_type: DataType::Data,
        // How much will come is not known: it counts as a large file.
        compressor: compressor_for(&options.policy.compression, &options.name, u64::MAX >> 1).to_owned(),
        splitter: options.policy.splitter.algorithm.clone(),
        ..ObjectWriteOptions::default()
    };
    let (object, size) = cancel.interrupting_writes(repository, || {
        let mut writer = repository.new_object(&write_options)?;
        let (mut piece, mut size) = (vec![0; PIECE], 0u64);
        loop {
            cancel.check()?;
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    writer.write(&piece[..count])?;
                    size += count as u64;
                    progress.hashed(count as u64);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::file("read", options.name.as_ref(), error)),
            }
        }
        // Whoever cancels a pipeline ends what writes into it, too: that is not the end of the data.
        cancel.check()?;
        Ok((writer.result()?, size))
    })?;
    progress.file_hashed();
    let file = single::file(&options.name, FILE_MODE, size, start_time, object);
    let directory = Single {
        source: &options.source,
        description: &options.description,
        policy: &options.policy,
        start_time,
        name: options.source.path.clone(),
        mode: DIRECTORY_MODE,
        time: start_time,
    };
    directory.snapshot(repository, &file)
}
