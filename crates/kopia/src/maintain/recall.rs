//! What nodes refer to, remembered on this machine between runs. A node never changes, so what one run has read the
//! next need not read again: only what is new is.
//!
//! The file is sealed with the keys of the repository, block by block. What is damaged, belongs to another repository
//! or comes from somebody else is not believed; then everything is read again, and remembered anew.

use super::expand::{Found, Node};
use crate::repo::Repository;
use crate::sealer::Sealer;
use crate::sort::{Merge, Sorted};
use crate::{Environment, Error, Result};
use lifeboat_index::ContentId;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Changes whenever nodes are taken apart in another way: what was remembered before is then forgotten.
const VERSION: &[u8; 8] = b"recall-1";
const FILE_NAME: &str = "recall";
/// The version, and what tells the blocks of this file from those of others.
const HEADER: u64 = 16;
/// Where the table of the blocks begins, at the end of the file.
const FOOTER: u64 = 8;
/// The plain bytes of a block.
const BLOCK: usize = 64 << 10;
/// No file of ours is longer than what this many blocks take.
const MAX_TABLE: u64 = 256 << 20;
/// The number that the table is sealed under.
const TABLE: u64 = u64::MAX;
/// What a link leads to.
const CONTENT: u8 = 0;
const NODE: u8 = 1;
const END: u8 = 255;

/// What a node refers to, as *links*: each has the node, and a content or node that it refers to. The last link of a
/// node says that it is the last: without it, some may be missing.
#[derive(Debug, Clone)]
pub(super) struct Links {
    /// What all of them begin with.
    start: Vec<u8>,
}

impl Links {
    pub(super) fn of(node: &[u8]) -> Self {
        // Keys of nodes are far shorter than 255 bytes.
        let start = [&[node.len() as u8], node].concat();
        Links { start }
    }

    fn to(&self, kind: u8, key: &[u8]) -> Vec<u8> {
        [&self.start, &[kind][..], key].concat()
    }

    pub(super) fn to_content(&self, content: &ContentId) -> Vec<u8> {
        self.to(CONTENT, content.key())
    }

    pub(super) fn to_node(&self, node: &Node) -> Vec<u8> {
        self.to(NODE, &node.key())
    }

    pub(super) fn end(&self) -> Vec<u8> {
        self.to(END, &[])
    }
}

/// Where a repository's file is.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    folder: PathBuf,
    sealer: Arc<Sealer>,
    environment: Environment,
}

impl Shelf {
    /// The place for what belongs to this repository, if it has one on this machine.
    pub(super) fn of(repository: &Repository) -> Option<Shelf> {
        let folder = repository.cache_folder()?;
        let sealer = repository.contents().sealer().clone();
        Some(Shelf { folder, sealer, environment: repository.environment().clone() })
    }

    /// A small file that [`put`](Self::put) wrote; `None` if there is none that can be believed.
    pub(super) fn get(&self, name: &str, seal: &[u8; 16]) -> Option<Vec<u8>> {
        let sealed = std::fs::read(self.folder.join(name)).ok()?;
        self.sealer.open_with_id(seal, &sealed).ok()
    }

    /// Writes a small file.
    pub(super) fn put(&self, name: &str, seal: &[u8; 16], plain: &[u8]) -> Result<()> {
        let sealed = self.sealer.seal_with_id(seal, plain)?;
        let mut file = self.create()?;
        file.write_all(&sealed).map_err(|source| self.failed(source))?;
        self.keep(file, name)
    }

    fn failed(&self, source: std::io::Error) -> Error {
        let path = self.folder.display().to_string();
        Error::LocalFile { action: "write what was marked to", path, source }
    }

    fn create(&self) -> Result<tempfile::NamedTempFile> {
        let create = || {
            std::fs::create_dir_all(&self.folder)?;
            tempfile::NamedTempFile::new_in(&self.folder)
        };
        create().map_err(|source| self.failed(source))
    }

    /// Gives a file that is complete its name.
    fn keep(&self, file: tempfile::NamedTempFile, name: &str) -> Result<()> {
        file.persist(self.folder.join(name)).map_err(|error| self.failed(error.error))?;
        Ok(())
    }

    /// What earlier runs remembered; `None` if there is nothing that can be believed.
    pub(super) fn open(&self) -> Option<Arc<Memory>> {
        let file = File::open(self.folder.join(FILE_NAME)).ok()?;
        let memory = Memory::read(file, self.sealer.clone());
        if memory.is_none() {
            tracing::info!("what was remembered of earlier runs cannot be used; all directories are read");
        }
        memory.map(Arc::new)
    }

    /// Remembers what the nodes in `reached` refer to, according to the links in `fresh` and to what was known, and
    /// nothing else.
    pub(super) fn save(&self, reached: &Sorted, known: Option<&Arc<Memory>>, fresh: &Sorted) -> Result<()> {
        let failed = |source| self.failed(source);
        let temporary = self.create()?;
        let id = self.environment.random_array()?;
        let mut writer = Writer::new(BufWriter::new(temporary), &self.sealer, id).map_err(failed)?;
        let mut known = known.map(Recall::new);
        let mut fresh = Group::start(fresh.read()?)?;
        let mut reached = reached.read()?;
        while reached.advance()? {
            let Links { start } = Links::of(reached.key());
            writer.nodes += 1;
            fresh.seek(&start)?;
            if fresh.is_within(&start) {
                while fresh.is_within(&start) {
                    writer.push(fresh.links.key()).map_err(failed)?;
                    fresh.advance()?;
                }
                continue;
            }
            let Some(known) = &mut known else { continue };
            known.seek(&start);
            while known.is_within(&start) {
                writer.push(&known.link).map_err(failed)?;
                known.advance();
            }
        }
        let temporary = writer.finish().map_err(failed)?;
        self.keep(temporary, FILE_NAME)
    }
}

/// Links that come from a sorter.
struct Group {
    links: Merge,
    any: bool,
}

impl Group {
    fn start(mut links: Merge) -> Result<Self> {
        let any = links.advance()?;
        Ok(Group { links, any })
    }

    fn advance(&mut self) -> Result<()> {
        self.any = self.links.advance()?;
        Ok(())
    }

    /// Goes forward to links that begin with `start`.
    fn seek(&mut self, start: &[u8]) -> Result<()> {
        while self.any && self.links.key() < start {
            self.advance()?;
        }
        Ok(())
    }

    fn is_within(&self, start: &[u8]) -> bool {
        self.any && self.links.key().starts_with(start)
    }
}

/// A file that was written earlier.
#[derive(Debug)]
pub(super) struct Memory {
    file: File,
    sealer: Arc<Sealer>,
    id: [u8; 8],
    blocks: Vec<Block>,
    /// How many nodes it has.
    pub(super) nodes: u64,
}

/// Where a block lies, and what it begins with.
#[derive(Debug)]
struct Block {
    first: Box<[u8]>,
    start: u64,
    len: usize,
}

/// What a block is sealed under.
fn seal_id(file: [u8; 8], number: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&file);
    id[8..].copy_from_slice(&number.to_be_bytes());
    id
}

impl Memory {
    fn read(file: File, sealer: Arc<Sealer>) -> Option<Memory> {
        let len = file.metadata().ok()?.len();
        let mut header = [0; HEADER as usize];
        file.read_exact_at(&mut header, 0).ok()?;
        let id = *header.strip_prefix(VERSION)?.first_chunk()?;
        let table_end = len.checked_sub(FOOTER)?;
        let mut footer = [0; FOOTER as usize];
        file.read_exact_at(&mut footer, table_end).ok()?;
        let start = u64::from_be_bytes(*footer.first_chunk()?);
        let table_len = table_end.checked_sub(start).filter(|len| *len <= MAX_TABLE)?;
        let mut sealed = vec![0; table_len as usize];
        file.read_exact_at(&mut sealed, start).ok()?;
        let table = sealer.open_with_id(&seal_id(id, TABLE), &sealed).ok()?;
        let (nodes, mut rest) = table.split_first_chunk()?;
        let nodes = u64::from_be_bytes(*nodes);
        let mut blocks = Vec::new();
        while let Some((start, after)) = rest.split_first_chunk() {
            let (len, after) = after.split_first_chunk()?;
            let (first_len, after) = after.split_first()?;
            let (first, after) = after.split_at_checked(usize::from(*first_len))?;
            let (start, len) = (u64::from_be_bytes(*start), u32::from_be_bytes(*len) as usize);
            blocks.push(Block { first: first.into(), start, len });
            rest = after;
        }
        Some(Memory { file, sealer, id, blocks, nodes })
    }

    fn block(&self, place: usize) -> Option<Vec<u8>> {
        let block = self.blocks.get(place)?;
        let mut sealed = vec![0; block.len];
        self.file.read_exact_at(&mut sealed, block.start).ok()?;
        self.sealer.open_with_id(&seal_id(self.id, place as u64), &sealed).ok()
    }
}

/// Looks up nodes that come in ascending order.
#[derive(Debug)]
pub(super) struct Recall {
    memory: Arc<Memory>,
    /// The block in memory, and where in it the next link begins.
    place: usize,
    block: Vec<u8>,
    next: usize,
    /// The current link; empty at the end, and once something could not be read.
    link: Vec<u8>,
}

impl Recall {
    pub(super) fn new(memory: &Arc<Memory>) -> Self {
        let mut recall =
            Recall { memory: memory.clone(), place: 0, block: Vec::new(), next: 0, link: Vec::new() };
        recall.load(0);
        recall
    }

    /// Hands on what a node refers to; `false` if not all of it is known.
    pub(super) fn expand(&mut self, node: &Node, found: &mut dyn Found) -> Result<bool> {
        let Links { start } = Links::of(&node.key());
        self.seek(&start);
        while self.is_within(&start) {
            match self.link[start.len()..].split_first() {
                Some((&CONTENT, key)) => {
                    found.content(ContentId::from_key(key).map_err(|e| Error::Worker(e.to_string()))?)?;
                }
                Some((&NODE, key)) => found.node(Node::from_key(key)?)?,
                Some((&END, [])) => return Ok(true),
                _ => return Ok(false),
            }
            self.advance();
        }
        Ok(false)
    }

    /// Goes to the beginning of a block.
    fn load(&mut self, place: usize) {
        (self.place, self.next) = (place, 0);
        self.block = self.memory.block(place).unwrap_or_default();
        self.link.clear();
        self.advance();
    }

    /// Goes to the next link.
    fn advance(&mut self) {
        if self.next >= self.block.len() {
            self.link.clear();
            // A block that could not be read is empty, and nothing is known beyond it.
            if self.next > 0 && self.place + 1 < self.memory.blocks.len() {
                self.load(self.place + 1);
            }
            return;
        }
        let record = self.block.get(self.next..).and_then(|rest| rest.split_first_chunk::<2>());
        let new = record.and_then(|([shared, len], rest)| Some((*shared, rest.get(..usize::from(*len))?)));
        match new {
            Some((shared, rest)) if usize::from(shared) <= self.link.len() => {
                self.link.truncate(shared.into());
                self.link.extend_from_slice(rest);
                self.next += 2 + rest.len();
            }
            _ => (self.block, self.link, self.next) = (Vec::new(), Vec::new(), 0),
        }
    }

    /// Goes forward to links that begin with `start`, reading only the block that can hold the first of them.
    fn seek(&mut self, start: &[u8]) {
        let later = self.memory.blocks.get(self.place + 1..).unwrap_or_default();
        let skip = later.partition_point(|block| *block.first <= *start);
        if skip > 0 {
            self.load(self.place + skip);
        }
        while !self.link.is_empty() && self.link.as_slice() < start {
            self.advance();
        }
    }

    fn is_within(&self, start: &[u8]) -> bool {
        self.link.starts_with(start)
    }
}

/// Writes links that come in order.
struct Writer<'a> {
    file: BufWriter<tempfile::NamedTempFile>,
    sealer: &'a Sealer,
    id: [u8; 8],
    block: Vec<u8>,
    last: Vec<u8>,
    written: u64,
    blocks: Vec<Block>,
    nodes: u64,
}

impl<'a> Writer<'a> {
    fn new(
        mut file: BufWriter<tempfile::NamedTempFile>,
        sealer: &'a Sealer,
        id: [u8; 8],
    ) -> std::io::Result<Self> {
        file.write_all(VERSION)?;
        file.write_all(&id)?;
        let (block, last, blocks) = (Vec::with_capacity(BLOCK), Vec::new(), Vec::new());
        Ok(Writer { file, sealer, id, block, last, written: HEADER, blocks, nodes: 0 })
    }

    fn push(&mut self, link: &[u8]) -> std::io::Result<()> {
        if self.block.len() + 2 + link.len() > BLOCK {
            self.write_block()?;
        }
        if self.block.is_empty() {
            self.last.clear();
            self.blocks.push(Block { first: link.into(), start: self.written, len: 0 });
        }
        let shared = link.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        let rest = &link[shared..];
        // Links are shorter than 255 bytes.
        self.block.extend([shared as u8, rest.len() as u8]);
        self.block.extend_from_slice(rest);
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        Ok(())
    }

    fn write_block(&mut self) -> std::io::Result<()> {
        let Some(number) = self.blocks.len().checked_sub(1) else { return Ok(()) };
        let block = std::mem::take(&mut self.block);
        let len = self.write_sealed(number as u64, &block)?;
        if let Some(block) = self.blocks.last_mut() {
            block.len = len;
        }
        self.written += len as u64;
        Ok(())
    }

    fn write_sealed(&mut self, number: u64, plain: &[u8]) -> std::io::Result<usize> {
        let sealed = self.sealer.seal_with_id(&seal_id(self.id, number), plain);
        let sealed = sealed.map_err(|error| std::io::Error::other(error.to_string()))?;
        self.file.write_all(&sealed)?;
        Ok(sealed.len())
    }

    fn finish(mut self) -> std::io::Result<tempfile::NamedTempFile> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        let mut table = self.nodes.to_be_bytes().to_vec();
        for Block { first, start, len } in &self.blocks {
            table.extend(start.to_be_bytes());
            table.extend((*len as u32).to_be_bytes());
            table.push(first.len() as u8);
            table.extend_from_slice(first);
        }
        self.write_sealed(TABLE, &table)?;
        self.file.write_all(&self.written.to_be_bytes())?;
        self.file.into_inner().map_err(std::io::IntoInnerError::into_error)
    }
}
