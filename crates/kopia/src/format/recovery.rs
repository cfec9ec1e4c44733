//! The copy of the format blob at the beginning of packs, from which a lost format blob can be restored.
//!
//! Only repositories whose password cannot be changed have it: a copy under an old password would be a danger.

use crate::{Error, Result};
use lifeboat_primitives::hash::{HashAlgorithm, Hasher};

/// How much of the beginning, and then of the end, of a pack has to be looked at.
pub const RECOVERY_CHUNK_LEN: usize = 65536;

/// The longest checksummed copy.
const MAX_LEN: usize = 65000;
const CHECKSUM_LEN: usize = 32;
/// Not a secret: it makes the checksum say what it is the checksum of.
const CHECKSUM_KEY: &[u8] = b"kopia-repository";

fn checksum(format_blob: &[u8]) -> Result<Vec<u8>> {
    let hasher = Hasher::new(HashAlgorithm::HmacSha256, CHECKSUM_KEY)?;
    Ok(hasher.hash(format_blob).as_slice().to_vec())
}

/// The block with a copy of `format_blob`, the exact bytes of the blob `kopia.repository`.
pub fn recovery_block(format_blob: &[u8]) -> Result<Vec<u8>> {
    let len = format_blob.len() + CHECKSUM_LEN;
    let Some(encoded) = u16::try_from(len).ok().filter(|_| len <= MAX_LEN).map(u16::to_le_bytes) else {
        return Err(Error::Invalid(format!(
            "the format blob is too long ({len} bytes) to be copied into packs"
        )));
    };
    Ok([encoded.as_slice(), format_blob, &checksum(format_blob)?, &encoded].concat())
}

/// The copy of the format blob in `chunk`, which is the beginning or the end of a pack ([`RECOVERY_CHUNK_LEN`]
/// bytes of it, or all if it is shorter).
pub fn find_recovery_block(chunk: &[u8]) -> Result<Option<&[u8]>> {
    let at_start = chunk.split_first_chunk().and_then(|(len, rest)| rest.get(..length(len)));
    let at_end = chunk.split_last_chunk().and_then(|(rest, len)| {
        let start = rest.len().checked_sub(length(len))?;
        rest.get(start..)
    });
    for copy in [at_start, at_end].into_iter().flatten() {
        let Some((format_blob, sum)) = copy.split_last_chunk::<CHECKSUM_LEN>() else { continue };
        if checksum(format_blob)? == sum {
            return Ok(Some(format_blob));
        }
    }
    Ok(None)
}

fn length(encoded: &[u8; 2]) -> usize {
    usize::from(u16::from_le_bytes(*encoded))
}
