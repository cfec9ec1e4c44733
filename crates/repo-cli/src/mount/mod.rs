//! Snapshots as a file system that can only be read: FUSE's requests, answered from a repository.
//!
//! Nothing is fetched before somebody asks for it. Snapshots never change, so that the kernel may keep what it was told.

mod data;
mod nodes;

pub use nodes::{Folder, Thing};

use anyhow::Result;
use data::{Children, Data, lock};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyXattr, Request,
};
use lifeboat_budget::Budget;
use lifeboat_kopia::snapshot::{DirEntry, EntryType, ExactTime, SpecialKind, XattrName};
use lifeboat_repository::Repository;
use nodes::{Node, Nodes};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// How long the kernel may rely on what it was told.
const TIME_TO_LIVE: Duration = Duration::from_secs(24 * 3600);
/// How much the kernel may read ahead of a program.
const READ_AHEAD: u32 = 1 << 20;
/// The longest target that a link can have on Linux.
const MAX_LINK: u64 = 4096;
const BLOCK: u32 = 4096;

/// A mounted tree.
pub struct Mounted {
    data: Data,
    nodes: Mutex<Nodes>,
    listings: Mutex<HashMap<u64, Arc<Mutex<Listing>>>>,
    next_listing: AtomicU64,
    /// When it was mounted: the time of what no snapshot has.
    since: SystemTime,
}

/// A directory that is being listed.
struct Listing {
    children: Children,
    /// How many of its entries were taken from `children`.
    position: u64,
    /// One that was taken and did not fit into the answer.
    left: Option<(Vec<u8>, Arc<Thing>)>,
}

impl Mounted {
    /// The tree below `top`.
    pub fn new(repository: Arc<dyn Repository>, budget: Budget, top: Thing) -> Mounted {
        Mounted {
            data: Data::new(repository, budget),
            nodes: Mutex::new(Nodes::new(Arc::new(top))),
            listings: Mutex::new(HashMap::new()),
            next_listing: AtomicU64::new(1),
            since: SystemTime::now(),
        }
    }

    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        lock(&self.nodes).get(number.0).ok_or(Errno::ESTALE)
    }

    fn entry(
        &self,
        number: INodeNo,
        use_it: impl FnOnce(&DirEntry) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match &*self.node(number)?.thing {
            Thing::Entry { entry, .. } => use_it(entry),
            Thing::Folder(_) => Err(Errno::EINVAL),
        }
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let directory = self.node(parent)?.thing;
        if !directory.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let child = self.data.child(parent.0, &directory, name.as_bytes()).map_err(failed)?;
        let child = child.ok_or(Errno::ENOENT)?;
        let number = lock(&self.nodes).tell(parent.0, name.as_bytes(), &child);
        Ok(self.attributes(number, &child))
    }

    fn attributes(&self, number: u64, thing: &Thing) -> FileAttr {
        let folder = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: FileType::Directory,
            perm: 0o555,
            // Of directories: that it is not known how many there are.
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        };
        let Thing::Entry { entry, .. } = thing else { return folder };
        let extras = entry.extras.as_deref();
        let time = system_time(entry.file_time());
        let size = if entry.is_dir() { 0 } else { entry.size };
        let names = extras.and_then(|extras| extras.hard_link.as_ref()).map_or(1, |link| link.names.max(1));
        let device = extras.and_then(|extras| extras.device.as_ref());
        FileAttr {
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: kind(entry),
            perm: (entry.mode.to_unix() & 0o7777) as u16,
            nlink: u32::try_from(names).unwrap_or(u32::MAX),
            uid: entry.uid,
            gid: entry.gid,
            // The kernel's protocol has 32 bits for it.
            rdev: device.map_or(0, |device| rustix::fs::makedev(device.major, device.minor) as u32),
            ..folder
        }
    }

    fn open_listing(&self, number: INodeNo) -> Result<u64, Errno> {
        let children = self.data.children(&self.node(number)?.thing).map_err(failed)?;
        let handle = self.next_listing.fetch_add(1, Ordering::Relaxed);
        let listing = Listing { children, position: 0, left: None };
        lock(&self.listings).insert(handle, Arc::new(Mutex::new(listing)));
        Ok(handle)
    }

    /// Hands the entries of a directory from `offset` on to `add`, each with the offset of the next one, until `add`
    /// says that there is no room.
    fn list(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut add: impl FnMut(&FileAttr, u64, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        for (at, (name, number)) in (0..).zip([(".", number.0), ("..", node.parent)]) {
            let Some(there) = lock(&self.nodes).get(number).filter(|_| offset <= at) else { continue };
            if add(&self.attributes(number, &there.thing), at + 1, OsStr::new(name)) {
                return Ok(());
            }
        }
        let listing = lock(&self.listings).get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        let mut listing = lock(&listing);
        let wanted = offset.saturating_sub(2);
        if wanted < listing.position {
            *listing = Listing {
                children: self.data.children(&node.thing).map_err(failed)?,
                position: 0,
                left: None,
            };
        }
        while let Some((name, child)) = listing.next().map_err(failed)? {
            let at = listing.position;
            listing.position += 1;
            if at < wanted {
                continue;
            }
            let told = lock(&self.nodes).tell(number.0, &name, &child);
            if add(&self.attributes(told, &child), at + 3, OsStr::from_bytes(&name)) {
                lock(&self.nodes).forget(told, 1);
                listing.position = at;
                listing.left = Some((name, child));
                break;
            }
        }
        Ok(())
    }
}

impl Listing {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Arc<Thing>)>> {
        match self.left.take() {
            Some(left) => Ok(Some(left)),
            None => self.children.next().transpose(),
        }
    }
}

/// Says what went wrong: the program that asked only hears that something did.
fn failed(error: anyhow::Error) -> Errno {
    tracing::error!("{error:#}");
    Errno::EIO
}

fn kind(entry: &DirEntry) -> FileType {
    let special = entry.extras.as_ref().and_then(|extras| extras.kind.as_ref());
    match (&entry.entry_type, special) {
        (EntryType::Directory, _) => FileType::Directory,
        (EntryType::Symlink, _) => FileType::Symlink,
        (_, Some(SpecialKind::Fifo)) => FileType::NamedPipe,
        (_, Some(SpecialKind::Socket)) => FileType::Socket,
        (_, Some(SpecialKind::CharDevice)) => FileType::CharDevice,
        (_, Some(SpecialKind::BlockDevice)) => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn system_time(time: ExactTime) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
        false => SystemTime::UNIX_EPOCH.checked_add(seconds),
    };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into())));
    exact.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Answers what asks for an extended attribute or a list of them: with its size, if only that is wanted.
fn answer(value: &[u8], room: u32, reply: ReplyXattr) {
    match (u32::try_from(value.len()), room) {
        (Ok(length), 0) => reply.size(length),
        (Ok(length), room) if length <= room => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // What the kernel does not know it does without.
        let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        if let Err(most) = config.set_max_readahead(READ_AHEAD) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(attributes) => reply.entry(&TIME_TO_LIVE, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, times: u64) {
        lock(&self.nodes).forget(number.0, times);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(number) {
            Ok(node) => reply.attr(&TIME_TO_LIVE, &self.attributes(number.0, &node.thing)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let mut target = Vec::new();
        let read = self.entry(number, |entry| {
            target = self.data.read_small(entry, MAX_LINK).map_err(failed)?;
            Ok(())
        });
        match read {
            Ok(()) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = Vec::new();
        let read = self.entry(number, |entry| {
            let rest = entry.size.saturating_sub(offset).min(size.into());
            bytes.resize(rest as usize, 0);
            let count = self.data.read(number.0, entry, offset, &mut bytes).map_err(failed)?;
            bytes.truncate(count);
            Ok(())
        });
        match read {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_listing(number) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut told = Vec::new();
        let listed = self.list(number, handle, offset, |attributes, next, name| {
            let is_full = reply.add(attributes.ino, next, attributes.kind, name);
            // Here, unlike below, the kernel only hears the number and has nothing to forget.
            if !is_full && next > 2 {
                told.push(attributes.ino);
            }
            is_full
        });
        told.iter().for_each(|number| lock(&self.nodes).forget(number.0, 1));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(number, handle, offset, |attributes, next, name| {
            reply.add(attributes.ino, next, name, &TIME_TO_LIVE, attributes, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.listings).remove(&handle.0);
        reply.ok();
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let Ok(node) = self.node(number) else { return reply.error(Errno::ESTALE) };
        let name = XattrName(name.as_bytes().to_vec());
        let value = match &*node.thing {
            Thing::Entry { entry, .. } => entry.extras.as_ref().and_then(|extras| extras.xattrs.get(&name)),
            Thing::Folder(_) => None,
        };
        match value {
            Some(value) => answer(&value.0, size, reply),
            None => reply.error(Errno::ENODATA),
        }
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let Ok(node) = self.node(number) else { return reply.error(Errno::ESTALE) };
        let mut names = Vec::new();
        if let Thing::Entry { entry, .. } = &*node.thing
            && let Some(extras) = &entry.extras
        {
            for name in extras.xattrs.keys() {
                names.extend_from_slice(&name.0);
                names.push(0);
            }
        }
        answer(&names, size, reply);
    }
}
