//! Progress of a run on standard error: one line that is redrawn on a terminal, a new line once in a while elsewhere.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Minimum time between two lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two redraws of the line on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(80);
/// Width of the progress bar in characters.
const BAR: usize = 24;
/// Minimum time over which the rate is measured.
const RATE_OVER: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    pub held: u64,
    pub total: u64,
    pub done: u64,
    pub failed: u64,
    pub retried: u64,
    /// Message of an object that waits while no slice is held, or whose progress cannot be saved.
    pub waiting: Option<String>,
}

impl Snapshot {
    /// Returns the rate in chunks a second, and the remaining seconds at that rate.
    fn pace(&self, since: &[(Instant, u64)], now: Instant) -> (f64, Option<f64>) {
        let counted = self.done + self.failed;
        let Some((at, before)) = since.first() else { return (0.0, None) };
        let seconds = now.duration_since(*at).as_secs_f64();
        let rate = if seconds > 0.0 {
            counted.saturating_sub(*before) as f64 / seconds
        } else {
            0.0
        };
        let left = (rate > 0.0 && self.total > counted).then(|| (self.total - counted) as f64 / rate);
        (rate, left)
    }

    /// Formats the snapshot for one line of a terminal, without counts that are zero.
    fn short(&self, rate: f64, left: Option<f64>) -> String {
        let mut line = format!("{}/{} chunks", self.done, self.total);
        for (figure, word) in [(self.failed, "failed"), (self.retried, "retried")] {
            if figure > 0 {
                line.push_str(&format!("  {figure} {word}"));
            }
        }
        line + &format!("  {}{}", slices_held(self.held), self.outlook(rate, left, "  "))
    }

    fn line(&self, rate: f64, left: Option<f64>) -> String {
        format!(
            "{}   {} of {} chunks done   {} failed   {} retried{}",
            slices_held(self.held),
            self.done,
            self.total,
            self.failed,
            self.retried,
            self.outlook(rate, left, "   ")
        )
    }

    /// Formats a rate, the remaining time and the reason for a wait as `100/s`, `6 s left` and `waiting: REASON`, each after `gap`.
    fn outlook(&self, rate: f64, left: Option<f64>, gap: &str) -> String {
        let rate = if rate > 0.0 { format!("{gap}{rate:.0}/s") } else { String::new() };
        let left = left.map(|left| format!("{gap}{} left", time(left))).unwrap_or_default();
        let waiting = self.waiting.as_ref().map(|waiting| format!("{gap}waiting: {waiting}"));
        rate + &left + &waiting.unwrap_or_default()
    }
}

fn slices_held(number: u64) -> String {
    let noun = if number == 1 { "slice" } else { "slices" };
    format!("{number} {noun} held")
}

/// Formats a duration as `8 s`, `3 min 20 s` or `2 h 5 min`.
fn time(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[derive(Debug)]
pub(super) struct Progress {
    live: bool,
    shown: Option<(Instant, Snapshot)>,
    /// Chunks counted at earlier times, oldest first; the rate is measured from the oldest.
    counted: Vec<(Instant, u64)>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            live: io::stderr().is_terminal(),
            shown: None,
            counted: Vec::new(),
        }
    }

    /// Shows the snapshot if it differs from the last one shown, and enough time has passed.
    pub(super) fn show(&mut self, snapshot: &Snapshot, now: Instant) {
        self.counted.push((now, snapshot.done + snapshot.failed));
        while self.counted.len() > 2 && now.duration_since(self.counted[1].0) >= RATE_OVER {
            self.counted.remove(0);
        }
        let every = if self.live { DRAW_EVERY } else { LINE_EVERY };
        let due = (self.shown.as_ref()).is_none_or(|(at, last)| now.duration_since(*at) >= every && last != snapshot);
        if due {
            self.draw(snapshot, now);
        }
    }

    pub(super) fn end(&mut self, snapshot: &Snapshot, now: Instant) {
        if self.shown.as_ref().is_none_or(|(_, last)| last != snapshot) {
            // Without a rate and a remaining time.
            self.counted.clear();
            self.draw(snapshot, now);
        }
        if self.live {
            let _ = writeln!(io::stderr());
        }
    }

    fn draw(&mut self, snapshot: &Snapshot, now: Instant) {
        let (rate, left) = snapshot.pace(&self.counted, now);
        let mut screen = io::stderr().lock();
        let _ = if self.live {
            // Returns to the beginning of the line and clears it.
            write!(
                screen,
                "\r\x1b[2K{} {}",
                bar(snapshot),
                cut(&snapshot.short(rate, left), width().saturating_sub(BAR + 3))
            )
        } else {
            writeln!(screen, "{}", snapshot.line(rate, left))
        };
        let _ = screen.flush();
        self.shown = Some((now, snapshot.clone()));
    }
}

fn bar(snapshot: &Snapshot) -> String {
    let counted = (snapshot.done + snapshot.failed).min(snapshot.total);
    let full = if snapshot.total == 0 {
        0
    } else {
        counted as usize * BAR / snapshot.total as usize
    };
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

fn width() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_remaining_time_are_computed_from_counted_chunks() {
        let began = Instant::now();
        let now = began + Duration::from_secs(4);
        let snapshot = Snapshot {
            held: 8,
            total: 1000,
            done: 390,
            failed: 10,
            retried: 2,
            waiting: None,
        };
        let (rate, left) = snapshot.pace(&[(began, 0)], now);
        assert_eq!((rate, left), (100.0, Some(6.0)));
        assert_eq!(
            snapshot.line(rate, left),
            "8 slices held   390 of 1000 chunks done   10 failed   2 retried   100/s   6 s left"
        );
        assert_eq!(
            snapshot.short(rate, left),
            "390/1000 chunks  10 failed  2 retried  8 slices held  100/s  6 s left"
        );
        assert_eq!((slices_held(0), slices_held(1)), ("0 slices held".into(), "1 slice held".into()));
        assert_eq!(bar(&snapshot), format!("[{}{}]", "#".repeat(9), "-".repeat(15)));
        assert_eq!(snapshot.pace(&[], now), (0.0, None));
        assert_eq!(
            (time(58.2), time(61.0), time(7500.0)),
            ("59 s".into(), "1 min 1 s".into(), "2 h 5 min".into())
        );
    }
}
