//! `snapshot estimate`.

use crate::commands::{policy, source_of};
use crate::output::{self, bytes};
use crate::progress::State;
use crate::session::Session;
use anyhow::Result;
use clap::Args;
use lifeboat_uploader::{Progress, estimate};
use std::path::PathBuf;

/// What is counted.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// The directory
    pub source: PathBuf,
    /// Assumed speed of an upload in Mbit/s
    #[arg(long, default_value_t = 10.0, value_name = "MBIT/S")]
    pub upload_speed: f64,
}

pub fn run(session: &Session, args: &EstimateArgs) -> Result<()> {
    let source = source_of(&session.connection()?, &args.source)?;
    let repository = session.open_for_reading()?;
    let policies = policy::tree(session, &repository, &source)?;
    let (progress, cancel) = (Progress::default(), session.cancel_on_signal());
    let state = || {
        let totals = progress.totals();
        let (files, size) = (totals.estimated_files, bytes(totals.estimated_bytes));
        State { text: format!("{files} files, {size} so far"), ..State::default() }
    };
    let path = PathBuf::from(&source.path);
    session.display().during(state, || estimate(&path, &policies, &progress, &cancel));
    let totals = progress.totals();
    let (files, size) = (totals.estimated_files, totals.estimated_bytes);
    output::line(&format!("Snapshot includes {files} file(s), total size {}", bytes(size)))?;
    let seconds = size as f64 * 8.0 / (args.upload_speed.max(0.001) * 1e6);
    output::line(&format!("Estimated upload time: {seconds:.0}s at {} Mbit/s", args.upload_speed))
}
