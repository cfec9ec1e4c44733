//! Logs, by Velero's flags.

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::EnvFilter;

/// Libraries that say more than people want to read who look for a reason: which keys were found where, and where time
/// zones were not.
const TALKATIVE: &str = "aws_config=warn,jiff=error";

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
        let filter = match self.log_level {
            Level::Trace => "trace".to_owned(),
            Level::Debug => "debug".to_owned(),
            Level::Info => format!("info,{TALKATIVE}"),
            Level::Warning => format!("warn,{TALKATIVE}"),
            Level::Error => "error".to_owned(),
        };
        let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_ansi(false);
        match self.log_format {
            Format::Text => builder.init(),
            Format::Json => builder.json().init(),
        }
    }
}
