//! The conversation with a node's first process: start, signal and list the processes it looks after.
//!
//! One JSON request and one JSON reply per connection to the node's control socket. Environment variables travel
//! this way, so secrets never show up in a command line.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) log: PathBuf,
}

impl Process {
    pub(crate) fn new(name: &str, program: PathBuf, log: PathBuf) -> Self {
        Self { name: name.to_owned(), program, args: Vec::new(), env: BTreeMap::new(), log }
    }

    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `--name=value` with a path as its value.
    pub(crate) fn path(self, flag: &str, path: impl AsRef<Path>) -> Self {
        self.arg(format!("{flag}={}", path.as_ref().display()))
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Starts a process; an ended one of the same name is replaced, a running one is an error.
    Start(Process),
    /// Sends a signal by number.
    Signal {
        name: String,
        signal: i32,
    },
    List,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Processes(Vec<ProcessState>),
    Failed(String),
}

/// A component of a node and how it fares.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessState {
    /// The component's name.
    pub name: String,
    /// Its process id inside the node.
    pub pid: i32,
    /// How it ended, if it did.
    pub ended: Option<String>,
}

/// How long an order may take: starting a process is quick, but the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives one order and returns the answer; a refusal is an error.
pub(crate) fn ask(socket: &Path, request: &Request) -> Result<Reply> {
    let mut stream = UnixStream::connect(socket).map_err(Error::io("reach the node at", socket))?;
    let talk = |stream: &mut UnixStream| -> std::io::Result<Reply> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&serde_json::to_vec(request)?)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    };
    match talk(&mut stream).map_err(Error::io("give an order at", socket))? {
        Reply::Failed(problem) => Err(Error::unexpected("node", problem)),
        reply => Ok(reply),
    }
}
