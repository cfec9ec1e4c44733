//! The output side: a `serde_json` formatter with Go's escapes and numbers.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io;

/// Writes compact JSON with Go's escapes: `<`, `>`, `&`, U+2028 and U+2029 become `\u` sequences, so that the text
/// could stand inside HTML; whole floating-point numbers have no fraction.
///
/// What `serde_json` does already as Go 1.22 and later: `\b \f \n \r \t \" \\` short, other control characters as
/// `\u00xx` in lower case, everything else as raw UTF-8.
#[derive(Debug, Default, Clone)]
pub struct GoFormatter<F = CompactFormatter>(F);

/// The escape of a character that JSON allows in a string and Go escapes all the same, with its length in UTF-8.
fn go_escape(rest: &[u8]) -> Option<(&'static [u8], usize)> {
    match rest {
        [b'<', ..] => Some((b"\\u003c", 1)),
        [b'>', ..] => Some((b"\\u003e", 1)),
        [b'&', ..] => Some((b"\\u0026", 1)),
        [0xe2, 0x80, 0xa8, ..] => Some((b"\\u2028", 3)),
        [0xe2, 0x80, 0xa9, ..] => Some((b"\\u2029", 3)),
        _ => None,
    }
}

/// Writes a run of characters that need no JSON escape, escaping those that Go escapes in addition.
fn write_fragment<W: ?Sized + io::Write>(writer: &mut W, fragment: &str) -> io::Result<()> {
    let bytes = fragment.as_bytes();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        match go_escape(&bytes[at..]) {
            Some((escape, len)) => {
                writer.write_all(&bytes[start..at])?;
                writer.write_all(escape)?;
                at += len;
                start = at;
            }
            None => at += 1,
        }
    }
    writer.write_all(&bytes[start..])
}

/// Below this, a whole `f64` is exactly an integer, and Go prints it without exponent.
const WHOLE_LIMIT: f64 = 9_007_199_254_740_992.0;

impl<F: Formatter> Formatter for GoFormatter<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_fragment(writer, fragment)
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        if value.fract() == 0.0 && value.abs() < WHOLE_LIMIT {
            return write!(writer, "{}", value as i64);
        }
        self.0.write_f64(writer, value)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

/// Writes `value` compactly.
pub fn write<W: io::Write, T: ?Sized + Serialize>(writer: W, value: &T) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(writer, GoFormatter::<CompactFormatter>::default()))
}

/// `value` as compact JSON.
pub fn to_vec<T: ?Sized + Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, value)?;
    Ok(out)
}

/// `value` as compact JSON text.
pub fn to_string<T: ?Sized + Serialize>(value: &T) -> serde_json::Result<String> {
    String::from_utf8(to_vec(value)?).map_err(serde::ser::Error::custom)
}

/// `value` indented by two spaces and a newline, as Go's stream encoder writes it with indentation.
pub fn to_pretty_line<T: ?Sized + Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(1024);
    let formatter = GoFormatter(PrettyFormatter::with_indent(b"  "));
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    out.push(b'\n');
    Ok(out)
}
