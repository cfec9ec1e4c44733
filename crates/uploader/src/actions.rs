//! Commands that policies run before and after a directory is backed up, as Kopia runs them.
//!
//! The one before may say, by a line `KOPIA_SNAPSHOT_PATH=…` on its standard output, that the directory is to be read
//! somewhere else, such as in a snapshot of the file system; the one after is told so and takes it away again.

use crate::progress::Cancel;
use crate::{Error, Result};
use lifeboat_kopia::policy::ActionCommand;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tracing::{error, warn};

/// How long a command may take whose policy does not say.
const TIMEOUT: Duration = Duration::from_mins(3);
/// How soon it is seen that a command has ended.
const PATIENCE: Duration = Duration::from_millis(20);
/// So much of what a command prints is looked at.
const OUTPUT: u64 = 1 << 20;
/// The line of a command's output that says where the directory is to be read.
const MOVED: &[u8] = b"KOPIA_SNAPSHOT_PATH=";

/// What commands run before and after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occasion {
    /// As Kopia calls the command before: `before-folder` or `before-snapshot-root`.
    pub(crate) before: &'static str,
    /// As Kopia calls the command after.
    pub(crate) after: &'static str,
}

/// A whole snapshot.
pub(crate) const ROOT: Occasion = Occasion { before: "before-snapshot-root", after: "after-snapshot-root" };
/// One directory.
pub(crate) const FOLDER: Occasion = Occasion { before: "before-folder", after: "after-folder" };

/// A directory whose command before has run. The one after runs when this is dropped, whatever became of the backup: it
/// may have to free what the first one has taken.
#[derive(Debug)]
pub(crate) struct Scope {
    occasion: Occasion,
    after: Option<ActionCommand>,
    /// The directory of the source.
    source: PathBuf,
    /// Where it is read.
    snapshot: PathBuf,
    id: String,
    /// Where commands run. Those that nobody waits for need it, too.
    folder: Arc<TempDir>,
}

impl Scope {
    /// Runs the command before; `None` if there is none, and none after, or they are not `allowed`.
    pub(crate) fn enter(
        allowed: bool,
        occasion: Occasion,
        [before, after]: [&Option<ActionCommand>; 2],
        source: &Path,
        cancel: &Cancel,
    ) -> Result<Option<Scope>> {
        if before.is_none() && after.is_none() {
            return Ok(None);
        }
        if !allowed {
            warn!(path = %source.display(), "actions of the policy are not run: the connection does not allow it (--enable-actions)");
            return Ok(None);
        }
        let folder = tempfile::Builder::new().prefix("lifeboat-action").tempdir();
        let folder =
            folder.map_err(|e| Error::file("make a folder for actions in", &std::env::temp_dir(), e))?;
        // Kopia's is random as well: it tells runs apart, and is not the snapshot's id.
        let id = format!("{:016x}", RandomState::new().hash_one(source));
        let mut scope = Scope {
            occasion,
            after: None,
            source: source.to_owned(),
            snapshot: source.to_owned(),
            id,
            folder: Arc::new(folder),
        };
        if let Some(before) = before {
            let output = scope.run(occasion.before, before, cancel)?;
            if let Some(path) = moved(&output) {
                scope.snapshot = path;
            }
        }
        // Not before: what has failed to begin has nothing to end, as in Kopia.
        scope.after.clone_from(after);
        Ok(Some(scope))
    }

    /// Where the directory is to be read, if that is somewhere else.
    pub(crate) fn moved_to(&self) -> Option<&Path> {
        (self.snapshot != self.source).then_some(&self.snapshot)
    }

    /// Runs a command and returns what it printed. One that is not essential may fail.
    fn run(&self, name: &'static str, action: &ActionCommand, cancel: &Cancel) -> Result<Vec<u8>> {
        let failed = |reason: String| Error::Action { action: name, path: self.source.clone(), reason };
        let is_async = action.mode == "async";
        let started = self.command(name, action).and_then(|mut command| {
            command.stdout(Stdio::piped());
            if is_async {
                // Whoever reads what we print would wait for it, too.
                command.stdout(Stdio::null()).stderr(Stdio::null());
            }
            command.spawn().map_err(|error| format!("it cannot be started: {error}"))
        });
        let timeout = match u64::try_from(action.timeout_seconds) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
            _ => TIMEOUT,
        };
        let outcome = match started {
            Ok(child) if is_async => {
                self.leave_alone(child, timeout);
                return Ok(Vec::new());
            }
            Ok(child) => wait(child, timeout, cancel),
            Err(reason) => Err(reason),
        };
        match outcome {
            Ok(output) => Ok(output),
            Err(_) if cancel.is_cancelled() => Err(Error::Cancelled),
            Err(reason) if action.mode == "essential" || is_async => Err(failed(reason)),
            Err(reason) => {
                error!(path = %self.source.display(), reason, "the action {name} failed; the backup goes on, for it is not essential");
                Ok(Vec::new())
            }
        }
    }

    fn command(&self, name: &'static str, action: &ActionCommand) -> std::result::Result<Command, String> {
        let mut command = match (action.script.as_str(), action.command.as_str()) {
            ("", "") => return Err("its policy names neither a command nor a script".to_owned()),
            ("", program) => {
                let mut command = Command::new(program);
                command.args(&action.arguments);
                command
            }
            (script, _) => {
                let path = self.folder.path().join(format!("{name}.sh"));
                let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&path);
                let written = file.and_then(|mut file| file.write_all(script.as_bytes()));
                written.map_err(|error| format!("its script cannot be written: {error}"))?;
                if script.starts_with("#!") {
                    Command::new(path)
                } else {
                    let mut command = Command::new("sh");
                    command.arg("-e").arg(path);
                    command
                }
            }
        };
        command
            .current_dir(self.folder.path())
            .env("KOPIA_ACTION", name)
            .env("KOPIA_SNAPSHOT_ID", &self.id)
            .env("KOPIA_SOURCE_PATH", &self.source)
            .env("KOPIA_SNAPSHOT_PATH", &self.snapshot)
            .env("KOPIA_VERSION", env!("CARGO_PKG_VERSION"))
            .stdin(Stdio::null())
            // So that everything that it has started can be ended with it.
            .process_group(0);
        Ok(command)
    }

    /// Nobody waits for it, but as long as we live it is kept to its time and has its folder.
    fn leave_alone(&self, mut child: Child, timeout: Duration) {
        let folder = self.folder.clone();
        std::thread::spawn(move || {
            if let Err(reason) = wait_for_end(&mut child, Instant::now() + timeout, &Cancel::default()) {
                warn!(reason, "an action that nobody waits for failed");
            }
            drop(folder);
        });
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let Some(after) = self.after.take() else { return };
        // Also if the backup was cancelled: a second signal ends at once.
        if let Err(error) = self.run(self.occasion.after, &after, &Cancel::default()) {
            error!(%error);
        }
    }
}

/// The path that the last such line of the output names.
fn moved(output: &[u8]) -> Option<PathBuf> {
    let lines = output.split(|byte| *byte == b'\n');
    let path = lines.filter_map(|line| line.strip_prefix(MOVED)).next_back()?.trim_ascii_end();
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Waits for a command and for the end of its output; what runs on without a word is not waited for.
fn wait(mut child: Child, timeout: Duration, cancel: &Cancel) -> std::result::Result<Vec<u8>, String> {
    let until = Instant::now() + timeout;
    let collected = Arc::new(Mutex::new(Vec::new()));
    let ended = child.stdout.take().map(|stdout| collect(stdout, collected.clone()));
    wait_for_end(&mut child, until, cancel)?;
    if let Some(ended) = ended {
        let _ = ended.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
    Ok(std::mem::take(&mut *collected.lock()))
}

/// Reads all of an output, and keeps the beginning.
fn collect(mut stdout: ChildStdout, into: Arc<Mutex<Vec<u8>>>) -> Receiver<()> {
    let (ended_out, ended) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stdout.read(&mut buffer) {
            let mut kept = into.lock();
            let room = (OUTPUT as usize).saturating_sub(kept.len()).min(read);
            kept.extend_from_slice(&buffer[..room]);
        }
        let _ = ended_out.send(());
    });
    ended
}

/// Waits for a command to end well; one that takes too long is ended with all that it has started.
fn wait_for_end(child: &mut Child, until: Instant, cancel: &Cancel) -> std::result::Result<(), String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Err(error) => return Err(format!("it cannot be waited for: {error}")),
            Ok(None) => {}
        }
        let reason = match (Instant::now() >= until, cancel.is_cancelled()) {
            (false, false) => {
                std::thread::sleep(PATIENCE);
                continue;
            }
            (true, _) => "it took longer than its policy allows, and was ended",
            (_, true) => "the backup was cancelled",
        };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
        return Err(reason.to_owned());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn script(text: &str, mode: &str, seconds: i64) -> Option<ActionCommand> {
        Some(ActionCommand {
            script: text.to_owned(),
            mode: mode.to_owned(),
            timeout_seconds: seconds,
            ..ActionCommand::default()
        })
    }

    fn enter(before: &Option<ActionCommand>, after: &Option<ActionCommand>) -> Result<Option<Scope>> {
        Scope::enter(true, FOLDER, [before, after], Path::new("/source"), &Cancel::default())
    }

    #[test]
    fn a_command_says_where_to_read_and_the_one_after_is_told() {
        let place = tempfile::tempdir().unwrap();
        let told = place.path().join("told");
        let before = script("echo noise; echo KOPIA_SNAPSHOT_PATH=/elsewhere", "essential", 5);
        let variables = "$KOPIA_ACTION $KOPIA_SOURCE_PATH $KOPIA_SNAPSHOT_PATH";
        let after = script(&format!("echo \"{variables}\" > {}", told.display()), "essential", 5);
        let scope = enter(&before, &after).unwrap().unwrap();
        assert_eq!(scope.moved_to(), Some(Path::new("/elsewhere")));
        assert!(!told.exists());
        drop(scope);
        assert_eq!(std::fs::read_to_string(told).unwrap(), "after-folder /source /elsewhere\n");
        assert!(enter(&None, &None).unwrap().is_none());
    }

    #[test]
    fn only_essential_commands_fail_a_backup() {
        let place = tempfile::tempdir().unwrap();
        let told = place.path().join("told");
        let after = script(&format!("touch {}", told.display()), "essential", 5);
        for (text, reason) in [("exit 3", "exit status: 3"), ("sleep 60 & sleep 60", "took longer")] {
            let failed = enter(&script(text, "essential", 1), &after).unwrap_err().to_string();
            assert!(failed.contains(reason) && failed.contains("before-folder"), "{failed}");
            assert!(!told.exists(), "what did not begin is not ended");
            let scope = enter(&script(text, "optional", 1), &None).unwrap().unwrap();
            assert_eq!(scope.moved_to(), None);
        }
        let nothing = ActionCommand { mode: "essential".to_owned(), ..ActionCommand::default() };
        assert!(enter(&Some(nothing.clone()), &None).unwrap_err().to_string().contains("neither"));
        let absent = Some(ActionCommand { command: "/does/not/exist".to_owned(), ..nothing });
        assert!(enter(&absent, &None).unwrap_err().to_string().contains("cannot be started"));
    }

    #[test]
    fn nobody_waits_for_asynchronous_commands_or_for_what_stays_behind() {
        let place = tempfile::tempdir().unwrap();
        let late =
            |name: &str| format!("(sleep 60; touch {}) 2>/dev/null &", place.path().join(name).display());
        drop(enter(&script(&format!("{} wait", late("a")), "async", 120), &None).unwrap());
        // It leaves somebody behind who holds its output.
        drop(enter(&script(&late("b"), "essential", 1), &None).unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let cancelled = Cancel::default();
        cancelled.cancel();
        let slow = script("sleep 20", "optional", 60);
        let ended = Scope::enter(true, ROOT, [&slow, &None], Path::new("/source"), &cancelled);
        assert!(matches!(ended, Err(Error::Cancelled)));
        // More than is looked at must not block it.
        let loud = script("head -c 3000000 /dev/zero; echo; echo KOPIA_SNAPSHOT_PATH=/x", "essential", 30);
        assert_eq!(enter(&loud, &None).unwrap().unwrap().moved_to(), None);
    }
}
