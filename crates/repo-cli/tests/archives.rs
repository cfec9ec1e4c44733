//! Restores into archives, beside those of the real kopia.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::{Context, Result};
use common::Ours;
use lifeboat_testkit::cgroup::run_limited;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::Random;
use rustix::fs::{FileType, Mode, XattrFlags};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];

struct Place {
    folder: TempDir,
    ours: Ours,
    kopia: Kopia,
}

impl Place {
    fn new() -> Result<Place> {
        let place =
            Place { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)?, kopia: Kopia::new(PASSWORD)? };
        place.ours.create_filesystem(&place.path("repository"), &IDENTITY)?;
        place.kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
        fs::create_dir(place.path("source"))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// Files, directories and links of all sizes, times, modes and names that both programs keep.
    fn plant(&self) -> Result<()> {
        let source = self.source();
        let long = format!("{}/{}", "d".repeat(80), "e".repeat(80));
        fs::create_dir_all(source.join(&long))?;
        fs::create_dir(source.join("empty"))?;
        let mut random = Random::new(3);
        let files = [
            ("none".to_owned(), 0),
            ("small".to_owned(), 700),
            ("grüße 🚢".to_owned(), 20),
            ("large".to_owned(), 9 << 20),
            (format!("{long}/{}", "f".repeat(90)), 1000),
        ];
        for (number, (name, length)) in files.iter().enumerate() {
            fs::write(source.join(name), random.bytes(*length))?;
            let modified = Duration::new(1_000_000_000 + number as u64 * 86_401, 250_000_000);
            let file = File::options().write(true).open(source.join(name))?;
            file.set_modified(SystemTime::UNIX_EPOCH + modified)?;
        }
        fs::set_permissions(source.join("small"), fs::Permissions::from_mode(0o4751))?;
        fs::set_permissions(source.join("empty"), fs::Permissions::from_mode(0o1777))?;
        std::os::unix::fs::symlink("small", source.join("link"))?;
        std::os::unix::fs::symlink(&long, source.join("long link"))?;
        std::os::unix::fs::chown(source.join("small"), Some(4_000_000), Some(77))?;
        Ok(())
    }

    /// Restores by ours into the archive `name`; returns what it says.
    fn restore(&self, id: &str, name: &str, flags: &[&str]) -> Result<String> {
        let target = self.path(name);
        let output = self.ours.run([&["restore", id, text(&target)], flags].concat())?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    kind: u8,
    mode: u32,
    owner: (u64, u64),
    /// Rounded as kopia rounds it.
    seconds: u64,
    link: Vec<u8>,
    content: Vec<u8>,
}

/// Extended attributes.
type Attributes = BTreeMap<String, Vec<u8>>;
type TarEntries = BTreeMap<Vec<u8>, (Entry, Attributes)>;
/// Mode, seconds and content of each.
type ZipEntries = BTreeMap<String, (u32, u32, Vec<u8>)>;

/// The mode in a header, also where it is Go's own number: then it is binary, and has its special bits elsewhere.
fn mode_of(header: &tar::Header) -> u32 {
    if let Ok(mode) = header.mode() {
        return from_go(mode);
    }
    let field = &header.as_old().mode;
    from_go(u32::from_be_bytes([field[4], field[5], field[6], field[7]]))
}

fn from_go(mode: u32) -> u32 {
    let special = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];
    special.iter().filter(|(go, _)| mode & go != 0).fold(mode & 0o7777, |mode, (_, unix)| mode | unix)
}

/// The entries of a tar archive, and the extended attributes of each.
fn read_tar(reader: impl Read) -> Result<TarEntries> {
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(reader).entries()? {
        let mut entry = entry?;
        let mut records = BTreeMap::new();
        if let Some(extensions) = entry.pax_extensions()? {
            for record in extensions {
                let record = record?;
                records.insert(record.key()?.to_owned(), record.value_bytes().to_vec());
            }
        }
        let number =
            |name: &str| records.get(name).and_then(|text| str::from_utf8(text).ok()?.parse::<f64>().ok());
        let header = entry.header().clone();
        let owner = |name: &str, plain: u64| number(name).map_or(plain, |number| number as u64);
        let known = Entry {
            kind: header.entry_type().as_byte(),
            mode: mode_of(&header),
            owner: (owner("uid", header.uid()?), owner("gid", header.gid()?)),
            seconds: number("mtime").unwrap_or(header.mtime()? as f64).round() as u64,
            link: entry.link_name_bytes().map(Cow::into_owned).unwrap_or_default(),
            content: Vec::new(),
        };
        let path = entry.path_bytes().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        let attributes = records
            .into_iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("SCHILY.xattr.")?.to_owned(), value)))
            .collect();
        let is_new = found.insert(path.clone(), (Entry { content, ..known }, attributes)).is_none();
        assert!(is_new, "{path:?} is there twice");
    }
    Ok(found)
}

#[test]
fn tar_archives_have_what_kopias_have() -> Result<()> {
    let place = Place::new()?;
    place.plant()?;
    let id = place.ours.snapshot(&place.source(), &[])?.id;
    for (name, flags) in [
        ("a.tar", vec![]),
        ("b.tgz", vec![]),
        ("c.tar.gz", vec![]),
        ("d", vec!["--mode=tar"]),
        ("e", vec!["--mode=tgz"]),
    ] {
        place.restore(&id, &format!("ours-{name}"), &flags)?;
        let theirs = place.path(&format!("kopias-{name}"));
        place.kopia.run([&["restore", &id, text(&theirs)], &flags[..]].concat())?;
        let open = |path: PathBuf| -> Result<Box<dyn Read>> {
            let file = File::open(path)?;
            Ok(match name {
                "a.tar" | "d" => Box::new(file),
                _ => Box::new(flate2::read::GzDecoder::new(file)),
            })
        };
        let ours = read_tar(open(place.path(&format!("ours-{name}")))?)?;
        let theirs = read_tar(open(theirs)?)?;
        assert_eq!(ours.len(), 10, "{:?}", ours.keys());
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (path, (entry, _)) in &ours {
            let (their, _) = &theirs[path];
            // Kopia gives a directory the newest time found below it, and every entry Go's own modes.
            let time = if entry.kind == b'5' { their.seconds } else { entry.seconds };
            let expected = Entry { seconds: time, ..their.clone() };
            let entry = Entry { seconds: time, mode: entry.mode, ..entry.clone() };
            let shown = String::from_utf8_lossy(path);
            assert!(entry == expected, "{name}: {shown}: {:?} is not {:?}", about(&entry), about(&expected));
        }
    }
    Ok(())
}

fn about(entry: &Entry) -> Entry {
    Entry { content: entry.content.len().to_string().into_bytes(), ..entry.clone() }
}

#[test]
fn tar_archives_keep_what_kopia_does_not_and_say_what_they_cannot() -> Result<()> {
    let place = Place::new()?;
    let source = place.source();
    fs::write(source.join("file"), "text")?;
    fs::hard_link(source.join("file"), source.join("same"))?;
    rustix::fs::setxattr(source.join("file"), "user.note", b"a=\0b", XattrFlags::empty())?;
    fs::write(source.join(OsStr::from_bytes(b"no\xfftext")), "raw")?;
    let folder = File::open(&source)?;
    rustix::fs::mknodat(&folder, "pipe", FileType::Fifo, Mode::RUSR, 0)?;
    rustix::fs::mknodat(&folder, "null", FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3))?;
    rustix::fs::mknodat(&folder, "socket", FileType::Socket, Mode::RUSR, 0)?;
    let exact = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    File::options().write(true).open(source.join("file"))?.set_modified(exact)?;
    let id = place.ours.snapshot(&source, &[])?.id;

    let said = place.restore(&id, "all.tar", &[])?;
    assert!(said.contains("no place for: 1 devices, pipes or sockets"), "{said}");
    let found = read_tar(File::open(place.path("all.tar"))?)?;
    let kinds: Vec<_> = found.iter().map(|(path, (entry, _))| (&path[..], entry.kind)).collect();
    let expected: [(&[u8], u8); 5] =
        [(b"file", b'0'), (b"no\xfftext", b'0'), (b"null", b'3'), (b"pipe", b'6'), (b"same", b'1')];
    assert_eq!(kinds, expected);
    assert_eq!(found[&b"same"[..]].0.link, b"file");
    assert_eq!(found[&b"file"[..]].1["user.note"], b"a=\0b");
    let raw = fs::read(place.path("all.tar"))?;
    assert!(String::from_utf8_lossy(&raw).contains("mtime=1700000000.123456789"), "times are exact");

    let said = place.restore(&id, "all.zip", &[])?;
    for lost in
        ["owners and groups", "extended attributes of", "3 devices, pipes or sockets", "1 further names"]
    {
        assert!(said.contains(lost), "{lost} is not in {said}");
    }
    Ok(())
}

/// The entries of a zip archive.
fn read_zip(path: &Path) -> Result<ZipEntries> {
    let mut archive = zip::ZipArchive::new(File::open(path)?)?;
    let mut found = BTreeMap::new();
    for number in 0..archive.len() {
        let mut entry = archive.by_index(number)?;
        let name = entry.name()?.into_owned();
        let seconds = entry.extra_data_fields().find_map(|field| match field {
            zip::ExtraField::ExtendedTimestamp(time) => time.mod_time(),
            _ => None,
        });
        let seconds = seconds.with_context(|| format!("{name} has no time"))?;
        let mode = entry.unix_mode().with_context(|| format!("{name} has no mode"))?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        found.insert(name, (mode, seconds, content));
    }
    Ok(found)
}

#[test]
fn zip_archives_have_what_kopias_have_and_directories_and_links() -> Result<()> {
    let place = Place::new()?;
    place.plant()?;
    let id = place.ours.snapshot(&place.source(), &[])?.id;
    for (name, flags) in [("a.zip", vec![]), ("b", vec!["--mode=zip"]), ("c", vec!["--mode=zip-nocompress"])]
    {
        place.restore(&id, &format!("ours-{name}"), &flags)?;
        let theirs = place.path(&format!("kopias-{name}"));
        place.kopia.run([&["restore", &id, text(&theirs)], &flags[..]].concat())?;
        let mut ours = read_zip(&place.path(&format!("ours-{name}")))?;
        let theirs = read_zip(&theirs)?;
        assert_eq!(theirs.len(), 5);
        for (path, entry) in theirs {
            let our = ours.remove(&path).with_context(|| format!("{name} lacks {path}"))?;
            assert!(our == entry, "{name}: {path}: {:o} {} is not {:o} {}", our.0, our.1, entry.0, entry.1);
        }
        // Kopia leaves these out.
        let kinds: Vec<_> = ours.iter().map(|(path, entry)| (path.as_str(), entry.0 & 0o170_000)).collect();
        let long = format!("{}/", "d".repeat(80));
        let longer = format!("{long}{}/", "e".repeat(80));
        let expected = [
            (&*long, 0o40_000),
            (&*longer, 0o40_000),
            ("empty/", 0o40_000),
            ("link", 0o120_000),
            ("long link", 0o120_000),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(ours["link"].2, b"small");
    }
    let stored = fs::metadata(place.path("ours-c"))?.size();
    assert!(stored > 9 << 20, "{stored} bytes are compressed");
    Ok(())
}

#[test]
fn the_list_of_a_zip_archive_is_not_kept_in_memory() -> Result<()> {
    const FILES: usize = 40_000;
    // What a list of so many long names takes, at the very least.
    const LIST: u64 = (FILES * 200) as u64;
    let place = Place::new()?;
    for number in 0..FILES {
        File::create(place.source().join(format!("{number:0>200}")))?;
    }
    let id = place.ours.snapshot(&place.source(), &[])?.id;
    let own_bytes = |name: &str| -> Result<u64> {
        let target = place.path(name);
        let command = place.ours.command(["--memory-budget-mb=32", "restore", &id, text(&target)]);
        let limited = run_limited(command, 1 << 30, Duration::from_secs(900))?;
        assert!(limited.output.status.success(), "{limited:?}");
        Ok(limited.peak_own_bytes)
    };
    // A tar archive has no list.
    let (tar, zip) = (own_bytes("all.tar")?, own_bytes("all.zip")?);
    assert!(zip < tar + LIST, "{zip} bytes for zip, {tar} for tar");
    assert_eq!(read_zip(&place.path("all.zip"))?.len(), FILES);
    Ok(())
}

#[test]
fn what_is_not_wanted_or_lost_is_not_in_an_archive_and_no_half_archive_is_left() -> Result<()> {
    let place = Place::new()?;
    place.plant()?;
    let id = place.ours.snapshot(&place.source(), &[])?.id;
    place.restore(&id, "some.tar", &["--include=empty", "--include=*mall"])?;
    let found = read_tar(File::open(place.path("some.tar"))?)?;
    assert_eq!(found.keys().map(|path| &path[..]).collect::<Vec<_>>(), [&b"empty/"[..], b"small"]);
    // One file alone, and as a stream.
    place.restore(&format!("{id}/small"), "one.tar", &[])?;
    assert_eq!(read_tar(File::open(place.path("one.tar"))?)?.len(), 1);
    let output = place.ours.run(["restore", &id, "/dev/stdout", "--mode=tar"])?;
    assert_eq!(read_tar(&output.stdout[..])?.len(), 10);

    fs::create_dir(place.path("directory.tar"))?;
    for wrong in [
        vec![id.as_str(), text(&place.path("directory.tar"))],
        vec![&id, "/dev/stdout", "--mode=zip"],
        vec![&id, "x.tar", "--update"],
        vec![&id, "x.zip", "--skip-owners"],
        vec![&id, "x.tar", "--mode=tar", "--block"],
        vec![&id, "x", "--mode=rar"],
        vec![&id, "/does/not/exist/x.tar"],
    ] {
        assert!(
            !place.ours.try_run([&["restore"], &wrong[..]].concat())?.status.success(),
            "{wrong:?} succeeded"
        );
    }
    place.restore(&id, "directory.tar", &["--mode=local"])?;
    assert!(place.path("directory.tar/small").is_file());

    // Lose the data of one file: everything else is in the archive, and the loss is told.
    let listed: Vec<serde_json::Value> = place.kopia.json(["blob", "list", "--json", "--prefix=p"])?;
    let largest = listed.iter().max_by_key(|blob| blob["length"].as_u64()).context("no packs")?;
    let name = largest["id"].as_str().context("no id")?.to_owned();
    place.ours.run(["blob", "delete", &name, "--dangerous-commands=enabled"])?;
    let target = place.path("damaged.tar");
    let output = place.ours.try_run(["restore", &id, text(&target)])?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("not restored: \"large\""), "{error}");
    let found = read_tar(File::open(&target)?)?;
    assert!(!found.contains_key(&b"large"[..]) && found.contains_key(&b"empty/"[..]));
    let left: Vec<_> = fs::read_dir(place.folder.path())?.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| text(Path::new(name)).starts_with(".lifeboat-")), "{left:?}");
    Ok(())
}
