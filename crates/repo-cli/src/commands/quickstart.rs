//! `quickstart`: the whole story in seconds, on a sample directory.

use crate::args::QuickstartArgs;
use crate::output::bytes;
use anyhow::{Context, Result, bail};
use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_kopia::snapshot::{self, SourceInfo};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_uploader::{BackupOptions, Cancel, LogDetails, Progress, RestoreOptions, back_up, find_parents};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const PASSWORD: &str = "quickstart";

pub fn run(args: &QuickstartArgs) -> Result<()> {
    let folder = match &args.folder {
        Some(folder) => std::path::absolute(folder)?,
        None => std::env::temp_dir().join(format!("lifeboat-quickstart-{}", std::process::id())),
    };
    std::fs::create_dir_all(folder.parent().unwrap_or(Path::new("/")))?;
    std::fs::create_dir(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let story = Story::begin(&runtime, folder)?;
    let outcome = story.tell(&runtime);
    runtime.block_on(story.repository.close())?;
    outcome
}

struct Story {
    volume: PathBuf,
    folder: PathBuf,
    repository: Repository,
    budget: Budget,
}

impl Story {
    fn begin(runtime: &tokio::runtime::Runtime, folder: PathBuf) -> Result<Self> {
        let place = folder.join("repository");
        std::fs::create_dir(&place)?;
        let _context = runtime.enter();
        let store = Arc::new(runtime.block_on(FsStore::create(FsOptions::new(&place)))?);
        let identity = ClientIdentity { username: "you".to_owned(), hostname: "quickstart".to_owned() };
        let options = OpenOptions::new(store, Password::new(PASSWORD), identity);
        let budget = options.budget.clone();
        let create = CreateOptions::default();
        let repository = runtime.block_on(Repository::create(options, &create, InitialState::Kopia))?;
        println!("1. Made an encrypted repository in {}", place.display());
        let volume = folder.join("volume");
        make_sample(&volume)?;
        Ok(Story { volume, folder, repository, budget })
    }

    fn tell(&self, runtime: &tokio::runtime::Runtime) -> Result<()> {
        println!("2. Made a sample volume in {}", self.volume.display());
        self.back_up(runtime, 3, "Backed up")?;
        std::fs::write(self.volume.join("notes/today.txt"), "a line that was not there before\n")?;
        std::fs::remove_file(self.volume.join("notes/3.txt"))?;
        let second = self.back_up(runtime, 4, "Changed a little and backed up again")?;
        let before = fingerprint(&self.volume)?;
        std::fs::remove_dir_all(&self.volume)?;
        println!("5. Destroyed the volume");
        self.restore(&second)?;
        let after = fingerprint(&self.volume)?;
        if before != after {
            let different = before.iter().find(|(path, print)| after.get(*path) != Some(print));
            bail!("the restored volume is not the same, starting at {:?}", different.map(|(path, _)| path));
        }
        println!("7. Compared: all {} entries are the same, byte for byte", after.len());
        let repository = self.folder.join("repository");
        println!("\nLook around (kopia can, too):");
        println!(
            "  export KOPIA_PASSWORD={PASSWORD} LIFEBOAT_CONFIG_PATH={}",
            self.folder.join("config").display()
        );
        println!("  lifeboat-repo repository connect filesystem --path {}", repository.display());
        println!("  lifeboat-repo snapshot list --all --manifest-id");
        Ok(())
    }

    fn back_up(
        &self,
        runtime: &tokio::runtime::Runtime,
        step: u32,
        what: &str,
    ) -> Result<snapshot::SnapshotManifest> {
        let started = Instant::now();
        let before = self.repository.contents().totals();
        let path = self.volume.to_str().context("the folder's name is not valid UTF-8")?;
        let interface = KopiaRepository::new(self.repository.clone());
        let source = SourceInfo::new("you", "quickstart", path);
        let parents = find_parents(&interface, &source)?;
        let options = BackupOptions {
            path: self.volume.clone(),
            source,
            policies: Policy::defaults().into(),
            parents,
            description: "quick start".to_owned(),
            placeholders: false,
            log_details: LogDetails::default(),
            extras: true,
            checkpoint_interval: None,
            estimate: false,
            fail_fast: true,
            actions: false,
            force_hash: 0.0,
            upload_limit: None,
            threads: 0,
            budget: self.budget.clone(),
        };
        let progress = Progress::default();
        let mut manifest = back_up(&interface, &options, &progress, &Cancel::default())?;
        runtime.block_on(snapshot::save(self.repository.manifests(), &mut manifest))?;
        runtime.block_on(self.repository.flush())?;
        let (totals, after) = (progress.totals(), self.repository.contents().totals());
        println!(
            "{step}. {what}: {} files, {}; {} were new ({:.2} s)",
            totals.files,
            bytes(totals.bytes),
            bytes(after.new_bytes - before.new_bytes),
            started.elapsed().as_secs_f64()
        );
        Ok(manifest)
    }

    fn restore(&self, manifest: &snapshot::SnapshotManifest) -> Result<()> {
        let started = Instant::now();
        let root = manifest.root_entry.as_ref().context("the snapshot has no root")?;
        let owner = rustix::process::geteuid().is_root();
        let options = RestoreOptions { owner, ..RestoreOptions::new(&self.volume) };
        let interface = KopiaRepository::new(self.repository.clone());
        let report =
            lifeboat_uploader::restore(&interface, root, &options, &Progress::default(), &Cancel::default())?;
        let seconds = started.elapsed().as_secs_f64();
        println!("6. Restored it: {} files, {} ({seconds:.2} s)", report.files, bytes(report.bytes));
        Ok(())
    }
}

/// A directory with what volumes have: small files, a large one, links, an empty directory, odd modes.
fn make_sample(volume: &Path) -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, symlink};
    std::fs::create_dir_all(volume.join("notes"))?;
    std::fs::create_dir(volume.join("empty"))?;
    for number in 0..200 {
        std::fs::write(
            volume.join(format!("notes/{number}.txt")),
            format!("note {number}\n").repeat(number + 1),
        )?;
    }
    let mut state = 1u64;
    let noise: Vec<u8> = (0..(32 << 20) / 8)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state ^ (state >> 29)).to_le_bytes()
        })
        .collect();
    std::fs::write(volume.join("database.bin"), noise)?;
    std::fs::set_permissions(volume.join("database.bin"), std::fs::Permissions::from_mode(0o640))?;
    symlink("notes/1.txt", volume.join("first note"))?;
    Ok(())
}

/// What makes two entries the same: type and mode, time, content.
type Fingerprint = (u32, i64, i64, Vec<u8>);

/// The fingerprints of all entries of a tree, by path.
fn fingerprint(root: &Path) -> Result<BTreeMap<PathBuf, Fingerprint>> {
    use std::os::unix::fs::MetadataExt;
    let mut prints = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        let metadata = std::fs::symlink_metadata(&path)?;
        let content = if metadata.is_symlink() {
            std::fs::read_link(&path)?.into_os_string().into_encoded_bytes()
        } else if metadata.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
            Vec::new()
        } else {
            std::fs::read(&path)?
        };
        prints.insert(path, (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), content));
    }
    Ok(prints)
}
