//! `snapshot create` of files that do not hold still, on a file system that has them misbehave at the right moment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Ours;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::Random;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

const PASSWORD: &str = "correct horse battery staple";
/// The kernel is to ask again each time.
const NEVER: Duration = Duration::ZERO;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// It is as long as it is said to be, or it is not.
    Found,
    /// It is listed until somebody looks for it in vain.
    Goes,
    /// Only the first look for it is in vain.
    Returns,
    /// It is listed for ever, and every look for it is in vain.
    NeverFound,
    /// It is found and can never be opened.
    NeverOpens,
    /// It is written to while it is read, and stays as long as it is.
    Rewritten,
    /// The second half cannot be read.
    Fails,
}

struct File {
    name: String,
    kind: FileType,
    behaviour: Behaviour,
    /// How long it is said to be.
    size: u64,
    data: Vec<u8>,
}

/// A directory of such files.
struct Misbehaving {
    files: Vec<File>,
    /// Those that were looked for.
    looked_for: Mutex<BTreeSet<usize>>,
    /// Those that were read.
    read: Mutex<BTreeSet<u64>>,
    since: SystemTime,
}

/// One file that behaves, and others that do not.
fn misbehaving() -> Misbehaving {
    let mut files = Vec::new();
    let mut file = |name: &str, behaviour, size: u64, data: &[u8]| {
        let kind = if name.starts_with("folder") { FileType::Directory } else { FileType::RegularFile };
        files.push(File { name: name.to_owned(), kind, behaviour, size, data: data.to_vec() });
    };
    file("calm", Behaviour::Found, 4, b"calm");
    file("grown", Behaviour::Found, 3, b"now longer");
    file("shrunk", Behaviour::Found, 10, b"short");
    file("large", Behaviour::Found, 5 << 20, &Random::new(4).bytes(3 << 20));
    file("returned", Behaviour::Returns, 1, b"x");
    file("rewritten", Behaviour::Rewritten, 5, b"other");
    file("fails", Behaviour::Fails, 100_000, &Random::new(5).bytes(100_000));
    file("fails late", Behaviour::Fails, 6 << 20, &Random::new(6).bytes(6 << 20));
    file("never found", Behaviour::NeverFound, 1, b"x");
    file("never opens", Behaviour::NeverOpens, 1, b"x");
    file("folder never found", Behaviour::NeverFound, 0, b"");
    file("folder gone", Behaviour::Goes, 0, b"");
    for number in 0..12 {
        file(&format!("gone {number:02}"), Behaviour::Goes, 1, b"x");
    }
    Misbehaving { files, looked_for: Mutex::default(), read: Mutex::default(), since: SystemTime::now() }
}

impl Misbehaving {
    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let top = File {
            name: String::new(),
            kind: FileType::Directory,
            behaviour: Behaviour::Found,
            size: 0,
            data: Vec::new(),
        };
        let file = match number.0 {
            1 => &top,
            number => self.files.get(usize::try_from(number).ok()?.checked_sub(2)?)?,
        };
        let is_rewritten =
            file.behaviour == Behaviour::Rewritten && self.read.lock().unwrap().contains(&number.0);
        Some(FileAttr {
            ino: number,
            size: file.size,
            blocks: file.size.div_ceil(512),
            atime: self.since,
            mtime: self.since + Duration::from_secs(u64::from(is_rewritten)),
            ctime: self.since,
            crtime: self.since,
            kind: file.kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn file(&self, number: INodeNo) -> &File {
        &self.files[number.0 as usize - 2]
    }
}

impl Filesystem for Misbehaving {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(position) = self.files.iter().position(|file| *file.name == *name) else {
            return reply.error(Errno::ENOENT);
        };
        let is_first = self.looked_for.lock().unwrap().insert(position);
        let number = INodeNo(position as u64 + 2);
        match (self.files[position].behaviour, self.attributes(number)) {
            (Behaviour::Goes | Behaviour::NeverFound, _) => reply.error(Errno::ENOENT),
            (Behaviour::Returns, _) if is_first => reply.error(Errno::ENOENT),
            (_, Some(attributes)) => reply.entry(&NEVER, &attributes, Generation(0)),
            (_, None) => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&NEVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.file(number).behaviour {
            Behaviour::NeverOpens => reply.error(Errno::ENOENT),
            // Otherwise the kernel reads no more than there is said to be.
            _ => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read.lock().unwrap().insert(number.0);
        let File { data, behaviour, .. } = self.file(number);
        let end = if *behaviour == Behaviour::Fails { data.len() / 2 } else { data.len() };
        let start = end.min(offset as usize);
        match start == end && end < data.len() {
            true => reply.error(Errno::EIO),
            false => reply.data(&data[start..end.min(start + size as usize)]),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if number.0 != 1 {
            return reply.ok();
        }
        let looked_for = self.looked_for.lock().unwrap().clone();
        for (position, file) in self.files.iter().enumerate().skip(offset as usize) {
            let number = position as u64 + 2;
            let is_gone = file.behaviour == Behaviour::Goes && looked_for.contains(&position);
            if !is_gone && reply.add(INodeNo(number), position as u64 + 1, file.kind, &file.name) {
                break;
            }
        }
        reply.ok();
    }
}

struct Place {
    folder: tempfile::TempDir,
    ours: Ours,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), ours: Ours::new(PASSWORD).unwrap() };
        place.ours.create_filesystem(&place.path("repository"), &[]).unwrap();
        std::fs::create_dir(place.path("source")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Backs the files up while they misbehave; each time they do it anew.
    fn back_up(&self) -> Output {
        let source = self.path("source");
        let _mounted = mount(&source);
        // One thread, so that it is known which are named first.
        let words = ["snapshot", "create", "--json", "--parallel=1"].map(Path::new);
        self.ours.try_run(words.into_iter().chain([&*source])).unwrap()
    }
}

fn mount(point: &Path) -> BackgroundSession {
    let session = fuser::Session::new(misbehaving(), point, &Config::default());
    session.and_then(fuser::Session::spawn).expect("it takes root and /dev/fuse")
}

#[test]
fn files_that_do_not_hold_still_are_counted_and_named_and_those_that_stay_listed_are_errors() {
    let place = Place::new();
    let strict = place.back_up();
    let said = String::from_utf8_lossy(&strict.stderr);
    let line = |what: &str| said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{said}"));

    let changed = line("changed while being backed up");
    assert!(changed.starts_with("4 changed"), "{said}");
    assert!(
        ["grown", "shrunk", "large", "rewritten"].iter().all(|name| changed.contains(&format!("{name:?}"))),
        "{said}"
    );
    let vanished = line("vanished before being backed up");
    assert!(vanished.starts_with("13 vanished"), "{said}");
    assert!(vanished.contains("\"folder gone\"") && vanished.contains("\"gone 03\""), "{said}");
    assert!(vanished.ends_with(" and 3 more"), "{said}");

    assert!(!strict.status.success());
    assert!(said.contains("5 entries"), "{said}");
    for name in ["never found", "never opens", "folder never found"] {
        assert!(line(&format!("not backed up: {name:?}")).contains("No such file"), "{said}");
    }
    for name in ["fails", "fails late"] {
        assert!(line(&format!("not backed up: {name:?}")).contains("Input/output error"), "{said}");
    }
    let snapshot: serde_json::Value = serde_json::from_slice(&strict.stdout).unwrap();
    assert_eq!(snapshot["rootEntry"]["summ"]["numFailed"], 5);

    let kopia = Kopia::new(PASSWORD).unwrap();
    kopia.connect_filesystem(&place.path("repository"), &[]).unwrap();
    kopia.set_policy(&["--global", "--ignore-file-errors=true", "--ignore-dir-errors=true"]).unwrap();
    let lenient = place.back_up();
    let said = String::from_utf8_lossy(&lenient.stderr);
    assert!(lenient.status.success() && said.contains("5 errors were ignored"), "{said}");

    // What there was of each when it was opened is there, and nothing else.
    let snapshot: serde_json::Value = serde_json::from_slice(&lenient.stdout).unwrap();
    let restored = place.path("restored");
    place.ours.restore(snapshot["id"].as_str().unwrap(), &restored).unwrap();
    let names: BTreeSet<_> =
        std::fs::read_dir(&restored).unwrap().map(|it| it.unwrap().file_name()).collect();
    let lengths = [
        ("calm", 4),
        ("grown", 3),
        ("large", 3 << 20),
        // It was away for a moment, and is there.
        ("returned", 1),
        ("rewritten", 5),
        ("shrunk", 5),
    ];
    assert_eq!(names, lengths.map(|(name, _)| name.into()).into());
    for (name, length) in lengths {
        assert_eq!(std::fs::metadata(restored.join(name)).unwrap().len(), length, "{name}");
    }
    kopia.verify_snapshots().unwrap();
}
