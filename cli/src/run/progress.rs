//! How a run goes on, while it does: a live line on a terminal, a line now and then elsewhere. On standard error.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Time between two pictures of the live line.
const DRAW_EVERY: Duration = Duration::from_millis(80);
/// Width of the bar in characters.
const BAR: usize = 24;
/// The rate is that of so much time at least.
const RATE_OVER: Duration = Duration::from_secs(2);

/// How far everything is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Slices held now.
    pub held: u64,
    /// Chunks of all bursts.
    pub total: u64,
    /// Chunks that succeeded.
    pub done: u64,
    /// Chunks that failed for good.
    pub failed: u64,
    /// Attempts beyond the first.
    pub retried: u64,
    /// Why nothing runs, where nothing does.
    pub waiting: Option<String>,
}

impl Snapshot {
    /// Chunks a second, and seconds that are left at that rate.
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

    /// For a terminal's one line: what is zero is left out.
    fn short(&self, rate: f64, left: Option<f64>) -> String {
        let mut line = format!("{}/{} chunks", self.done, self.total);
        for (figure, word) in [(self.failed, "failed"), (self.retried, "retried")] {
            if figure > 0 {
                line.push_str(&format!("  {figure} {word}"));
            }
        }
        line.push_str(&format!("  {} slices held", self.held));
        line.push_str(&pace(rate, left, "  "));
        if let Some(waiting) = &self.waiting {
            line.push_str(&format!("  waiting: {waiting}"));
        }
        line
    }

    /// For a log.
    fn line(&self, rate: f64, left: Option<f64>) -> String {
        let mut line = format!(
            "{} slices held   {} of {} chunks done   {} failed   {} retried",
            self.held, self.done, self.total, self.failed, self.retried
        );
        line.push_str(&pace(rate, left, "   "));
        if let Some(waiting) = &self.waiting {
            line.push_str(&format!("   waiting: {waiting}"));
        }
        line
    }
}

/// `100/s` and `6 s left`, each behind a gap.
fn pace(rate: f64, left: Option<f64>, gap: &str) -> String {
    let rate = if rate > 0.0 { format!("{gap}{rate:.0}/s") } else { String::new() };
    let left = left.map(|left| format!("{gap}{} left", time(left))).unwrap_or_default();
    rate + &left
}

/// `8 s`, `3 min 20 s`, `2 h 5 min`.
fn time(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Shows snapshots.
#[derive(Debug)]
pub struct Progress {
    live: bool,
    shown: Option<(Instant, Snapshot)>,
    /// When how many chunks were counted: the oldest begins the rate.
    counted: Vec<(Instant, u64)>,
}

impl Progress {
    /// Live where standard error is a terminal.
    pub fn new() -> Self {
        Self {
            live: io::stderr().is_terminal(),
            shown: None,
            counted: Vec::new(),
        }
    }

    /// Shows the snapshot when it is time and it differs from the last.
    pub fn show(&mut self, snapshot: &Snapshot, now: Instant) {
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

    /// Shows the last snapshot and leaves the line.
    pub fn end(&mut self, snapshot: &Snapshot, now: Instant) {
        if self.shown.as_ref().is_none_or(|(_, last)| last != snapshot) {
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
            // To the line's beginning, and clear what stands there.
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

/// Columns of the terminal.
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
    fn rate_and_time_left_follow_from_what_was_counted() {
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
        assert_eq!(bar(&snapshot), format!("[{}{}]", "#".repeat(9), "-".repeat(15)));
        assert_eq!(snapshot.pace(&[], now), (0.0, None));
        assert_eq!(
            (time(58.2), time(61.0), time(7500.0)),
            ("59 s".into(), "1 min 1 s".into(), "2 h 5 min".into())
        );
    }
}
