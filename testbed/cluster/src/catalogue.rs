//! The images a cluster needs, made from built programs and packages, and kept between runs.

use crate::image::Image;
use crate::spec::cache_folder;
use crate::{Error, Result, command, files, tools};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The workload image: busybox with all its applets, running as root.
pub const BUSYBOX: &str = "localhost/busybox:1";
/// The image that holds a pod's namespaces.
pub const PAUSE: &str = "localhost/pause:1";
/// Velero's server, node agent and data mover.
pub const VELERO: &str = "docker.io/velero/velero:v1.18.3";
/// Velero's plugin for S3.
pub const VELERO_AWS_PLUGIN: &str = "docker.io/velero/velero-plugin-for-aws:v1.14.3";

/// Users as upstream's base images have them; Velero's server runs as `cnb`.
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\n\
    cnb:x:1002:1000::/home/cnb:/sbin/nologin\n\
    nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ncnb:x:1000:\nnobody:x:65534:\n";

/// An image on disk.
#[derive(Debug, Clone)]
pub struct Archive {
    /// The image's full name.
    pub reference: String,
    /// The OCI archive.
    pub path: PathBuf,
    /// The digest of the manifest.
    pub digest: String,
}

/// The names that [`archive`] knows.
pub const NAMES: [&str; 4] = ["pause", "busybox", "velero", "velero-plugin-for-aws"];

/// Makes the named image, or finds it made from the same input before.
pub fn archive(name: &str) -> Result<Archive> {
    match name {
        "pause" => {
            let program = pause_program()?;
            let image =
                Image::new(PAUSE).program("/pause", &program).user("65535:65535").entrypoint(&["/pause"]);
            keep(name, &image, &[program])
        }
        "busybox" => busybox(),
        "velero" => {
            let programs = ["velero", "velero-restore-helper", "velero-helper"];
            let sources = programs.iter().map(|name| tools::built(name)).collect::<Result<Vec<_>>>()?;
            let mut image = Image::new(VELERO).user("1002:1000").env("PATH=/usr/bin:/bin");
            for (program, source) in programs.iter().zip(&sources) {
                image = image.program(&format!("/{program}"), source);
            }
            let image = with_users(image).text("/etc/nsswitch.conf", "hosts: files dns\n");
            keep(name, &image.folder("/home/cnb", 0o755, (1002, 1000)), &sources)
        }
        "velero-plugin-for-aws" => {
            let sources = [tools::built("velero-plugin-for-aws")?, tools::built("cp-plugin")?];
            let image = Image::new(VELERO_AWS_PLUGIN)
                .program("/plugins/velero-plugin-for-aws", &sources[0])
                .program("/bin/cp-plugin", &sources[1])
                .env("PATH=/bin")
                .entrypoint(&[
                    "cp-plugin",
                    "/plugins/velero-plugin-for-aws",
                    "/target/velero-plugin-for-aws",
                ]);
            keep(name, &image, &sources)
        }
        _ => Err(Error::Invalid(format!("no image is called {name:?}; there are {}", NAMES.join(", ")))),
    }
}

fn busybox() -> Result<Archive> {
    let program = tools::system("busybox")?;
    let list = command::run(Command::new(&program).arg("--list"), b"", Duration::from_secs(60))?;
    let mut image =
        Image::new(BUSYBOX).program("/bin/busybox", &program).user("0:0").env("PATH=/bin").cmd(&["sh"]);
    for applet in String::from_utf8_lossy(&list).lines().filter(|applet| *applet != "busybox") {
        image = image.link(&format!("/bin/{applet}"), "busybox");
    }
    keep("busybox", &with_users(image), &[program])
}

fn with_users(image: Image) -> Image {
    image.text("/etc/passwd", PASSWD).text("/etc/group", GROUP).folder("/root", 0o700, (0, 0)).folder(
        "/tmp",
        0o1777,
        (0, 0),
    )
}

/// Compiles the pause program: a kilobyte without a standard library.
fn pause_program() -> Result<PathBuf> {
    let source = include_str!("../assets/pause.rs");
    let folder = cache_folder()?.join("images");
    let program = folder.join(format!("pause-{}", &hex::encode(Sha256::digest(source))[..16]));
    if program.is_file() {
        return Ok(program);
    }
    let fresh = program.with_extension("new");
    let file = program.with_extension("rs");
    files::write(&file, source)?;
    let mut rustc = Command::new(tools::system("rustc")?);
    rustc
        .args(["--edition", "2024", "--crate-name", "pause", "-C", "opt-level=s", "-C", "panic=abort"])
        .args(["-C", "relocation-model=static", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"])
        .args(["-C", "strip=symbols", "-o"])
        .args([&fresh, &file]);
    command::run(&mut rustc, b"", Duration::from_secs(120))?;
    fs::rename(&fresh, &program).map_err(Error::io("put in place", &program))?;
    Ok(program)
}

/// Writes the image unless it was made before from the same description and the same files.
fn keep(name: &str, image: &Image, sources: &[PathBuf]) -> Result<Archive> {
    let path = cache_folder()?.join("images").join(format!("{name}.tar"));
    let record = path.with_extension("made-from");
    let made_from = fingerprint(image, sources)?;
    if path.is_file()
        && let Ok(text) = fs::read_to_string(&record)
        && let Some((known, digest)) = text.split_once('\n')
        && known == made_from
    {
        return Ok(Archive { reference: image.reference().to_owned(), path, digest: digest.to_owned() });
    }
    // A record that outlives its archive would pass a damaged one as good: it goes first and comes last.
    let _ = fs::remove_file(&record);
    let digest = image.write(&path)?;
    files::write(&record, format!("{made_from}\n{digest}"))?;
    Ok(Archive { reference: image.reference().to_owned(), path, digest })
}

/// Stands for the image's description and its files; files by size and time, because reading them costs seconds.
fn fingerprint(image: &Image, sources: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{image:?}"));
    for source in sources {
        let file = fs::metadata(source).map_err(Error::io("look at", source))?;
        hash.update(format!(
            "{} {} {} {}",
            Path::new(source).display(),
            file.len(),
            file.mtime(),
            file.mtime_nsec()
        ));
    }
    Ok(hex::encode(hash.finalize()))
}
