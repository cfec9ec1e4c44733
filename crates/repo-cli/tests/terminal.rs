//! What is seen on a terminal, and what is not elsewhere: progress, colour, width, Ctrl-C.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::process;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PASSWORD: &str = "correct horse battery staple";
/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Little enough that a backup waits for its uploads, which are slow here, and shows progress meanwhile.
const LITTLE_MEMORY: &str = "--memory-budget-mb=48";

/// A user with a repository that takes a few MB a second, and a directory that takes it some seconds.
fn slow_place(folder: &Path) -> Result<Ours> {
    let ours = Ours::new(PASSWORD)?;
    ours.create_filesystem(&folder.join("repository"), &[])?;
    ours.run(["repository", "throttle", "set", "--upload-bytes-per-second=4000000"])?;
    std::fs::create_dir(folder.join("source"))?;
    for file in 0..64u64 {
        let mut state = file + 1;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = std::iter::repeat_with(next).take(1 << 20).collect();
        std::fs::write(folder.join(format!("source/{file}")), noise)?;
    }
    Ok(ours)
}

const COLUMNS: usize = 70;

/// What a terminal shows of a frame of the bar: it obeys escape sequences and does not print them. What somebody else says
/// after it, such as the terminal of a key, is not part of it.
fn plain(frame: &str) -> String {
    let frame =
        ["\n", "^C", "\u{1b}[2m"].iter().fold(frame, |frame, end| frame.split(end).next().unwrap_or(""));
    let mut parts = frame.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("")
    })
}

/// The lines that a terminal of any width has shown in the end: what went over what was there before replaces it.
fn screen(shown: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0usize, 0);
    let mut letters = shown.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' if letters.next_if_eq(&'[').is_some() => {
                let mut number = String::new();
                while let Some(digit) = letters.next_if(|c| !c.is_ascii_alphabetic()) {
                    number.push(digit);
                }
                let count = number.parse().unwrap_or(1);
                match letters.next() {
                    Some('A') => row = row.saturating_sub(count),
                    Some('B') => row += count,
                    Some('K') if number == "2" => lines[row].clear(),
                    Some('K') => lines[row].truncate(column),
                    _ => {}
                }
            }
            letter => {
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = letter;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

/// Runs a shell command in a terminal of [`COLUMNS`]; what is shown goes to `seen`.
fn in_terminal(ours: &Ours, words: &str, seen: &Path) -> Command {
    let template = ours.command(Vec::<&str>::new());
    let program = env!("CARGO_BIN_EXE_lifeboat-repo");
    let mut command = Command::new("script");
    command
        .args(["-q", "-e", "-f", "-c", &format!("stty rows 24 cols {COLUMNS}; exec {program} {words}")])
        .arg(seen)
        .env_clear()
        .envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn seen(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn wait(mut child: Child) -> Result<i32> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().unwrap_or(-1));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    anyhow::bail!("the command did not end")
}

#[test]
fn a_terminal_shows_a_bar_and_ctrl_c_ends_a_backup_that_the_next_one_goes_on_from() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ours = slow_place(folder.path())?;
    let (source, log) = (folder.path().join("source"), folder.path().join("seen"));
    let mut child =
        in_terminal(&ours, &format!("{LITTLE_MEMORY} snapshot create {}", source.display()), &log).spawn()?;
    let mut keyboard = child.stdin.take().unwrap();
    let end = Instant::now() + LIMIT;
    while !(seen(&log).contains("hashing: ") && seen(&log).contains("/s")) {
        assert!(Instant::now() < end && child.try_wait()?.is_none(), "no progress: {}", seen(&log));
        std::thread::sleep(Duration::from_millis(50));
    }
    keyboard.write_all(b"\x03")?;
    let code = wait(child)?;
    let shown = seen(&log);
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("a second signal ends at once"), "{shown}");
    assert!(shown.contains("\u{1b}[1;31merror:"), "colour on a terminal: {shown}");
    let frames = shown.split('\r').map(plain).filter(|frame| frame.contains("hashing: "));
    let widths: Vec<usize> = frames.map(|frame| frame.chars().count()).collect();
    assert!(!widths.is_empty() && widths.iter().all(|width| *width <= COLUMNS), "{widths:?}: {shown}");

    ours.run(["repository", "throttle", "set", "--upload-bytes-per-second=unlimited"])?;
    let whole = ours.snapshot(&source, &[])?;
    ours.restore(&whole.id, &folder.path().join("restored"))?;
    assert_eq!(std::fs::read(source.join("7"))?, std::fs::read(folder.path().join("restored/7"))?);
    Ok(())
}

#[test]
fn the_log_and_what_is_said_at_ctrl_c_have_lines_of_their_own_beside_the_bar() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ours = slow_place(folder.path())?;
    let (source, log) = (folder.path().join("source"), folder.path().join("seen"));
    let words = format!(
        "{LITTLE_MEMORY} --log-level debug snapshot create --log-entry-detail 5 {}",
        source.display()
    );
    let mut child = in_terminal(&ours, &words, &log).spawn()?;
    let mut keyboard = child.stdin.take().unwrap();
    let end = Instant::now() + LIMIT;
    // Some of the log has to come after the bar.
    let is_both =
        |shown: &str| shown.find("hashing: ").is_some_and(|bar| shown[bar..].contains("snapshotted"));
    while !is_both(&seen(&log)) {
        assert!(Instant::now() < end && child.try_wait()?.is_none(), "no bar or no log: {}", seen(&log));
        std::thread::sleep(Duration::from_millis(50));
    }
    keyboard.write_all(b"\x03")?;
    assert_eq!(wait(child)?, 1, "{}", seen(&log));
    let lines = screen(&seen(&log));
    let mixed = |line: &&String| line.contains("hashing: ") && line.contains("DEBUG");
    assert_eq!(lines.iter().find(mixed), None, "{lines:#?}");
    assert!(lines.iter().any(|line| line == "ending; a second signal ends at once"), "{lines:#?}");
    assert_eq!(lines.iter().find(|line| line.contains("hashing: ")), None, "the bar is gone: {lines:#?}");
    Ok(())
}

#[test]
fn elsewhere_there_are_plain_lines_or_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ours = slow_place(folder.path())?;
    let source = folder.path().join("source");
    let shown = ours.run([LITTLE_MEMORY, "snapshot", "create", source.to_str().unwrap()])?;
    let text = String::from_utf8_lossy(&shown.stderr);
    assert!(text.lines().any(|line| line.contains("hashing: ") && line.contains("uploaded")), "{text}");
    assert!(!text.contains('\r') && !text.contains('\u{1b}'), "{text}");
    assert!(shown.stdout.is_empty(), "{shown:?}");
    let logged =
        ours.run(["--log-level=debug", "snapshot", "create", source.to_str().unwrap(), "--force-hash=100"])?;
    let text = String::from_utf8_lossy(&logged.stderr);
    assert!(text.contains("DEBUG") && !text.contains('\u{1b}'), "{text}");
    let quiet = ours.run([LITTLE_MEMORY, "--no-progress", "snapshot", "create", source.to_str().unwrap()])?;
    assert!(!String::from_utf8_lossy(&quiet.stderr).contains("hashing: "));
    Ok(())
}

#[test]
fn a_reader_that_stops_is_no_error() -> Result<()> {
    let ours = Ours::new(PASSWORD)?;
    let folder = tempfile::tempdir()?;
    ours.create_filesystem(&folder.path().join("repository"), &[])?;
    let mut shell = Command::new("sh");
    let template = ours.command(Vec::<&str>::new());
    let program = env!("CARGO_BIN_EXE_lifeboat-repo");
    shell
        .args([
            "-c",
            &format!("{program} benchmark hashing --repeat 1 | head -1; {program} policy list | true"),
        ])
        .env_clear()
        .envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = process::run_ok(shell, LIMIT)?;
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
