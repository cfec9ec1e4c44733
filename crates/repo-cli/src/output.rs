//! How values are printed: for people, and for programs in the shape that Kopia's `--json` has.

use crate::progress::aside;
use anyhow::Result;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use lifeboat_kopia::snapshot::{DirEntry, EntryType};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// A number of bytes for people, in powers of ten as Kopia prints them.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let text = if unit == 0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

/// A moment, in the time zone of this machine.
pub fn time(moment: Timestamp) -> String {
    moment.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// The same to the millisecond.
pub fn precise_time(moment: Timestamp) -> String {
    moment.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S.%3f %Z").to_string()
}

/// The type and permissions of an entry in nine letters and one before them, `L` for links as Kopia prints them.
pub fn mode(entry: &DirEntry) -> String {
    let kind = match entry.entry_type {
        EntryType::Directory => 'd',
        EntryType::Symlink => 'L',
        EntryType::Other(_) => '?',
        _ => '-',
    };
    let bits = entry.mode.to_unix();
    let letters = (0..9).map(|i| if bits >> (8 - i) & 1 == 1 { char::from(b"rwxrwxrwx"[i]) } else { '-' });
    std::iter::once(kind).chain(letters).collect()
}

/// One value as JSON, in one line.
pub fn print_json<T: ?Sized + Serialize>(value: &T) -> Result<()> {
    line(&lifeboat_kopia::gojson::to_string(value)?)
}

/// Values as a JSON list, each in a line of its own as it comes: the list may be longer than memory.
pub fn print_json_list<T: Serialize>(values: impl IntoIterator<Item = Result<T>>) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut separator = "[\n ";
    for value in values {
        write!(out, "{separator}{}", lifeboat_kopia::gojson::to_string(&value?)?)?;
        separator = ",\n ";
    }
    match separator {
        "[\n " => writeln!(out, "[]")?,
        _ => writeln!(out, "\n]")?,
    }
    Ok(out.flush()?)
}

/// A line on the standard output; unlike `println!` it does not panic when nobody reads on.
pub fn line(text: &str) -> Result<()> {
    Ok(aside(|| writeln!(io::stdout().lock(), "{text}"))?)
}

/// A line on the standard error output, which may come while a bar is shown there.
pub fn note(text: &str) {
    aside(|| eprintln!("{text}"));
}

/// Whether the standard error output is a terminal whose user has nothing against colours.
pub fn has_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether an error comes from a reader of our output that has gone, such as `head`: no reason to complain.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(io)
}

/// Prints an error with all its causes in one line, coloured on a terminal only.
pub fn print_error(error: &anyhow::Error) {
    match has_colour() {
        true => eprintln!("\u{1b}[1;31merror:\u{1b}[0m {error:#}"),
        false => eprintln!("error: {error:#}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::GoMode;

    #[test]
    fn sizes_are_printed_in_powers_of_ten() {
        for (count, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (20_971_520, "21 MB"), (3_100, "3.1 KB")]
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn modes_have_ten_letters() {
        let entry =
            |entry_type, bits| DirEntry { entry_type, mode: GoMode::from_unix(bits), ..DirEntry::default() };
        assert_eq!(mode(&entry(EntryType::Directory, 0o755)), "drwxr-xr-x");
        assert_eq!(mode(&entry(EntryType::File, 0o640)), "-rw-r-----");
        assert_eq!(mode(&entry(EntryType::Symlink, 0o777)), "Lrwxrwxrwx");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_to_complain_about() {
        let gone = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("cannot print");
        assert!(is_broken_pipe(&gone));
        assert!(!is_broken_pipe(&anyhow::anyhow!("something else")));
    }
}
