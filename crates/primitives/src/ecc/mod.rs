//! Reed-Solomon error correction with a CRC32 per shard, as Kopia wraps it around encrypted data.
//!
//! The input, with its length in front, is divided into blocks of data shards, to each of which parity shards are
//! added. The parity of all blocks is stored first, then the data; every shard carries its checksum. Reading drops
//! shards whose checksum is wrong and computes them from the others.

mod galois;

use crate::{Error, Result};
use galois::Code;

/// The name in the format blob.
pub const NAME: &str = "REED-SOLOMON-CRC32";

const ECC: &str = "error-corrected data";
const LENGTH_LEN: usize = 4;
const CRC_LEN: usize = 4;
const SMALL_DATA: usize = 6;
const SMALL_PARITY: usize = 2;

/// Encoder and decoder for one overhead. Building one takes a moment; keep it.
#[derive(Debug, Clone)]
pub struct Codec {
    /// Shard size of blocks that are full.
    shard: usize,
    small: Code,
    large: Code,
}

/// How one message is divided.
struct Layout<'a> {
    code: &'a Code,
    shard: usize,
    blocks: usize,
    /// Whether the zeros that fill up the last shards are stored.
    padded: bool,
}

impl Layout<'_> {
    /// Bytes of data, including padding, in one block.
    fn block_data(&self) -> usize {
        self.code.data() * self.shard
    }

    /// Bytes that the parity of all blocks takes with its checksums.
    fn stored_parity(&self) -> usize {
        self.blocks * self.code.parity() * (CRC_LEN + self.shard)
    }

    /// Length of the stored form of `framed` bytes (input and its length).
    fn stored_len(&self, framed: usize) -> usize {
        let data = if self.padded { self.blocks * self.block_data() } else { framed };
        self.stored_parity() + data + data.div_ceil(self.shard) * CRC_LEN
    }
}

impl Codec {
    /// The codec for `overhead_percent`, from 1 to 100.
    pub fn new(overhead_percent: u32) -> Result<Self> {
        let shard = match overhead_percent {
            1 => 1024,
            2 => 512,
            3 => 256,
            4..=6 => 128,
            7..=100 => 64,
            _ => {
                return Err(Error::InvalidParameter {
                    what: "an error correction overhead",
                    value: overhead_percent.into(),
                    expected: "from 1 to 100 percent",
                });
            }
        };
        Ok(Self::with_shard(overhead_percent, shard))
    }

    fn with_shard(overhead_percent: u32, shard: usize) -> Self {
        // Checksums take their part of the overhead. Kopia computes in 32-bit floats, so the result depends on it.
        let for_parity = (overhead_percent as f32 - 100.0 * CRC_LEN as f32 / shard as f32).max(0.01);
        let (data, parity) = shard_counts(for_parity);
        Codec { shard, small: Code::new(SMALL_DATA, SMALL_PARITY), large: Code::new(data, parity) }
    }

    /// Up to this many framed bytes, a few shards do.
    fn small_limit(&self) -> usize {
        2 * CRC_LEN * self.large.total()
    }

    fn layout_of_input(&self, framed: usize) -> Layout<'_> {
        if framed <= self.small_limit() {
            Layout { code: &self.small, shard: framed.div_ceil(SMALL_DATA), blocks: 1, padded: true }
        } else if framed <= self.large.data() * self.shard {
            let shard = framed.div_ceil(self.large.data());
            Layout { code: &self.large, shard, blocks: 1, padded: true }
        } else {
            let blocks = framed.div_ceil(self.large.data() * self.shard);
            Layout { code: &self.large, shard: self.shard, blocks, padded: false }
        }
    }

    fn layout_of_stored(&self, stored: usize) -> Layout<'_> {
        let single = |code| -> Layout<'_> {
            let code: &Code = code;
            let shard = stored.div_ceil(code.total()).max(1 + CRC_LEN) - CRC_LEN;
            Layout { code, shard, blocks: 1, padded: true }
        };
        let small_shard = self.small_limit().div_ceil(SMALL_DATA);
        if stored <= self.small.total() * (CRC_LEN + small_shard) {
            single(&self.small)
        } else if stored <= self.large.total() * (CRC_LEN + self.shard) {
            single(&self.large)
        } else {
            let blocks = stored.div_ceil(self.large.total() * (CRC_LEN + self.shard));
            Layout { code: &self.large, shard: self.shard, blocks, padded: false }
        }
    }

    /// Appends the stored form of `data`, which must be shorter than 4 GiB, to `out`.
    pub fn encode(&self, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let length = u32::try_from(data.len())
            .ok()
            .filter(|&length| length <= u32::MAX - LENGTH_LEN as u32)
            .ok_or(Error::TooLarge { what: ECC, limit: u32::MAX as usize - LENGTH_LEN })?;
        let framed = LENGTH_LEN + data.len();
        let layout = self.layout_of_input(framed);
        out.reserve(layout.stored_len(framed));

        let mut block = vec![0; layout.block_data()];
        let mut parity = vec![0; layout.code.parity() * layout.shard];
        for index in 0..layout.blocks {
            fill_block(length, data, index * block.len(), &mut block);
            layout.code.encode(&block, layout.shard, &mut parity);
            for shard in parity.chunks_exact(layout.shard) {
                push_shard(shard, shard.len(), out);
            }
        }
        let mut left = if layout.padded { layout.blocks * block.len() } else { framed };
        for index in 0..layout.blocks {
            fill_block(length, data, index * block.len(), &mut block);
            for shard in block.chunks_exact(layout.shard) {
                if left > 0 {
                    push_shard(shard, left.min(shard.len()), out);
                    left -= left.min(shard.len());
                }
            }
        }
        Ok(())
    }

    /// The data of its stored form, after repairing damaged shards as far as the parity reaches. Damage that the
    /// checksums miss, or that changes the length, is left for the decryption that follows to find.
    pub fn decode(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let layout = self.layout_of_stored(stored.len());
        let (parity, data) = stored
            .split_at_checked(layout.stored_parity())
            .ok_or_else(|| Error::corrupt(ECC, "it ends inside the parity"))?;
        let shard = layout.shard;
        let step = CRC_LEN + shard;
        let (data_shards, total) = (layout.code.data(), layout.code.total());
        let mut framed =
            Vec::with_capacity(layout.blocks.saturating_mul(layout.block_data()).min(stored.len()));
        let mut block = vec![0; total * shard];
        let mut intact = vec![true; total];
        for index in 0..layout.blocks {
            for (i, (place, intact)) in block.chunks_exact_mut(shard).zip(&mut intact).enumerate() {
                let (source, at) = if i < data_shards {
                    (data, (index * data_shards + i) * step)
                } else {
                    (parity, (index * layout.code.parity() + i - data_shards) * step)
                };
                *intact = read_shard(source.get(at..).unwrap_or_default(), place);
            }
            if !layout.code.repair(&mut block, shard, &intact) {
                let bad = intact.iter().filter(|&&intact| !intact).count();
                return Err(Error::corrupt(
                    ECC,
                    format!(
                        "{bad} of {total} shards in block {index} are damaged, more than can be repaired"
                    ),
                ));
            }
            framed.extend_from_slice(&block[..data_shards * shard]);
        }
        self.unframe(framed, &layout, stored.len())
    }

    /// Removes length and padding.
    fn unframe(&self, mut framed: Vec<u8>, layout: &Layout<'_>, stored: usize) -> Result<Vec<u8>> {
        let length = framed.first_chunk::<LENGTH_LEN>().map(|bytes| u32::from_be_bytes(*bytes) as usize);
        let length = length
            .filter(|&length| {
                length <= framed.len() - LENGTH_LEN && layout.stored_len(LENGTH_LEN + length) == stored
            })
            .ok_or_else(|| Error::corrupt(ECC, "its length does not match what is stored"))?;
        framed.truncate(LENGTH_LEN + length);
        framed.drain(..LENGTH_LEN);
        Ok(framed)
    }
}

/// How many data and parity shards a block has for an overhead in percent.
fn shard_counts(overhead: f32) -> (usize, usize) {
    // Conversions from float saturate, which is what the clamps want.
    let parity = ((128.0 * overhead / 100.0) as usize).clamp(1, 128);
    if parity > 1 {
        return (128, parity);
    }
    // A single parity shard protects too little: take two, over more data.
    (((2.0 * 100.0 / overhead) as usize).clamp(128, 254), 2)
}

/// Fills `block` with what follows the first `start` bytes of `length ‖ data ‖ zeros`.
fn fill_block(length: u32, data: &[u8], start: usize, block: &mut [u8]) {
    let length = length.to_be_bytes();
    let mut bytes = length.get(start..).unwrap_or_default();
    let mut filled = 0;
    block[..bytes.len()].copy_from_slice(bytes);
    filled += bytes.len();
    bytes = data.get(start.saturating_sub(LENGTH_LEN)..).unwrap_or_default();
    let take = bytes.len().min(block.len() - filled);
    block[filled..filled + take].copy_from_slice(&bytes[..take]);
    block[filled + take..].fill(0);
}

/// Appends the checksum of the whole `shard` and its first `stored` bytes.
fn push_shard(shard: &[u8], stored: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&crc32fast::hash(shard).to_be_bytes());
    out.extend_from_slice(&shard[..stored]);
}

/// Reads the shard at the start of `source`, filled up with zeros, and tells whether it is intact. Where nothing is
/// stored, the shard is padding.
fn read_shard(source: &[u8], shard: &mut [u8]) -> bool {
    shard.fill(0);
    if source.is_empty() {
        return true;
    }
    let Some((checksum, bytes)) = source.split_first_chunk::<CRC_LEN>() else { return false };
    let len = bytes.len().min(shard.len());
    shard[..len].copy_from_slice(&bytes[..len]);
    crc32fast::hash(shard).to_be_bytes() == *checksum
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
