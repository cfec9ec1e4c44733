//! `repository verify` and `repository repair`.

use crate::output::bytes;
use crate::session::Session;
use anyhow::{Result, bail};
use clap::Args;
use lifeboat_kopia::repair::{self, Finding, FormatRepair, RepairOptions};
use lifeboat_kopia::repo::OpenOptions;
use lifeboat_kopia::verify::{self, VerifyBlobs, VerifyContents, VerifySnapshots};

/// How a repository is verified.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Read and decrypt every content
    #[arg(long)]
    pub full: bool,
    /// How many blobs are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
}

/// How a repository is repaired.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Read and decrypt every content, to find those that are damaged
    #[arg(long)]
    pub full: bool,
    /// How many blobs are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
    /// Really change the repository. Put back first what you have of its blobs elsewhere
    #[arg(long)]
    pub commit: bool,
}

/// Names every damage, and what it touches.
pub fn verify(session: &Session, args: &VerifyArgs) -> Result<()> {
    let repository = session.open()?;
    let parallel = args.parallel;
    let blobs = VerifyBlobs { packs: true, parallel };
    let blobs =
        session.wait(verify::blobs(&repository, &blobs, &mut |damage| eprintln!("damaged: {damage}")))?;
    let contents = VerifyContents { full: args.full, parallel, ..VerifyContents::default() };
    let contents = session
        .wait(verify::contents(&repository, &contents, &mut |damage| eprintln!("damaged: {damage}")))?;
    let snapshots = VerifySnapshots { parallel, ..VerifySnapshots::default() };
    let snapshots = if args.full { VerifySnapshots { read_percent: 100, ..snapshots } } else { snapshots };
    let snapshots = session
        .wait(verify::snapshots(&repository, &snapshots, &mut |damage| eprintln!("damaged: {damage}")))?;
    println!(
        "Verified {} blobs, {} contents and {} files of {} snapshots, read {}.",
        blobs.blobs,
        contents.contents,
        snapshots.files,
        snapshots.snapshots,
        bytes(contents.bytes_read + snapshots.bytes_read)
    );
    if blobs.damaged + contents.damaged + snapshots.damaged > 0 {
        bail!(
            "{} blobs, {} contents and {} files or directories of snapshots are damaged; \
             see `repository repair`",
            blobs.damaged,
            contents.damaged,
            snapshots.damaged
        );
    }
    Ok(())
}

/// Does what can be done.
pub fn repair(session: &Session, args: &RepairArgs) -> Result<()> {
    let dry_run = !args.commit;
    let options = session.open_options(&session.connection()?, false)?;
    make_openable(session, &options, dry_run)?;
    let repository = session.open_with(options)?;
    let options = RepairOptions { dry_run, full: args.full, parallel: args.parallel };
    let mut print = |finding: Finding| eprintln!("damaged: {finding}");
    let report = session.wait(repair::run(&repository, &options, &mut print))?;
    session.wait(repository.close())?;
    for remedy in &report.remedies {
        println!("{}{remedy}", if dry_run { "planned: " } else { "" });
    }
    if dry_run && !report.remedies.is_empty() {
        println!("Add --commit to do it.");
    }
    if report.lost_manifests > 0 {
        println!(
            "{} contents with manifests are lost: the snapshots and policies in them do not come back",
            report.lost_manifests
        );
    }
    if let Some(unread) = &report.unread_pack {
        bail!("the index is not repaired: {unread}");
    }
    if !report.is_whole() {
        bail!(
            "{} contents are lost for now and {} files or directories of snapshots cannot be restored; \
             back up their sources again, or delete the snapshots that are named above",
            report.lost_contents,
            report.damaged_files
        );
    }
    if report.remedies.is_empty() {
        println!("There is nothing to repair.");
    }
    Ok(())
}

/// A repository whose format blob or configuration is lost is not opened.
fn make_openable(session: &Session, options: &OpenOptions, dry_run: bool) -> Result<()> {
    let OpenOptions { store, password, environment, .. } = options;
    let planned = if dry_run { "planned: " } else { "" };
    if let FormatRepair::Restored { from } = session.wait(repair::format_blob(&**store, password, dry_run))? {
        println!("{planned}the format blob is put back from {from}");
        if dry_run {
            bail!("the repository cannot be opened before that; add --commit to do it");
        }
    }
    if session.wait(repair::config(&**store, password, environment, None, dry_run))? {
        println!("{planned}the retention configuration is written anew, without retention");
        if dry_run {
            bail!("the repository cannot be written to before that; add --commit to do it");
        }
    }
    Ok(())
}
