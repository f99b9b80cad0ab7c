//! Copies the stderr of executors (a driver's warnings, a kernel's `printf`) into the agent's log, line by line. Bounded, because a tenant
//! decides what and how much is written.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// Limit of a line in bytes. The rest of the line is dropped.
const LINE: usize = 1024;
/// Limit of lines per [`PERIOD`].
const LINES: u32 = 50;
const PERIOD: Duration = Duration::from_secs(1);

/// Copies lines into the log until the process has ended.
pub(crate) async fn log(pipe: OwnedFd) {
    let dropped = follow(pipe, |line| tracing::info!(line, "executor stderr")).await;
    if dropped > 0 {
        tracing::info!(lines = dropped, "dropped lines of executor stderr beyond the log limit");
    }
}

/// Passes lines to `line` until the process has ended. Returns the number of lines beyond the limit, which were dropped.
pub(crate) async fn follow(pipe: OwnedFd, mut line: impl FnMut(&str)) -> u64 {
    let Ok(mut pipe) = Receiver::from_owned_fd(pipe) else { return 0 };
    let mut lines = Lines::default();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.add(&buffer[..read], Instant::now(), &mut line);
    }
    lines.dropped
}

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    period: Option<(Instant, u32)>,
    dropped: u64,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], now: Instant, mut log: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE {
                    self.line.push(*byte);
                }
                continue;
            }
            let (since, lines) = self.period.get_or_insert((now, 0));
            if now.duration_since(*since) >= PERIOD {
                (*since, *lines) = (now, 0);
            }
            *lines += 1;
            if *lines > LINES {
                self.dropped += 1;
            } else {
                log(&String::from_utf8_lossy(&self.line));
            }
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_cut_and_counted() {
        let mut lines = Lines::default();
        let start = Instant::now();
        let mut seen = Vec::new();
        lines.add(b"one\ntw", start, |line| seen.push(line.to_owned()));
        lines.add(b"o\n", start, |line| seen.push(line.to_owned()));
        assert_eq!(seen, ["one", "two"]);
        lines.add(&[b'x'; 3000], start, |_| unreachable!());
        lines.add(b"\n", start, |line| assert_eq!(line.len(), LINE));
        let mut count = 0;
        lines.add(&b"spam\n".repeat(500), start, |_| count += 1);
        assert_eq!(count, LINES - 3);
        assert_eq!(lines.dropped, 500 - u64::from(LINES - 3));
        lines.add(b"later\n", start + PERIOD, |_| count += 1);
        assert_eq!(count, LINES - 2);
    }
}
