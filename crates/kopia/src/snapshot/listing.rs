//! Directory listings, written and read entry by entry: a directory with a million entries is never in memory.
//!
//! Both sides do no input or output themselves. The writer hands out bytes, the parser is fed with bytes, so that
//! they fit into asynchronous pipelines as well as into plain loops.

use super::{DirEntry, DirSummary, RawEntry};
use crate::{Error, Result, gojson};
use std::io::Read;
use std::mem;
use std::ops::Range;

const STREAM: &str = "kopia:directory";

/// The longest single value (an entry with its summary) in a listing; more is taken for damage or an attack.
pub const MAX_VALUE_LEN: usize = 64 << 20;

/// Writes a listing byte for byte as Kopia does.
#[derive(Debug, Clone, Default)]
pub struct DirWriter {
    out: Vec<u8>,
    has_entries: bool,
    last: Option<DirEntry>,
}

/// Appends an entry as it looks in a listing.
pub fn encode_entry(entry: &DirEntry, out: &mut Vec<u8>) -> Result<()> {
    gojson::write(out, entry).map_err(|source| not_encodable(&entry.name.to_string(), &source))
}

impl DirWriter {
    /// An empty listing.
    pub fn new() -> Self {
        DirWriter::default()
    }

    /// Adds an entry. They come in [listing order](DirEntry::listing_order): the writer does not sort.
    ///
    /// Names with the replacement character may come in any order: a listing is sorted by the bytes of the files'
    /// real names, which are not known any more when it is written again.
    pub fn push(&mut self, entry: &DirEntry) -> Result<()> {
        if let Some(last) = &self.last {
            let ordered = last.listing_order(entry).is_le();
            let replaced = last.name.is_replaced() || entry.name.is_replaced();
            if !ordered && (!replaced || entry.is_dir() && !last.is_dir()) {
                let text = format!("entry {:?} of a listing came after {:?}", entry.name, last.name);
                return Err(Error::Invalid(text));
            }
        }
        self.separate();
        encode_entry(entry, &mut self.out)?;
        self.last = Some(DirEntry {
            name: entry.name.clone(),
            entry_type: entry.entry_type.clone(),
            ..DirEntry::default()
        });
        Ok(())
    }

    /// Adds entries that were [encoded](encode_entry) before, with commas between them. Their order is the caller's
    /// affair.
    pub fn push_encoded(&mut self, entries: &[u8]) {
        if !entries.is_empty() {
            self.separate();
            self.out.extend_from_slice(entries);
            self.last = None;
        }
    }

    /// What goes before the next entry.
    fn separate(&mut self) {
        match std::mem::replace(&mut self.has_entries, true) {
            true => self.out.push(b','),
            false => self.open(b"["),
        }
    }

    fn open(&mut self, entries: &[u8]) {
        self.out.extend_from_slice(b"{\"stream\":\"kopia:directory\",\"entries\":");
        self.out.extend_from_slice(entries);
    }

    /// How many bytes [`take`](Self::take) would return.
    pub fn buffered(&self) -> usize {
        self.out.len()
    }

    /// Takes the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.out)
    }

    /// Ends the listing and returns the rest of its bytes.
    pub fn finish(mut self, summary: &DirSummary) -> Result<Vec<u8>> {
        match self.has_entries {
            false => self.open(b"null"),
            true => self.out.push(b']'),
        }
        self.out.extend_from_slice(b",\"summary\":");
        gojson::write(&mut self.out, summary).map_err(|source| not_encodable("summary", &source))?;
        self.out.extend_from_slice(b"}\n");
        Ok(self.out)
    }
}

fn not_encodable(what: &str, source: &serde_json::Error) -> Error {
    Error::Invalid(format!("{what:?} cannot be written into a directory listing: {source}"))
}

/// Where in the listing the parser is: what it expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    FirstField,
    Field,
    Colon,
    Value,
    FieldEnd,
    FirstEntry,
    Entry,
    EntryEnd,
    Done,
}

/// The fields of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Stream,
    Entries,
    Summary,
    Other,
}

/// Finds the end of a JSON value without understanding it; remembers where it stopped, so that a value that
/// arrives in many pieces is looked at once.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Frame {
    /// The length of the value at the start of `bytes`, or `None` if it is not all there yet.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(&byte) = bytes.get(self.scanned) {
            self.scanned += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                if self.in_string || self.depth > 0 {
                    continue;
                }
                return Some(self.scanned);
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' if self.depth == 1 => return Some(self.scanned),
                // A number or a word ends before what follows it.
                b'}' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' if self.depth == 0 => {
                    return Some(self.scanned - 1);
                }
                _ => {}
            }
        }
        None
    }
}

/// Takes a listing apart as its bytes arrive.
///
/// Feed bytes, take entries until there is none, repeat; then [`finish`](Self::finish). An entry that is not
/// understood is an error for itself: the next call goes on behind it. After an error in the structure around the
/// entries every call fails.
#[derive(Debug)]
pub struct DirParser {
    object: String,
    bytes: Vec<u8>,
    at: usize,
    frame: Frame,
    state: State,
    field: Field,
    stream_seen: bool,
    summary: Option<DirSummary>,
    broken: Option<String>,
}

impl DirParser {
    /// A parser for the listing in object `object`, which is named in errors.
    pub fn new(object: impl Into<String>) -> Self {
        DirParser {
            object: object.into(),
            bytes: Vec::new(),
            at: 0,
            frame: Frame::default(),
            state: State::Open,
            field: Field::Other,
            stream_seen: false,
            summary: None,
            broken: None,
        }
    }

    /// Adds the next bytes of the listing.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.state == State::Done || self.broken.is_some() {
            return;
        }
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next entry; `None` if more bytes are needed or the listing is at its end.
    pub fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        let entry = self.next_range()?.map(|range| RawEntry::new(&self.bytes[range]).parse());
        entry.transpose().map_err(|reason| self.damaged(reason))
    }

    /// The same without taking it apart.
    pub fn next_raw(&mut self) -> Result<Option<RawEntry<'_>>> {
        let range = self.next_range()?;
        Ok(range.map(|range| RawEntry::new(&self.bytes[range])))
    }

    /// Where in the bytes the next entry lies.
    fn next_range(&mut self) -> Result<Option<Range<usize>>> {
        if let Some(reason) = &self.broken {
            return Err(self.damaged(reason.clone()));
        }
        loop {
            match self.step() {
                Ok(Step::Continue) => {}
                Ok(Step::NeedBytes) => return Ok(None),
                Ok(Step::Entry(range)) => return Ok(Some(range)),
                Err(reason) => {
                    self.broken = Some(reason.clone());
                    return Err(self.damaged(reason));
                }
            }
        }
    }

    /// Whether the structure around the entries is wrong, so that no more of them can be had.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The summary of the directory, once the whole listing has been read.
    pub fn finish(self) -> Result<Option<DirSummary>> {
        match self.broken.clone() {
            Some(reason) => Err(self.damaged(reason)),
            None if self.state != State::Done => Err(self.damaged("the directory listing ends early")),
            None if !self.stream_seen => Err(self.damaged("it is not a directory listing")),
            None => Ok(self.summary),
        }
    }

    fn damaged(&self, reason: impl Into<String>) -> Error {
        Error::DamagedObject { id: self.object.clone(), reason: reason.into() }
    }

    fn step(&mut self) -> std::result::Result<Step, String> {
        if self.state == State::Done {
            return Ok(Step::NeedBytes);
        }
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.bytes[self.at..].iter().take_while(|byte| blank(byte)).count();
        let Some(&next) = self.bytes.get(self.at) else { return Ok(Step::NeedBytes) };
        match (self.state, next) {
            (State::Open, b'{') => self.skip(State::FirstField),
            (State::FirstField | State::FieldEnd, b'}') => self.skip(State::Done),
            (State::FirstField | State::Field, b'"') => self.read_name(),
            (State::Colon, b':') => self.skip(State::Value),
            (State::Value, b'[') if self.field == Field::Entries => self.skip(State::FirstEntry),
            (State::Value, _) => self.read_value(),
            (State::FieldEnd, b',') => self.skip(State::Field),
            (State::FirstEntry | State::EntryEnd, b']') => self.skip(State::FieldEnd),
            (State::FirstEntry | State::Entry, _) => self.read_entry(),
            (State::EntryEnd, b',') => self.skip(State::Entry),
            _ => Err(format!("the directory listing is not valid JSON: unexpected byte {next:#04x}")),
        }
    }

    fn skip(&mut self, state: State) -> std::result::Result<Step, String> {
        self.at += 1;
        self.state = state;
        Ok(Step::Continue)
    }

    /// The range of the value that begins here, once it is complete; the parser stands behind it then.
    fn frame(&mut self) -> std::result::Result<Option<Range<usize>>, String> {
        let Some(len) = self.frame.end(&self.bytes[self.at..]) else {
            if self.bytes.len() - self.at > MAX_VALUE_LEN {
                return Err(format!("a value in the directory listing is longer than {MAX_VALUE_LEN} bytes"));
            }
            return Ok(None);
        };
        self.frame = Frame::default();
        let value = self.at..self.at + len;
        self.at = value.end;
        Ok(Some(value))
    }

    /// The same for an entry that is plain and has nothing beyond its fields: that takes less than looking for the end of
    /// just any value.
    fn plain(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        if self.frame.scanned > 0 {
            return None;
        }
        let plain =
            RawEntry::new(&self.bytes[start..]).plain().filter(|plain| plain.rest.starts_with(b"}"))?;
        self.at = self.bytes.len() - plain.rest.len() + 1;
        Some(start..self.at)
    }

    fn read_name(&mut self) -> std::result::Result<Step, String> {
        let Some(name) = self.frame()? else { return Ok(Step::NeedBytes) };
        self.field = match parse_json::<String>(&self.bytes[name])?.as_str() {
            "stream" => Field::Stream,
            "entries" => Field::Entries,
            "summary" => Field::Summary,
            _ => Field::Other,
        };
        self.state = State::Colon;
        Ok(Step::Continue)
    }

    fn read_value(&mut self) -> std::result::Result<Step, String> {
        let Some(value) = self.frame()? else { return Ok(Step::NeedBytes) };
        let value = &self.bytes[value];
        match self.field {
            Field::Stream if parse_json::<String>(value)? == STREAM => self.stream_seen = true,
            Field::Stream => return Err("it is not a directory listing".to_owned()),
            Field::Entries => parse_json::<()>(value)?,
            Field::Summary => self.summary = parse_json(value)?,
            Field::Other => drop(parse_json::<serde::de::IgnoredAny>(value)?),
        }
        self.state = State::FieldEnd;
        Ok(Step::Continue)
    }

    fn read_entry(&mut self) -> std::result::Result<Step, String> {
        let Some(entry) = self.plain().map_or_else(|| self.frame(), |entry| Ok(Some(entry)))? else {
            return Ok(Step::NeedBytes);
        };
        if entry.is_empty() {
            return Err("the directory listing is not valid JSON: an entry is missing".to_owned());
        }
        self.state = State::EntryEnd;
        Ok(Step::Entry(entry))
    }
}

/// What one step of the parser brought.
enum Step {
    Continue,
    NeedBytes,
    /// Where in the bytes an entry lies.
    Entry(Range<usize>),
}

pub(super) fn parse_json<T: serde::de::DeserializeOwned>(json: &[u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(json)
        .map_err(|source| format!("the directory listing is not understood: {source}"))
}

/// The entries of a listing that comes from a reader.
#[derive(Debug)]
pub struct DirEntries<R> {
    reader: R,
    parser: DirParser,
    buffer: Box<[u8]>,
    ended: bool,
}

/// How much is read at once.
const READ_LEN: usize = 64 << 10;

impl<R: Read> DirEntries<R> {
    /// The entries of the listing of object `object`, whose bytes `reader` delivers.
    pub fn new(object: impl Into<String>, reader: R) -> Self {
        DirEntries::with_length(object, READ_LEN as u64, reader)
    }

    /// The same if it is known how long the listing is: most are short and need not have all the room that is made for
    /// long ones.
    pub fn with_length(object: impl Into<String>, length: u64, reader: R) -> Self {
        let room = length.clamp(1, READ_LEN as u64) as usize;
        let buffer = vec![0; room].into_boxed_slice();
        DirEntries { reader, parser: DirParser::new(object), buffer, ended: false }
    }

    /// The summary, once the iterator has ended.
    pub fn finish(self) -> Result<Option<DirSummary>> {
        self.parser.finish()
    }

    /// The next entry without taking it apart; the same as the iterator's, and they can be mixed.
    pub fn next_raw(&mut self) -> Result<Option<RawEntry<'_>>> {
        let range = self.next_range().transpose()?;
        Ok(range.map(|range| RawEntry::new(&self.parser.bytes[range])))
    }

    fn next_range(&mut self) -> Option<Result<Range<usize>>> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        // A listing that is not one ends.
        self.ended |= matches!(next, Ok(None)) || self.parser.broken.is_some();
        next.transpose()
    }

    fn advance(&mut self) -> Result<Option<Range<usize>>> {
        loop {
            if let Some(range) = self.parser.next_range()? {
                return Ok(Some(range));
            }
            if self.parser.state == State::Done {
                return Ok(None);
            }
            match self.reader.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(len) => self.parser.feed(&self.buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    return Err(self.parser.damaged(format!("it cannot be read: {error}")));
                }
            }
        }
    }
}

impl<R: Read> Iterator for DirEntries<R> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        let range = match self.next_range()? {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        // An entry that is not understood is an error for itself: the next call goes on behind it.
        let entry = RawEntry::new(&self.parser.bytes[range]).parse();
        Some(entry.map_err(|reason| self.parser.damaged(reason)))
    }
}
