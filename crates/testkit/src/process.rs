//! Child processes that never outlive the test that started them, and commands with an end.

// `pre_exec` is unsafe: see `die_with_parent`, the only use.
#![allow(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much of a log an error message shows.
const LOG_LINES: usize = 40;
/// How long [`Daemon::wait_until`] waits: ample for any of our servers on a busy machine, and for a process to be killed.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// The unit of times in `/proc`: Linux shows them in hundredths of a second, whatever its own clock does.
const TICK: Duration = Duration::from_millis(10);

/// A server process that is killed when this value is dropped, and by the kernel if the test process dies first.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
    /// Dropping it ends the keeper.
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts the command with its output in the file `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Daemon> {
        let output = File::create(log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        die_with_parent(&mut command);
        // The kernel sends the death signal when the *thread* that started the child ends. A test's thread ends with
        // the test, while a server may be shared by many tests, so each server gets a thread that lives as long as it.
        let (stop, stopped) = mpsc::channel::<()>();
        let (report, spawned) = mpsc::sync_channel(1);
        let keeper = std::thread::Builder::new().name(format!("keeper of {name}")).spawn(move || {
            let child = command.spawn();
            let up = child.is_ok();
            if report.send(child).is_ok() && up {
                let _ = stopped.recv();
            }
        })?;
        let child = spawned.recv()?.with_context(|| format!("start {name}"))?;
        Ok(Daemon {
            name: name.to_owned(),
            log: log.to_owned(),
            child,
            stop: Some(stop),
            keeper: Some(keeper),
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, if it did.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The last lines that the process printed, for a failure message.
    pub fn log_tail(&self) -> String {
        last_lines(&std::fs::read(&self.log).unwrap_or_default(), LOG_LINES)
    }

    /// Waits until `ready` holds; fails with the log when the process ends before or takes too long.
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < READY_LIMIT {
            if ready() {
                return Ok(());
            }
            if let Some(status) = self.exit_status() {
                bail!("{} ended ({status}) before it was ready:\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{} was not ready within {READY_LIMIT:?}:\n{}", self.name, self.log_tail())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Runs a command to its end, at most for `limit`, and returns what it printed whether it succeeded or not.
pub fn run(command: Command, limit: Duration) -> Result<Output> {
    let shown = display(&command);
    let Ended { output, by_itself, .. } = run_at_most(command, limit)?;
    ensure!(by_itself, "{shown}\n{}\ndid not end within {limit:?}", last_lines(&output.stderr, LOG_LINES));
    Ok(output)
}

/// How a command ended, and what it took.
#[derive(Debug)]
pub struct Ended {
    /// What it printed, and its status.
    pub output: Output,
    /// Whether it ended by itself, or was killed when its time was up.
    pub by_itself: bool,
    /// How long it kept processors busy, together with the processes that it waited for: what other work on the machine
    /// hardly changes.
    pub processor_time: Duration,
}

/// Runs a command for as long as it takes, or kills it after `limit`.
pub fn run_at_most(mut command: Command, limit: Duration) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    die_with_parent(&mut command);
    let mut child = command.spawn().with_context(|| format!("start {}", display(&command)))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let by_itself = has_ended(&child, limit)?;
    if !by_itself {
        child.kill()?;
        ensure!(has_ended(&child, READY_LIMIT)?, "{} cannot be killed", display(&command));
    }
    let processor_time = processor_time(child.id())?;
    let status = child.wait()?;
    let output = |reader: JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    let output = Output { status, stdout: output(stdout), stderr: output(stderr) };
    Ok(Ended { output, by_itself, processor_time })
}

/// What a process has used, also one that has ended and that nobody has waited for.
fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The second field is the name of the program, in brackets; fields 14 to 17 are the times: of its own in the program
    // and in the kernel, and the same of its children.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("{path} has no name: {text}"))?;
    let times: Vec<u32> =
        fields.split_whitespace().skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    Ok(TICK * times.into_iter().sum())
}

/// Like [`run`], but a command that does not succeed is an error with what it printed.
pub fn run_ok(command: Command, limit: Duration) -> Result<Output> {
    let shown = display(&command);
    let output = run(command, limit)?;
    if !output.status.success() {
        let (stdout, stderr) = (last_lines(&output.stdout, LOG_LINES), last_lines(&output.stderr, LOG_LINES));
        bail!("{shown}: {}\n{stdout}\n{stderr}", output.status);
    }
    Ok(output)
}

/// The last `count` lines of what a program printed.
pub fn last_lines(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The command as a person would type it, without the environment, which may hold secrets.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before a failure is all there is to show.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Whether the child ends within the limit. It is left to be waited for: until then the kernel tells what it has used.
fn has_ended(child: &Child, limit: Duration) -> Result<bool> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while started.elapsed() < limit {
        if waitid(WaitId::Pid(Pid::from_child(child)), look)?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(false)
}

/// Makes the kernel kill the child when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; `prctl` and `getppid` are plain system
    // calls that allocate nothing and take no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have died before the call above took effect.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failing_command_shows_what_it_printed() {
        let error = run_ok(shell("echo out; echo trouble >&2; exit 3"), LIMIT).unwrap_err().to_string();
        assert!(
            error.contains("trouble") && error.contains("out") && error.contains("exit status: 3"),
            "{error}"
        );
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error = run(shell("echo stuck >&2; exec sleep 600"), Duration::from_millis(300)).unwrap_err();
        assert!(format!("{error:#}").contains("did not end within"), "{error:#}");
    }

    #[test]
    fn what_a_command_has_used_is_told_whether_it_ended_or_was_killed() {
        let busy = "while :; do :; done";
        let killed = run_at_most(shell(busy), Duration::from_secs(2)).unwrap();
        assert!(!killed.by_itself && killed.processor_time > Duration::ZERO, "{killed:?}");
        let child = format!("echo out; timeout 2 sh -c '{busy}'; exit 3");
        let ended = run_at_most(shell(&child), LIMIT).unwrap();
        assert!(ended.by_itself && ended.processor_time > Duration::ZERO, "{ended:?}");
        assert_eq!((ended.output.stdout.as_slice(), ended.output.status.code()), (&b"out\n"[..], Some(3)));
    }

    #[test]
    fn a_daemon_outlives_the_thread_that_started_it_and_dies_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut daemon = std::thread::spawn(move || {
            Daemon::spawn("sleeper", shell("echo up; exec sleep 600"), &log).unwrap()
        })
        .join()
        .unwrap();
        let log = dir.path().join("log");
        daemon.wait_until(|| std::fs::read(&log).unwrap() == b"up\n").unwrap();
        assert!(daemon.exit_status().is_none());
        let proc = PathBuf::from(format!("/proc/{}", daemon.pid()));
        assert!(proc.exists());
        drop(daemon);
        assert!(!proc.exists());
    }

    #[test]
    fn a_daemon_that_ends_early_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon =
            Daemon::spawn("quitter", shell("echo no room; exit 7"), &dir.path().join("log")).unwrap();
        let error = daemon.wait_until(|| false).unwrap_err().to_string();
        assert!(error.contains("no room") && error.contains("exit status: 7"), "{error}");
    }
}
