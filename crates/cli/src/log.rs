//! Logs, by Velero's flags.

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

/// How a program of the cluster logs.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// The least level that is logged.
    #[arg(long, value_enum, default_value_t = Level::Info)]
    pub log_level: Level,
    /// How lines look.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub log_format: Format,
}

/// Levels as Velero names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Trace,
    Debug,
    Info,
    #[value(alias = "warn")]
    Warning,
    #[value(alias = "fatal", alias = "panic")]
    Error,
}

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

impl LogArgs {
    /// Begins to log, to standard output as Velero does.
    pub fn start(&self) {
        let level = match self.log_level {
            Level::Trace => LevelFilter::TRACE,
            Level::Debug => LevelFilter::DEBUG,
            Level::Info => LevelFilter::INFO,
            Level::Warning => LevelFilter::WARN,
            Level::Error => LevelFilter::ERROR,
        };
        let builder = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        match self.log_format {
            Format::Text => builder.init(),
            Format::Json => builder.json().init(),
        }
    }
}
