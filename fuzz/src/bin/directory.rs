//! Directory listings: no bytes make the parser panic, and it does not matter in which pieces they come.
#![no_main]

use lifeboat_kopia::snapshot::DirParser;

/// The entries up to the first error, and how the listing ended.
fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, bool) {
    let mut parser = DirParser::new("k00");
    let mut entries = Vec::new();
    for piece in pieces {
        parser.feed(piece);
        loop {
            match parser.next_entry() {
                Ok(Some(entry)) => entries.push(format!("{entry:?}")),
                Ok(None) => break,
                Err(_) => return (entries, false),
            }
        }
    }
    (entries, parser.finish().is_ok())
}

libfuzzer_sys::fuzz_target!(|listing: &[u8]| {
    assert_eq!(parse(std::iter::once(listing)), parse(listing.chunks(7)));
});
