//! An entry of a listing as it is written there, of which only as much is understood as is asked for.

use super::listing::parse_json;
use super::{DirEntry, EntryName, EntryType, GoMode};
use jiff::{Timestamp, civil, tz::Offset};
use serde::Deserialize;
use std::borrow::Cow;

/// An entry of a listing as it is written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEntry<'a>(&'a [u8]);

/// What it takes to find an entry.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    name: EntryName,
    #[serde(default, rename = "type")]
    entry_type: EntryType,
}

/// The fields of a file or link that is written as Kopia and we do it, which nearly all are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainEntry<'a> {
    /// Its name.
    pub name: &'a str,
    /// A file or a link.
    pub entry_type: EntryType,
    /// Permissions.
    pub mode: GoMode,
    /// Its bytes.
    pub size: u64,
    /// When its content was modified.
    pub mtime: Timestamp,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The id of the object with its content.
    pub object: &'a str,
    /// What follows: `}` if there is nothing beyond these fields.
    pub rest: &'a [u8],
}

impl<'a> RawEntry<'a> {
    /// An entry whose JSON was kept.
    pub fn new(json: &'a [u8]) -> Self {
        RawEntry(json)
    }

    /// Its JSON.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Its name, and whether it is a directory; `None` if it is not understood.
    pub fn head(self) -> Option<(Cow<'a, [u8]>, bool)> {
        // As Kopia and we write it; no need to parse all of it for that.
        let mut fields = Fields(self.0);
        if let (Some(name), Some(&[letter])) = (fields.text(b"{\"name\":\""), fields.text(b",\"type\":\"")) {
            return Some((Cow::Borrowed(name), letter == b'd'));
        }
        let head: Head = serde_json::from_slice(self.0).ok()?;
        let is_dir = head.entry_type == EntryType::Directory;
        Some((Cow::Owned(head.name.as_bytes().to_vec()), is_dir))
    }

    /// Its fields, if it is a file or a link and they are written as [`encode_entry`](super::encode_entry) does it: in
    /// order, none of them empty, each in its only spelling, the name without escapes. A small part of the effort of
    /// [`parse`](Self::parse).
    pub fn plain(self) -> Option<PlainEntry<'a>> {
        let mut fields = Fields(self.0);
        let name = str::from_utf8(fields.text(b"{\"name\":\"")?).ok().filter(|name| !name.is_empty())?;
        let entry_type = match fields.text(b",\"type\":\"")? {
            b"f" => EntryType::File,
            b"s" => EntryType::Symlink,
            _ => return None,
        };
        let mode = fields.optional(b",\"mode\":\"", |fields| octal(fields.until_quote()?).map(GoMode))?;
        let size = fields.optional(b",\"size\":", Fields::number)?;
        let mtime = fields.optional(b",\"mtime\":\"", |fields| time(fields.until_quote()?))?;
        let number = |fields: &mut Fields<'_>| u32::try_from(fields.number()?).ok();
        let uid = fields.optional(b",\"uid\":", number)?;
        let gid = fields.optional(b",\"gid\":", number)?;
        let object = str::from_utf8(fields.text(b",\"obj\":\"")?).ok()?;
        Some(PlainEntry { name, entry_type, mode, size, mtime, uid, gid, object, rest: fields.0 })
    }

    /// Takes it apart; a text says what is wrong with it.
    pub fn parse(self) -> std::result::Result<DirEntry, String> {
        parse_json(self.0)
    }
}

/// Takes the fields of an entry off its JSON, one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn skip(&mut self, prefix: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(prefix)?;
        Some(())
    }

    /// The text up to the next quote, if nothing in it is or would be escaped; goes on behind the quote.
    fn until_quote(&mut self) -> Option<&'a [u8]> {
        let ends = |byte: &u8| matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0..b' ');
        let end = self.0.iter().position(ends)?;
        let text = &self.0[..end];
        self.0 = self.0[end..].strip_prefix(b"\"")?;
        Some(text)
    }

    /// The text behind `prefix`, which ends with its quote.
    fn text(&mut self, prefix: &[u8]) -> Option<&'a [u8]> {
        self.skip(prefix)?;
        self.until_quote()
    }

    fn number(&mut self) -> Option<u64> {
        let len = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(len);
        self.0 = rest;
        decimal(digits).filter(|_| digits.first().is_some_and(|first| *first != b'0'))
    }

    /// The value behind `prefix`: the default if it is left out, `None` if it is wrong, or should have been left out.
    fn optional<T: Default + PartialEq>(
        &mut self,
        prefix: &[u8],
        value: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        match self.skip(prefix) {
            None => Some(T::default()),
            Some(()) => value(self).filter(|value| *value != T::default()),
        }
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// `0` and octal digits, the first of which is not another 0.
fn octal(text: &[u8]) -> Option<u32> {
    let digits =
        text.strip_prefix(b"0").filter(|digits| digits.first().is_some_and(|first| *first != b'0'))?;
    digits.iter().try_fold(0u32, |number, byte| {
        let digit = matches!(byte, b'0'..=b'7').then(|| u32::from(byte - b'0'))?;
        number.checked_mul(8).filter(|number| *number <= i32::MAX as u32)?.checked_add(digit)
    })
}

/// A time like `2020-02-29T12:34:56.12Z`, with a fraction only if there is one, that has no zeros at its end.
fn time(text: &[u8]) -> Option<Timestamp> {
    let (whole, fraction) = text.strip_suffix(b"Z")?.split_at_checked("2020-02-29T12:34:56".len())?;
    let nanoseconds = match fraction {
        [] => 0,
        [b'.', digits @ ..] if (1..=9).contains(&digits.len()) && !digits.ends_with(b"0") => {
            decimal(digits)? * 10u64.pow(9 - digits.len() as u32)
        }
        _ => return None,
    };
    let separators = [whole[4], whole[7], whole[10], whole[13], whole[16]];
    let two = |at: usize| decimal(&whole[at..at + 2]).map(|number| number as i8);
    let year = decimal(&whole[..4])? as i16;
    // Invalid dates are refused here, as is a leap second, which is not written as one.
    let time = civil::DateTime::new(year, two(5)?, two(8)?, two(11)?, two(14)?, two(17)?, nanoseconds as i32);
    Offset::UTC.to_timestamp(time.ok()?).ok().filter(|_| separators == *b"--T::")
}
