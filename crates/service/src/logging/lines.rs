//! Log lines on their way to standard error. A thread of its own writes them, so that a full pipe blocks no other thread. Lines
//! that do not fit in memory meanwhile are lost, and counted.

use std::{
    io::{self, Write},
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::{
    MakeWriter,
    format::Writer,
    time::{FormatTime, SystemTime},
};

use super::LogFormat;

/// Target of the line about lost lines.
const TARGET: &str = "sahasra_service::logging";
/// Bytes of lines that wait to be written.
const LIMIT_BYTES: usize = 1 << 20;
/// Time after which a write to a full pipe is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Time to wait at the end of a process until its lines are written.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Lines that wait to be written. Cheap to clone.
#[derive(Clone)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// Lines that were lost since `text` was full.
    lost: u64,
    /// Whether the thread writes what it has taken.
    is_writing: bool,
}

impl Waiting {
    fn has_any(&self) -> bool {
        !self.text.is_empty() || self.lost > 0
    }
}

impl Lines {
    /// Starts the thread that writes to `sink`. Fails if the system provides no thread.
    pub(super) fn start(sink: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        let lines = Self(Arc::default());
        let shared = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&shared, sink, format))?;
        Ok(lines)
    }

    /// Waits until everything is written, for at most `time`. Returns whether it is.
    pub(super) fn flush(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut waiting = self.0.waiting.lock();
        while waiting.is_writing || waiting.has_any() {
            if self.0.changed.wait_until(&mut waiting, end).timed_out() {
                return false;
            }
        }
        true
    }
}

/// Writes lines for as long as the process runs.
fn write(shared: &Shared, mut sink: impl Write, format: LogFormat) {
    loop {
        let (text, lost) = {
            let mut waiting = shared.waiting.lock();
            waiting.is_writing = false;
            shared.changed.notify_all();
            while !waiting.has_any() {
                shared.changed.wait(&mut waiting);
            }
            waiting.is_writing = true;
            (mem::take(&mut waiting.text), mem::take(&mut waiting.lost))
        };
        // One by one, so that lines of other processes on the same pipe stand between them.
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        let lost = lost + lines.map(|line| u64::from(write_line(&mut sink, line).is_err())).sum::<u64>();
        if lost > 0 {
            // An error could only be reported to the same place.
            let _ = write_line(&mut sink, loss(lost, format).as_bytes());
        }
    }
}

/// Writes a line, also to a pipe that another process has made non-blocking.
fn write_line(sink: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match sink.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_AFTER),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The line about lines that were lost.
fn loss(lost: u64, format: LogFormat) -> String {
    let message = format!("{lost} lines of the log were lost here: standard error was not read");
    let mut time = String::new();
    // A text takes what is written to it.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    match format {
        LogFormat::Text => format!("{time}  WARN {TARGET}: {message}\n"),
        LogFormat::Json => {
            let fields = format!("{{\"message\":\"{message}\"}}");
            format!("{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"fields\":{fields},\"target\":\"{TARGET}\"}}\n")
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Lines {
    /// Takes a whole line, or loses it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.waiting.lock();
        // Behind a line that was lost, shorter ones are too: the count stands where they would be.
        let is_full = !waiting.text.is_empty() && waiting.text.len() + line.len() > LIMIT_BYTES;
        if waiting.lost > 0 || is_full {
            waiting.lost += 1;
        } else {
            waiting.text.extend_from_slice(line);
            self.0.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of a process. When it is dropped at the end of `main`, lines that wait are written, unless standard error is not read.
#[must_use = "lines may be lost unless it lives until the end of the process"]
pub struct Log(pub(super) Option<Lines>);

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(lines) = &self.0 {
            lines.flush(END_WITHIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    #[test]
    fn a_full_pipe_blocks_no_caller_and_lost_lines_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer, LogFormat::Text).unwrap();
        let sent = 100_000_u64;
        for number in 0..sent {
            (&lines).write_all(format!("line {number:032}\n").as_bytes()).unwrap();
        }
        assert!(!lines.flush(Duration::ZERO), "the pipe is full");
        let (mut next, mut lost) = (0, 0);
        let mut reader = BufReader::new(reader).lines();
        // Lines can be lost more than once, if the thread that writes starts late.
        while next < sent {
            let line = reader.next().unwrap().unwrap();
            match line.split_once("  WARN sahasra_service::logging: ") {
                Some((_, told)) => {
                    lost = told.split(' ').next().unwrap().parse().unwrap();
                    next += lost;
                }
                None => {
                    assert_eq!(line, format!("line {next:032}"), "no line is cut, and each that is lost is counted");
                    next += 1;
                }
            }
        }
        assert!(lost > 0 && next == sent, "{next}");
        assert!(lines.flush(Duration::from_secs(60)));
        (&lines).write_all(b"again\n").unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), "again");
    }

    #[test]
    fn a_line_beyond_the_limit_silences_no_later_one() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer, LogFormat::Text).unwrap();
        let mut reader = BufReader::new(reader).lines();
        for length in [LIMIT_BYTES + 1, 3] {
            (&lines).write_all(format!("{}\n", "x".repeat(length)).as_bytes()).unwrap();
            assert_eq!(reader.next().unwrap().unwrap().len(), length);
        }
    }

    #[test]
    fn a_loss_is_told_in_the_format_of_the_log() {
        assert!(loss(3, LogFormat::Text).contains(": 3 lines of the log were lost"));
        assert!(loss(3, LogFormat::Json).starts_with(r#"{"timestamp":"2"#));
        assert!(loss(3, LogFormat::Json).contains(r#"Z","level":"WARN","fields":{"message":"3 lines"#));
        assert!(loss(3, LogFormat::Json).ends_with("}\n"));
    }

    #[test]
    fn no_line_is_lost_at_a_normal_end() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = Log(Some(Lines::start(writer, LogFormat::Text).unwrap()));
        let reading = thread::spawn(move || {
            let mut text = vec![0; 20 * 10_000];
            reader.read_exact(&mut text).map(|()| text)
        });
        for number in 0..10_000 {
            let mut lines = log.0.as_ref().unwrap();
            lines.write_all(format!("line {number:014}\n").as_bytes()).unwrap();
        }
        let lines = log.0.clone().unwrap();
        drop(log);
        assert!(lines.flush(Duration::ZERO));
        assert!(reading.join().unwrap().unwrap().ends_with(b"line 00000000009999\n"));
    }
}
