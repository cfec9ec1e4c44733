//! `lifeboat-repo`: backup of directories into Kopia-compatible repositories, for people without a cluster.

#![forbid(unsafe_code)]

mod archive;
mod args;
mod commands;
#[cfg(test)]
mod flags;
mod mount;
mod output;
mod progress;
mod session;
mod storage;
mod tree;
mod when;

use anyhow::{Context, Result};
use clap::Parser;
use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;

fn main() -> ExitCode {
    lifeboat_budget::be_frugal();
    let cli = args::Cli::parse();
    match start_log(&cli.global).and_then(|()| commands::run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Logs to the terminal and, if one is wanted, into a file; one in a folder is where Kopia would put it too.
fn start_log(global: &args::Global) -> Result<()> {
    let terminal = tracing_subscriber::fmt::layer()
        .with_ansi(output::has_colour())
        .with_writer(|| progress::Aside)
        .with_filter(LevelFilter::from_level(global.log_level));
    let path = match (&global.log_file, &global.log_dir) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(folder)) if !global.disable_file_logging => {
            let folder = folder.join("cli-logs");
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
            Some(folder.join(format!("lifeboat-repo-{now}-{}.log", std::process::id())))
        }
        _ => None,
    };
    let file = match path {
        None => None,
        Some(path) => {
            let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
            let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(Arc::new(file));
            Some(layer.with_filter(LevelFilter::from_level(global.file_log_level)))
        }
    };
    tracing_subscriber::registry().with(terminal).with(file).init();
    Ok(())
}
