//! Container images without a registry: one layer of plain files in an OCI archive, the same input giving the same digest.

use crate::{Error, Result, command};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tar::{Builder, EntryType, Header};

/// The moment every file and image claims to be from: without it, equal input would not give equal bytes.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// Longer than listing a program's libraries takes on a busy machine.
const LDD_LIMIT: Duration = Duration::from_secs(60);

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Whom programs trust that talk to the world.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// An image to be written: what is in it and how it runs.
#[derive(Debug, Clone)]
pub struct Image {
    reference: String,
    entries: BTreeMap<String, Entry>,
    config: Config,
    compressed: bool,
}

#[derive(Debug, Clone)]
struct Entry {
    kind: Kind,
    mode: u32,
    owner: (u64, u64),
}

#[derive(Debug, Clone)]
enum Kind {
    Folder,
    File(PathBuf),
    Text(String),
    Link(String),
}

/// The part of an OCI image configuration that says how to run it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cmd: Vec<String>,
}

impl Image {
    /// An empty image that runs as nobody; `reference` is the full name with registry host and tag.
    pub fn new(reference: &str) -> Self {
        let config = Config { user: "65532:65532".to_owned(), ..Config::default() };
        Self { reference: reference.to_owned(), entries: BTreeMap::new(), config, compressed: false }
    }

    /// An image of one static program, which is all there is in it and what it runs.
    pub fn of_program(reference: &str, program: &Path) -> Result<Self> {
        let name = program.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Error::Invalid(format!("{} has no plain name", program.display())))?;
        if !is_static(program)? {
            return Err(Error::Invalid(format!(
                "{} needs a dynamic loader, which the image would not have: build it with \
                 `RUSTFLAGS=-Ctarget-feature=+crt-static` and an explicit `--target`",
                program.display()
            )));
        }
        let place = format!("/usr/bin/{name}");
        Ok(Self::new(reference).program(&place, program).entrypoint(&[&place]).env("PATH=/usr/bin"))
    }

    /// An image of `lifeboat`, which it also has as `/lifeboat` and under the names by which Velero's objects start their
    /// programs. Unlike other images of programs it has what a program needs that talks to clouds; a program that was
    /// not linked statically, as tests build it, brings the libraries of this machine along.
    pub fn of_lifeboat(reference: &str, program: &Path) -> Result<Self> {
        let place = "/usr/bin/lifeboat";
        let mut image = Self::new(reference)
            .program(place, program)
            .link("/lifeboat", place)
            .link("/velero", place)
            .link("/velero-restore-helper", place)
            .entrypoint(&["/lifeboat"])
            .env("PATH=/usr/bin")
            .folder("/tmp", 0o1777, (0, 0))
            .text("/etc/nsswitch.conf", "hosts: files dns\n");
        if !is_static(program)? {
            for library in libraries(program)? {
                image = image.program(&library, &library);
            }
        }
        if !Path::new(CERTIFICATES).exists() {
            return Err(Error::Invalid(format!("{CERTIFICATES} is missing: install ca-certificates")));
        }
        Ok(image.entry(CERTIFICATES, Kind::File(CERTIFICATES.into()), 0o644, (0, 0)))
    }

    /// The image's full name.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Adds an executable file.
    pub fn program(self, path: &str, source: impl Into<PathBuf>) -> Self {
        self.entry(path, Kind::File(source.into()), 0o755, (0, 0))
    }

    /// Adds a text file.
    pub fn text(self, path: &str, content: impl Into<String>) -> Self {
        self.entry(path, Kind::Text(content.into()), 0o644, (0, 0))
    }

    /// Adds a folder; parents of other entries need not be named.
    pub fn folder(self, path: &str, mode: u32, owner: (u64, u64)) -> Self {
        self.entry(path, Kind::Folder, mode, owner)
    }

    /// Adds a symbolic link.
    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, Kind::Link(target.to_owned()), 0o777, (0, 0))
    }

    /// Who the image runs as, `uid:gid`.
    pub fn user(mut self, user: &str) -> Self {
        self.config.user = user.to_owned();
        self
    }

    /// Adds a variable `NAME=value`.
    pub fn env(mut self, variable: &str) -> Self {
        self.config.env.push(variable.to_owned());
        self
    }

    /// The program that always runs, with its first arguments.
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.config.entrypoint = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The arguments used unless the pod gives its own.
    pub fn cmd(mut self, words: &[&str]) -> Self {
        self.config.cmd = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Compresses the layer: for images that travel, not for those that are loaded on the same machine.
    pub fn compressed(mut self) -> Self {
        self.compressed = true;
        self
    }

    fn entry(mut self, path: &str, kind: Kind, mode: u32, owner: (u64, u64)) -> Self {
        self.entries.insert(path.trim_matches('/').to_owned(), Entry { kind, mode, owner });
        self
    }

    /// Writes the image as an OCI archive and returns the digest of its manifest, `sha256:…`.
    pub fn write(&self, archive: &Path) -> Result<String> {
        let folder = archive.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        self.write_to(archive, folder).map_err(Error::io("write", archive))
    }

    fn write_to(&self, archive: &Path, folder: &Path) -> io::Result<String> {
        let mut layer = self.layer(folder)?;
        let config = Blob::new(&json!({
            "architecture": architecture(),
            "os": "linux",
            "created": EPOCH,
            "config": &self.config,
            "rootfs": {"type": "layers", "diff_ids": [&layer.content_digest]},
        }));
        let manifest = Blob::new(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [{"mediaType": layer.media_type, "digest": &layer.digest, "size": layer.size}],
        }));
        let mut described = manifest.descriptor(MANIFEST);
        described["annotations"] = json!({
            // The first is what containerd names the image by; the second is the OCI way to give its tag.
            "io.containerd.image.name": &self.reference,
            "org.opencontainers.image.ref.name": self.reference.rsplit(':').next(),
        });
        let index = json!({"schemaVersion": 2, "manifests": [described]});
        self.pack(archive, &mut layer, [&config, &manifest], &index)?;
        Ok(manifest.digest)
    }

    fn pack(&self, archive: &Path, layer: &mut Layer, blobs: [&Blob; 2], index: &Value) -> io::Result<()> {
        let fresh = archive.with_extension("new");
        let mut tar = Builder::new(BufWriter::new(File::create(&fresh)?));
        add_bytes(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add_bytes(&mut tar, "index.json", index.to_string().as_bytes())?;
        for blob in blobs {
            add_bytes(&mut tar, &blob_path(&blob.digest), &blob.bytes)?;
        }
        let mut header = header(EntryType::Regular, 0o644, (0, 0), layer.size);
        tar.append_data(&mut header, blob_path(&layer.digest), &mut layer.file)?;
        tar.into_inner()?.flush()?;
        fs::rename(&fresh, archive)
    }

    /// Makes the layer in a file without a name: it can be too large to hold in memory.
    fn layer(&self, folder: &Path) -> io::Result<Layer> {
        let mut plain = tempfile::tempfile_in(folder)?;
        self.write_files(&mut plain)?;
        let (content_digest, size) = measure(&mut plain)?;
        if !self.compressed {
            let media_type = "application/vnd.oci.image.layer.v1.tar";
            return Ok(Layer {
                file: plain,
                media_type,
                digest: content_digest.clone(),
                content_digest,
                size,
            });
        }
        let mut packed = tempfile::tempfile_in(folder)?;
        let mut gzip = GzEncoder::new(BufWriter::new(&mut packed), Compression::default());
        io::copy(&mut plain, &mut gzip)?;
        gzip.finish()?.flush()?;
        let (digest, size) = measure(&mut packed)?;
        let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
        Ok(Layer { file: packed, media_type, content_digest, digest, size })
    }

    /// Writes all entries in the order of their names, each after the folders it lies in.
    fn write_files(&self, file: &mut File) -> io::Result<()> {
        let mut tar = Builder::new(BufWriter::new(file));
        let mut made = BTreeSet::new();
        for (path, entry) in &self.entries {
            for (end, _) in path.match_indices('/') {
                let parent = &path[..end];
                if !self.entries.contains_key(parent) && made.insert(parent) {
                    tar.append_data(
                        &mut header(EntryType::Directory, 0o755, (0, 0), 0),
                        parent,
                        io::empty(),
                    )?;
                }
            }
            add_entry(&mut tar, path, entry)?;
        }
        tar.into_inner()?.flush()
    }
}

struct Layer {
    file: File,
    media_type: &'static str,
    /// Of the tar itself.
    content_digest: String,
    /// Of the file as it travels; the same unless compressed.
    digest: String,
    size: u64,
}

struct Blob {
    bytes: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(content: &Value) -> Self {
        let bytes = content.to_string().into_bytes();
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&bytes)));
        Self { bytes, digest }
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": &self.digest, "size": self.bytes.len()})
    }
}

fn add_entry(tar: &mut Builder<impl Write>, path: &str, entry: &Entry) -> io::Result<()> {
    let header = |kind, size| header(kind, entry.mode, entry.owner, size);
    match &entry.kind {
        Kind::Folder => tar.append_data(&mut header(EntryType::Directory, 0), path, io::empty()),
        Kind::Link(target) => tar.append_link(&mut header(EntryType::Symlink, 0), path, target),
        Kind::Text(text) => {
            tar.append_data(&mut header(EntryType::Regular, text.len() as u64), path, text.as_bytes())
        }
        Kind::File(source) => {
            let named = |problem: io::Error| {
                io::Error::new(problem.kind(), format!("{}: {problem}", source.display()))
            };
            let file = File::open(source).map_err(named)?;
            let size = file.metadata().map_err(named)?.len();
            tar.append_data(&mut header(EntryType::Regular, size), path, file.take(size))
        }
    }
}

fn add_bytes(tar: &mut Builder<impl Write>, path: &str, bytes: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(EntryType::Regular, 0o644, (0, 0), bytes.len() as u64), path, bytes)
}

fn header(kind: EntryType, mode: u32, (user, group): (u64, u64), size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(user);
    header.set_gid(group);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// Digest and length of a whole file, which is left at its beginning.
fn measure(file: &mut File) -> io::Result<(String, u64)> {
    file.rewind()?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        size += read as u64;
    }
    file.rewind()?;
    Ok((format!("sha256:{}", hex::encode(hash.finalize())), size))
}

/// The machine's architecture in the words of Go, which OCI uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The libraries that a program is linked with, its loader among them, by their paths.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = command::run(std::process::Command::new("ldd").arg(program), b"", LDD_LIMIT)?;
    let text = String::from_utf8_lossy(&output);
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(str::to_owned).collect())
}

/// Whether a program runs without a dynamic loader: it has no interpreter among its program headers.
fn is_static(program: &Path) -> Result<bool> {
    const HEADER: usize = 64;
    const ENTRY: usize = 56;
    const INTERPRETER: u32 = 3;
    let not_elf = || Error::Invalid(format!("{} is no 64-bit ELF program", program.display()));
    let mut file = File::open(program).map_err(Error::io("open", program))?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| not_elf())?;
    if header[..6] != [0x7f, b'E', b'L', b'F', 2, 1] {
        return Err(not_elf());
    }
    let number =
        |range: std::ops::Range<usize>| header[range].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    let (offset, size, count) = (number(32..40), number(54..56), number(56..58));
    if size != ENTRY as u64 {
        return Err(not_elf());
    }
    file.seek(io::SeekFrom::Start(offset)).map_err(|_| not_elf())?;
    for _ in 0..count {
        let mut entry = [0; ENTRY];
        file.read_exact(&mut entry).map_err(|_| not_elf())?;
        if u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}
