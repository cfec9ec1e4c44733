//! `snapshot migrate`: snapshots of another repository, written into this one.

use crate::commands::policy;
use crate::output::{self, bytes};
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lifeboat_index::Prefix;
use lifeboat_kopia::connection::{Connection, load_password};
use lifeboat_kopia::object::WriterOptions;
use lifeboat_kopia::policy::{PolicySet, PolicyTree, save};
use lifeboat_kopia::repo::Access;
use lifeboat_kopia::snapshot::{
    self, DirEntry, DirSummary, DirWriter, EntryType, SnapshotManifest, SourceInfo, SummaryBuilder,
};
use lifeboat_primitives::compress::Compressor;
use lifeboat_uploader::{Ignore, cache_tag, is_cache_tag, rules_in};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

/// How much of a file is in memory at once.
const BUFFER: usize = 1 << 20;

/// What is taken over, and from where.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The connection file of the other repository. Its password is the one stored beside it, or that of this one
    #[arg(long, value_name = "FILE")]
    pub source_config: PathBuf,
    /// The sources whose snapshots are taken over, as user@host:/path
    #[arg(long, value_name = "SOURCE", required_unless_present = "all")]
    pub sources: Vec<String>,
    /// All sources
    #[arg(long)]
    pub all: bool,
    /// Only the latest snapshot of each source
    #[arg(long)]
    pub latest_only: bool,
    /// Not the policies
    #[arg(long)]
    pub no_policies: bool,
    /// Replace policies that are there
    #[arg(long)]
    pub overwrite_policies: bool,
    /// Leave out what the policies of this repository leave out
    #[arg(long)]
    pub apply_ignore_rules: bool,
    /// How many sources are copied at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub parallel: u16,
}

pub fn run(session: &Session, args: &MigrateArgs) -> Result<()> {
    let connection = Connection::load(&args.source_config)?;
    let mut options = session.open_options(&connection, false)?;
    options.access = Access::ReadOnly;
    if let Some(password) = load_password(&args.source_config)? {
        options.password = password;
    }
    let from = session.open_with(options).context("cannot open the other repository")?;
    let from = Trees::of(session, from)?;
    let to = Trees::of(session, session.open()?)?;
    let wanted: Vec<SourceInfo> = args
        .sources
        .iter()
        .map(|text| SourceInfo::parse(text).with_context(|| format!("{text:?} is not user@host:/path")))
        .collect::<Result<_>>()?;
    if !args.no_policies {
        migrate_policies(session, &from, &to, &wanted, args)?;
    }
    let mut latest: HashMap<String, usize> = HashMap::new();
    for (at, snapshot) in from.snapshots().iter().enumerate().filter(|(_, s)| s.is_complete()) {
        latest.insert(snapshot.source.to_string(), at);
    }
    let mut sources: BTreeMap<String, Vec<&SnapshotManifest>> = BTreeMap::new();
    for (at, snapshot) in from.snapshots().iter().enumerate() {
        let is_wanted = args.all || wanted.contains(&snapshot.source);
        let is_latest = latest.get(&snapshot.source.to_string()) == Some(&at);
        if is_wanted && snapshot.is_complete() && (!args.latest_only || is_latest) {
            sources.entry(snapshot.source.to_string()).or_default().push(snapshot);
        }
    }
    let outcome = migrate_sources(session, &from, &to, sources.into_values().collect(), args);
    session.wait(to.repository.close())?;
    outcome
}

/// Copies the snapshots of each source, the oldest first. A source that fails keeps no other from being copied.
fn migrate_sources(
    session: &Session,
    from: &Trees,
    to: &Trees,
    sources: Vec<Vec<&SnapshotManifest>>,
    args: &MigrateArgs,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        while let Some(snapshots) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            let copied =
                snapshots.iter().try_for_each(|old| migrate(session, from, to, old, args.apply_ignore_rules));
            failures.extend(copied.err());
        }
        failures
    };
    let mut failures: Vec<anyhow::Error> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.parallel).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(ScopedJoinHandle::join);
        ended
            .flat_map(|ended| ended.unwrap_or_else(|_| vec![anyhow!("a thread that copies has ended")]))
            .collect()
    });
    let Some(last) = failures.pop() else { return Ok(()) };
    failures.iter().for_each(output::print_error);
    match failures.len() {
        0 => Err(last),
        others => Err(last.context(format!("{} sources could not be copied, the last one", others + 1))),
    }
}

fn migrate_policies(
    session: &Session,
    from: &Trees,
    to: &Trees,
    wanted: &[SourceInfo],
    args: &MigrateArgs,
) -> Result<()> {
    let theirs = session.wait(PolicySet::load(from.repository.manifests()))?;
    let ours = session.wait(PolicySet::load(to.repository.manifests()))?;
    for policy in theirs.defined.iter().filter(|policy| args.all || wanted.contains(&policy.target)) {
        if ours.defined_for(&policy.target).is_some() && !args.overwrite_policies {
            eprintln!("The policy for {} is there already.", policy.target);
            continue;
        }
        session.wait(save(to.repository.manifests(), &policy.target, &policy.policy))?;
        eprintln!("Policy set for {}.", policy.target);
    }
    Ok(())
}

fn migrate(
    session: &Session,
    from: &Trees,
    to: &Trees,
    old: &SnapshotManifest,
    apply_ignore_rules: bool,
) -> Result<()> {
    let is_same =
        |other: &&SnapshotManifest| other.source == old.source && other.start_time == old.start_time;
    let time = output::time(old.start_time);
    if to.snapshots().iter().any(|other| is_same(&other)) {
        eprintln!("The snapshot of {} at {time} is there already.", old.source);
        return Ok(());
    }
    let policies = policy::tree(session, &to.repository, &old.source)?;
    let compressor = |name: &str| match name {
        "" | "none" => Ok(None),
        _ => Compressor::from_name(name).map(Some),
    };
    let mut copy = Copy {
        from,
        to,
        files: compressor(&policies.policy().compression.compressor)?,
        directories: compressor(&policies.policy().metadata_compression.compressor)?,
        bytes: 0,
        known: HashMap::new(),
    };
    let root = old.root_entry.as_ref().context("the snapshot has no root")?;
    let leaves_out = apply_ignore_rules.then(|| Level {
        path: String::new(),
        policies: policies.clone(),
        ignore: Arc::new(Ignore::default()),
    });
    let root = copy
        .entry(root, leaves_out.as_ref())
        .with_context(|| format!("cannot copy the snapshot of {} at {time}", old.source))?;
    let mut new = SnapshotManifest { root_entry: Some(root), ..old.clone() };
    session.wait(snapshot::save(to.repository.manifests(), &mut new))?;
    session.wait(to.repository.flush())?;
    println!("Migrated the snapshot of {} at {time}, {}", old.source, bytes(copy.bytes));
    Ok(())
}

/// Copies the tree of one snapshot.
struct Copy<'a> {
    from: &'a Trees,
    to: &'a Trees,
    files: Option<Compressor>,
    directories: Option<Compressor>,
    bytes: u64,
    /// Directories that were copied before.
    known: HashMap<String, DirEntry>,
}

/// Where a directory is, and what is left out of the one that it is in.
struct Level {
    /// Its path below the root: empty for the root itself, else it begins with a slash.
    path: String,
    policies: PolicyTree,
    ignore: Arc<Ignore>,
}

impl Copy<'_> {
    /// Copies an entry; a directory without what is left out, if `level` says where it is.
    fn entry(&mut self, entry: &DirEntry, level: Option<&Level>) -> Result<DirEntry> {
        let object = match (entry.is_dir(), level) {
            (true, None) => return self.directory(entry),
            (true, Some(level)) => return self.part_of_directory(entry, level),
            (false, _) => self.file(entry).with_context(|| format!("cannot copy {:?}", entry.name))?,
        };
        Ok(DirEntry { object, ..entry.clone() })
    }

    fn file(&mut self, entry: &DirEntry) -> Result<String> {
        let options = WriterOptions {
            prefix: Prefix::NONE,
            compression: self.files,
            metadata_compression: self.directories,
            splitter: None,
        };
        let mut writer = self.to.repository.objects().writer(options);
        let mut reader = self.from.read(entry)?;
        let mut buffer = vec![0; BUFFER];
        loop {
            match reader.read(&mut buffer)? {
                0 => break,
                read => {
                    writer.write(&buffer[..read])?;
                    self.bytes += read as u64;
                }
            }
        }
        if writer.len() != entry.size {
            bail!("{} bytes were read where there should be {}", writer.len(), entry.size);
        }
        Ok(writer.finish()?.to_string())
    }

    fn directory(&mut self, directory: &DirEntry) -> Result<DirEntry> {
        if let Some(known) = self.known.get(&directory.object) {
            return Ok(DirEntry { object: known.object.clone(), ..directory.clone() });
        }
        let copied = self.listing(directory, &directory.summary, |_| Ok(Some(None)))?;
        self.known.insert(directory.object.clone(), copied.clone());
        Ok(copied)
    }

    /// Copies what the policies do not leave out.
    fn part_of_directory(&mut self, directory: &DirEntry, level: &Level) -> Result<DirEntry> {
        let from = self.from;
        let child =
            |name: &str| -> Result<Option<DirEntry>> { from.browser().below(directory, Path::new(name)) };
        let is_cache = match cache_tag(&level.policies).map(child).transpose()?.flatten() {
            Some(tag) if !tag.is_dir() => is_cache_tag(from.read(&tag)?),
            _ => false,
        };
        let rules = |name: &str| match child(name)? {
            Some(file) if file.entry_type == EntryType::File => Ok(rules_in(from.read(&file)?)?),
            _ => Ok(Vec::new()),
        };
        let invalid = |reason: String| anyhow!("cannot apply the ignore rules of {:?}: {reason}", level.path);
        let ignore = Ignore::by(&level.ignore, &level.path, &level.policies, rules, invalid)?;
        self.listing(directory, &None, |entry| {
            let path = format!("{}/{}", level.path, entry.name);
            if is_cache
                || ignore.leaves_out(&path, entry.is_dir())
                || (!entry.is_dir() && ignore.is_too_large(entry.size))
            {
                return Ok(None);
            }
            let policies = level.policies.child(&entry.name.to_string());
            Ok(Some(Some(Level { path, policies, ignore: ignore.clone() })))
        })
    }

    /// Copies the entries of a directory that `choose` takes, and says where they are if that matters.
    fn listing(
        &mut self,
        directory: &DirEntry,
        summary: &Option<DirSummary>,
        choose: impl Fn(&DirEntry) -> Result<Option<Option<Level>>>,
    ) -> Result<DirEntry> {
        let options = WriterOptions {
            prefix: Prefix::DIRECTORY,
            compression: self.directories,
            metadata_compression: self.directories,
            splitter: None,
        };
        let mut object = self.to.repository.objects().writer(options);
        let (mut listing, mut found) = (DirWriter::new(), SummaryBuilder::default());
        for entry in self.from.children(directory)? {
            let entry = entry?;
            let Some(level) = choose(&entry)? else { continue };
            let entry = self.entry(&entry, level.as_ref())?;
            found.add(&entry);
            listing.push(&entry)?;
            if listing.buffered() >= BUFFER {
                object.write(&listing.take())?;
            }
        }
        // What failed when the snapshot was taken is in its own summary alone.
        let summary = summary.clone().unwrap_or_else(|| found.build(directory.mtime, ""));
        object.write(&listing.finish(&summary)?)?;
        let object = object.finish()?.to_string();
        Ok(DirEntry { object, summary: Some(summary), ..directory.clone() })
    }
}
