//! Showing what goes on: a bar with rate and remaining time on a terminal, a plain line now and then elsewhere.
//!
//! Whatever else is said while a bar is shown is said through [`aside`], or it would end up in the line of the bar.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the bar moves.
const MOVES_EVERY: Duration = Duration::from_millis(200);
/// When the first plain line is printed: work that is done sooner has none.
const FIRST_LINE: Duration = Duration::from_millis(400);
/// How long it takes until the next plain line: logs are to stay short.
const NEXT_LINE: Duration = Duration::from_secs(5);

/// How far some work is.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// What was done, in words.
    pub text: String,
    /// What the numbers count.
    pub unit: Unit,
    /// How much is done.
    pub done: u64,
    /// How much there is in all; 0 while nobody knows.
    pub total: u64,
}

/// What is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    #[default]
    Bytes,
    /// Whatever the words say.
    Things,
}

/// Whether and how progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// Not at all.
    Off,
    /// By lines.
    Lines,
    /// By a bar.
    Bar,
}

impl Display {
    /// What fits the standard error output.
    pub fn choose(wanted: bool) -> Display {
        match (wanted, std::io::stderr().is_terminal()) {
            (false, _) => Display::Off,
            (true, true) => Display::Bar,
            (true, false) => Display::Lines,
        }
    }

    /// Runs `work` and shows its progress meanwhile.
    pub fn during<T>(self, state: impl Fn() -> State + Send, work: impl FnOnce() -> T) -> T {
        self.during_every(NEXT_LINE, state, work)
    }

    /// The same with as much time between plain lines.
    pub fn during_every<T>(
        self,
        interval: Duration,
        state: impl Fn() -> State + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        if self == Display::Off {
            return work();
        }
        std::thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            scope.spawn(move || match self {
                Display::Bar => move_bar(&ended, state),
                _ => print_lines(&ended, interval, state),
            });
            let outcome = work();
            drop(done);
            outcome
        })
    }
}

/// The bar that is shown now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn show(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Prints something while no bar is in the way: the bar steps aside, and comes back below.
pub fn aside<T>(print: impl FnOnce() -> T) -> T {
    match &*SHOWN.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// The standard error output beside the bar; the log writes whole lines to it.
pub struct Aside;

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        aside(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn move_bar(ended: &mpsc::Receiver<()>, state: impl Fn() -> State) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let mut known = None;
    show(Some(bar.clone()));
    while ended.recv_timeout(MOVES_EVERY) == Err(RecvTimeoutError::Timeout) {
        let now = state();
        if known != Some(now.total > 0) {
            known = Some(now.total > 0);
            bar.set_style(style(now.unit, now.total > 0));
        }
        if now.total > 0 {
            bar.set_length(now.total.max(now.done));
        }
        bar.set_position(now.done);
        bar.set_message(now.text);
        bar.tick();
    }
    show(None);
    bar.finish_and_clear();
}

fn style(unit: Unit, has_total: bool) -> ProgressStyle {
    let template = match (unit, has_total) {
        (Unit::Bytes, false) => "{spinner} {wide_msg} {binary_bytes_per_sec}",
        (Unit::Bytes, true) => "{spinner} {wide_msg} [{bar:20}] {percent}% {binary_bytes_per_sec} {eta}",
        (Unit::Things, false) => "{spinner} {wide_msg} {per_sec}",
        (Unit::Things, true) => "{spinner} {wide_msg} [{bar:20}] {percent}% {per_sec} {eta}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn print_lines(ended: &mpsc::Receiver<()>, interval: Duration, state: impl Fn() -> State) {
    let (started, mut wait) = (Instant::now(), FIRST_LINE.min(interval));
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        eprintln!(" {}", words(&state(), started.elapsed()));
        wait = interval;
    }
}

/// The state with what a bar would show, in words.
fn words(state: &State, elapsed: Duration) -> String {
    let mut text = state.text.clone();
    let seconds = elapsed.as_secs_f64();
    if state.done > 0 && seconds > 0.0 {
        let rate = state.done as f64 / seconds;
        text.push_str(&match state.unit {
            Unit::Bytes => format!(", {}/s", crate::output::bytes(rate as u64)),
            Unit::Things => format!(", {rate:.0}/s"),
        });
    }
    if state.total > 0 {
        let total = state.total.max(state.done);
        text.push_str(&format!(", {}%", state.done.saturating_mul(100) / total));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_a_bar_shows() {
        let state = State { text: "3 hashed".into(), done: 5000, total: 20_000, ..State::default() };
        assert_eq!(words(&state, Duration::from_secs(5)), "3 hashed, 1 KB/s, 25%");
        let state = State { unit: Unit::Things, ..state };
        assert_eq!(words(&state, Duration::from_secs(5)), "3 hashed, 1000/s, 25%");
        assert_eq!(words(&State { text: "0 hashed".into(), ..State::default() }, Duration::ZERO), "0 hashed");
    }

    #[test]
    fn work_that_is_not_shown_is_done_all_the_same() {
        let state = || State::default();
        for display in [Display::Off, Display::Lines, Display::Bar] {
            assert_eq!(display.during(state, || 7), 7);
        }
    }
}
