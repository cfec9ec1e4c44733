//! The last bytes of a pack: where its local index is.

use std::ops::Range;

/// A pack's last bytes hold the postamble whole if at least this many are read.
pub const MAX_LEN: usize = 256;

/// The only version there is.
const VERSION: u64 = 1;
/// Length of the checksum.
const CRC_LEN: usize = 4;

/// Where the local index is, and what it was sealed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postamble {
    /// The hash of the local index: the id it was sealed with.
    pub iv: Vec<u8>,
    /// Where the sealed local index starts in the pack.
    pub offset: u64,
    /// Its sealed length.
    pub length: u64,
}

impl Postamble {
    /// The bytes as they end a pack.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.iv.len() + 32);
        put_uvarint(&mut out, VERSION);
        put_uvarint(&mut out, self.iv.len() as u64);
        out.extend_from_slice(&self.iv);
        put_uvarint(&mut out, self.offset);
        put_uvarint(&mut out, self.length);
        out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
        // At most 1 + 1 + 32 + 10 + 10 + 4 bytes.
        out.push(out.len() as u8);
        out
    }

    /// Finds the postamble at the end of `tail`, the last bytes of a pack; `None` if there is none that is whole.
    pub fn find(tail: &[u8]) -> Option<Postamble> {
        let (&length, rest) = tail.split_last()?;
        let body = rest.get(rest.len().checked_sub(usize::from(length))?..)?;
        let (body, checksum) = body.split_at_checked(body.len().checked_sub(CRC_LEN)?)?;
        if crc32fast::hash(body).to_be_bytes() != checksum {
            return None;
        }
        let mut input = body;
        let version = take_uvarint(&mut input)?;
        let iv_len = usize::try_from(take_uvarint(&mut input)?).ok()?;
        let (iv, rest) = input.split_at_checked(iv_len)?;
        input = rest;
        let offset = take_uvarint(&mut input)?;
        let length = take_uvarint(&mut input)?;
        (version == VERSION && input.is_empty()).then(|| Postamble { iv: iv.to_vec(), offset, length })
    }

    /// The bytes of the sealed local index in a pack of `pack_len` bytes; `None` if they do not lie inside it.
    pub fn range(&self, pack_len: u64) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.length)?;
        (self.length > 0 && end <= pack_len).then_some(self.offset..end)
    }
}

fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_uvarint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if bits.checked_shl(shift)? >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_is_written_and_read() {
        let postamble = Postamble { iv: (0..16).collect(), offset: 4096, length: 300 };
        let bytes = hex::decode("0110000102030405060708090a0b0c0d0e0f8020ac0248f26e221a").unwrap();
        assert_eq!(postamble.encode(), bytes);
        assert_eq!(Postamble::find(&bytes), Some(postamble.clone()));
        let longer = [&[0xff; 100][..], &bytes].concat();
        assert_eq!(Postamble::find(&longer), Some(postamble));
    }

    #[test]
    fn damage_is_noticed_and_never_panics() {
        let good = Postamble { iv: vec![7; 32], offset: u64::MAX, length: u64::MAX }.encode();
        assert!(Postamble::find(&good).is_some_and(|p| p.range(u64::MAX).is_none()));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(Postamble::find(&bad), None, "flip at {at}");
            assert_eq!(Postamble::find(&good[..at]), None, "cut at {at}");
        }
        for length in 0..=255u8 {
            let mut zeros = vec![0; 300];
            zeros.push(length);
            assert_eq!(Postamble::find(&zeros), None);
        }
    }
}
