//! Where the programs of a cluster come from: built from pinned module source, or installed by the system's packages.

use crate::{Error, Result, command};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A program that is built from module source into the tool cache.
pub fn built(name: &str) -> Result<PathBuf> {
    lifeboat_tools::path(name)
        .map_err(|problem| Error::Missing { what: name.to_owned(), remedy: format!("{problem:#}") })
}

/// The folder of a Go module that one of our wrapper modules depends on, in Go's own cache.
pub(crate) fn module_source(wrapper: &str, module: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", module])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../modules").join(wrapper))
        .env("GOFLAGS", "-mod=readonly")
        .env("GOWORK", "off");
    let answer = command::run(&mut go, b"", Duration::from_secs(300))?;
    let answer: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|problem| Error::unexpected("go mod download", problem))?;
    let folder = answer["Dir"].as_str();
    folder.map(PathBuf::from).ok_or_else(|| Error::unexpected("go mod download", answer["Error"].to_string()))
}

/// The Debian package that brings each program used from the system.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("conntrack", "conntrack"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("etcd", "etcd-server"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("losetup", "mount"),
    ("nsenter", "util-linux"),
    ("runc", "runc"),
    ("rustc", "rustup"),
    ("unshare", "util-linux"),
];

/// Folders searched after `PATH`: an ordinary user's `PATH` often lacks the second half.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];

/// A program of the operating system.
pub fn system(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    for folder in folders {
        let candidate = folder.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    let package = PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, package)| package);
    Err(Error::Missing { what: name.to_owned(), remedy: format!("run `apt-get install {package}`") })
}

/// A program of this workspace, looked for beside the running one (`target/<profile>`, also from `deps`).
pub fn own(name: &str) -> Result<PathBuf> {
    let running = env::current_exe().map_err(Error::io("find", "the running program"))?;
    let beside = running.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside.into_iter().find(|path| path.is_file()).ok_or_else(|| Error::Missing {
        what: name.to_owned(),
        remedy: format!("run `cargo build --bin {name}` with the same profile"),
    })
}

/// Checks once, before anything is started, that every program of the system is there.
pub(crate) fn check_system() -> Result<()> {
    for (program, _) in PACKAGES {
        system(program)?;
    }
    if !PathBuf::from(CNI_FOLDER).join("ptp").is_file() {
        return Err(Error::Missing {
            what: format!("{CNI_FOLDER}/ptp"),
            remedy: "run `apt-get install containernetworking-plugins`".to_owned(),
        });
    }
    Ok(())
}

/// Where Debian puts the CNI plugins.
pub(crate) const CNI_FOLDER: &str = "/usr/lib/cni";
