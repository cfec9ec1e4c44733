//! `mount`: snapshots as a directory of this machine.

use crate::mount::{Folder, Mounted, Thing};
use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result, bail};
use clap::Args;
use fuser::{MountOption, SessionACL, SessionUnmounter};
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_uploader::Cancel;
use rustix::mount::UnmountFlags;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// What stands for all snapshots.
const ALL: &str = "all";
/// Requests that are answered at the same time: most of them wait for the storage.
const THREADS: usize = 8;
/// How often a signal to end is looked for.
const PAUSE: Duration = Duration::from_millis(100);

/// What is mounted, and where.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// A snapshot or directory, as for `list`; `all` has every snapshot, as `user@host/path/time`
    pub object: String,
    /// The directory to see it in
    pub mount_point: PathBuf,
    /// Let other users in, too; permissions are as in the snapshot then
    #[arg(long)]
    pub fuse_allow_other: bool,
    /// Also hide what is in the directory
    #[arg(long)]
    pub fuse_allow_non_empty_mount: bool,
}

pub fn run(session: &Session, args: &MountArgs) -> Result<()> {
    let point = mount_point(args)?;
    let trees = Trees::open(session)?;
    let top = match args.object.as_str() {
        ALL => all(trees.snapshots()),
        object => Thing::Entry { entry: trees.entry(object)?, snapshot: 0 },
    };
    if !top.is_dir() {
        bail!("{} is not a directory and cannot be mounted; `restore` writes it to a file", args.object);
    }
    let files = Mounted::new(Arc::new(trees.interface.clone()), session.budget().clone(), top);
    let cancel = session.cancel_on_signal();
    let mut fuse = fuser::Session::new(files, &point, &options(args)).with_context(|| {
        format!(
            "cannot mount at {}; it takes /dev/fuse, and root or the program fusermount3 (package fuse3)",
            point.display()
        )
    })?;
    let unmounter = fuse.unmount_callable();
    let (ended, end) = mpsc::channel();
    std::thread::Builder::new().name("mount".into()).spawn(move || ended.send(fuse.run()))?;
    output::line(&format!(
        "Mounted {} at {}; `umount` or Ctrl-C ends it.",
        args.object,
        args.mount_point.display()
    ))?;
    wait(&end, &cancel, unmounter, &point)
}

/// Waits until it is unmounted, and unmounts it when a signal comes.
fn wait(
    end: &mpsc::Receiver<std::io::Result<()>>,
    cancel: &Cancel,
    mut unmounter: SessionUnmounter,
    point: &Path,
) -> Result<()> {
    let failed = || format!("the mount at {} has failed", point.display());
    while !cancel.is_cancelled() {
        match end.recv_timeout(PAUSE) {
            Ok(outcome) => return outcome.with_context(failed),
            Err(RecvTimeoutError::Disconnected) => bail!(failed()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    if unmounter.unmount().is_ok() {
        return end.recv().with_context(failed)?.with_context(failed);
    }
    // Somebody is in there. It goes from the tree of files at once, and from those who use it when this process ends.
    rustix::mount::unmount(point, UnmountFlags::DETACH).with_context(|| {
        format!("cannot unmount {}, which is in use; `umount` it when it is not", point.display())
    })
}

/// The directory, as a path that means the same wherever somebody goes.
fn mount_point(args: &MountArgs) -> Result<PathBuf> {
    let context = || format!("cannot mount at {}", args.mount_point.display());
    let point = args.mount_point.canonicalize().with_context(context)?;
    let is_empty = point.read_dir().with_context(context)?.next().is_none();
    if !is_empty && !args.fuse_allow_non_empty_mount {
        bail!(
            "{} is not empty; choose another directory, or hide what is there with --fuse-allow-non-empty-mount",
            args.mount_point.display()
        );
    }
    Ok(point)
}

fn options(args: &MountArgs) -> fuser::Config {
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::FSName("lifeboat".into()),
        MountOption::Subtype("lifeboat-repo".into()),
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    // Whoever mounts has the password and may read everything; others may read what the files let them.
    if args.fuse_allow_other {
        options.mount_options.push(MountOption::DefaultPermissions);
        options.acl = SessionACL::All;
    }
    options.n_threads = Some(THREADS);
    options
}

/// Every snapshot, as `user@host/path/time`.
fn all(snapshots: &[SnapshotManifest]) -> Thing {
    let mut owners: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Folder>> = BTreeMap::new();
    let mut paths = BTreeMap::new();
    for (number, snapshot) in snapshots.iter().enumerate() {
        let Some(entry) = snapshot.root_entry.clone() else { continue };
        let source = &snapshot.source;
        let sources = owners.entry(safe(&format!("{}@{}", source.user_name, source.host))).or_default();
        let path = paths.entry(source.to_string()).or_insert_with(|| free(sources, &path_name(&source.path)));
        let times = sources.entry(path.clone()).or_default();
        let mut time = snapshot.start_time.strftime("%Y%m%d-%H%M%S").to_string();
        if !snapshot.is_complete() {
            time.push_str(" (incomplete)");
        }
        times.insert(free(times, &time), Arc::new(Thing::Entry { entry, snapshot: number }));
    }
    let folder = |things| Arc::new(Thing::Folder(things));
    let owner = |(name, sources): (_, BTreeMap<_, _>)| {
        (name, folder(sources.into_iter().map(|(path, times)| (path, folder(times))).collect()))
    };
    Thing::Folder(owners.into_iter().map(owner).collect())
}

/// A path as one name: `/home/me` is `home_me`.
fn path_name(path: &str) -> String {
    match path.trim_matches('/') {
        "" => "__root".to_owned(),
        path => path.to_owned(),
    }
}

/// A text as the name of a file.
fn safe(text: &str) -> Vec<u8> {
    let harmless = text.replace(['/', '\\', ':', '\0'], "_");
    if matches!(harmless.as_str(), "" | "." | "..") { b"_".to_vec() } else { harmless.into_bytes() }
}

/// A name that nothing has yet: the text itself, or with a number behind it.
fn free<T>(taken: &BTreeMap<Vec<u8>, T>, text: &str) -> Vec<u8> {
    let numbered = (2..).map(|number| safe(&format!("{text} ({number})")));
    let mut names = std::iter::once(safe(text)).chain(numbered);
    names.find(|name| !taken.contains_key(name)).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::{DirEntry, SourceInfo};

    fn snapshot(path: &str, seconds: i64) -> SnapshotManifest {
        SnapshotManifest {
            source: SourceInfo::new("me", "here", path),
            start_time: jiff::Timestamp::from_second(seconds).unwrap(),
            root_entry: Some(DirEntry::default()),
            ..SnapshotManifest::default()
        }
    }

    fn names(thing: &Thing, prefix: &str, out: &mut Vec<String>) {
        let Thing::Folder(things) = thing else { return out.push(prefix.to_owned()) };
        for (name, thing) in things {
            names(thing, &format!("{prefix}/{}", String::from_utf8_lossy(name)), out);
        }
    }

    #[test]
    fn every_snapshot_has_a_place_of_its_own() {
        let snapshots = [("/", 0), ("/a/b", 0), ("/a/b", 0), ("/a/b", 1), ("/a_b", 1), ("..", 1)]
            .map(|(p, s)| snapshot(p, s));
        let mut found = Vec::new();
        names(&all(&snapshots), "", &mut found);
        let (first, second) = ("19700101-000000", "19700101-000001");
        let expected = [
            format!("/me@here/_/{second}"),
            format!("/me@here/__root/{first}"),
            format!("/me@here/a_b/{first}"),
            format!("/me@here/a_b/{first} (2)"),
            format!("/me@here/a_b/{second}"),
            format!("/me@here/a_b (2)/{second}"),
        ];
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected);
    }
}
