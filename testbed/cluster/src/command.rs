//! Running a program to its end: bounded in time, with the end of its output in the error.

use crate::{Error, Result};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How much of a failed program's output an error carries: enough for a stack of causes, short enough to read.
const SHOWN_OUTPUT: usize = 4000;

/// Runs `command` with `input` on its standard input and returns its standard output.
///
/// A program that is still running after `timeout` is killed, and that is an error too.
pub(crate) fn run(command: &mut Command, input: &[u8], timeout: Duration) -> Result<Vec<u8>> {
    let program = describe(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io("run", command.get_program()))?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let deadline = Instant::now() + timeout;
    thread::scope(|scope| {
        // Input and both outputs move at the same time: a full pipe in one of them must not stop the others.
        scope.spawn(move || {
            if let Some(mut pipe) = stdin {
                // A program may end without having read its input; its exit code is what counts.
                let _ = pipe.write_all(input);
            }
        });
        let out = scope.spawn(move || read_all(stdout));
        let err = scope.spawn(move || read_all(stderr));
        let mut timed_out = false;
        let status = loop {
            match child.try_wait().map_err(Error::io("wait for", &program))? {
                Some(status) => break status,
                None if Instant::now() >= deadline => {
                    timed_out = true;
                    let _ = child.kill();
                    break child.wait().map_err(Error::io("wait for", &program))?;
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let out = out.join().unwrap_or_default();
        let err = err.join().unwrap_or_default();
        if timed_out {
            return Err(Error::Timeout {
                what: format!("the end of {program}"),
                timeout,
                detail: tail(&err),
            });
        }
        if status.success() {
            return Ok(out);
        }
        let said = if err.is_empty() { tail(&out) } else { tail(&err) };
        Err(Error::Command { program: program.clone(), outcome: status.to_string(), output: said })
    })
}

/// Repeats `probe` until it returns a value; fails with the last reason after `timeout`.
pub(crate) fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut probe: impl FnMut() -> std::result::Result<T, String>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(detail) if Instant::now() >= deadline => {
                return Err(Error::Timeout { what: what.to_owned(), timeout, detail });
            }
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The end of `bytes` as text.
pub(crate) fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(SHOWN_OUTPUT);
    String::from_utf8_lossy(&bytes[start..]).trim().to_owned()
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What arrived before a read error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

/// The program and its first arguments. Secrets travel by environment, input or file, so arguments may be shown.
fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().take(12).map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
