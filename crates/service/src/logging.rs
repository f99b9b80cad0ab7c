//! Logging to standard error: one line with fields per event, as text, or as JSON for log collectors.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use tracing_subscriber::{
    EnvFilter,
    filter::LevelFilter,
    fmt::{self, writer::BoxMakeWriter},
};

pub use lines::Log;

use lines::Lines;

mod lines;

static LINES: OnceLock<Lines> = OnceLock::new();

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event, for log collectors.
    Json,
}

/// Checks a filter on a command line. A part without `=` must be a level: `EnvFilter` takes any other word for the name of a module.
pub fn filter(text: &str) -> Result<String, String> {
    const EXAMPLE: &str = "expected a level (off, error, warn, info, debug or trace), and with commas a level per module, such as \
                           info,sahasra_operator=debug";
    // The parts of a filter by spans contain further commas and equals signs.
    if !text.contains(['[', '{']) {
        for part in text.split(',').map(str::trim) {
            let level = part.split_once('=').map_or(part, |(_, level)| level);
            if level.parse::<LevelFilter>().is_err() {
                return Err(format!("{level:?} is not a log level: {EXAMPLE}"));
            }
        }
    }
    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: {EXAMPLE}")),
    }
}

/// Initializes logging with `filter`, such as `info` or `info,sahasra_operator=debug`. `main` calls it once, and keeps what it returns.
pub fn start(filter: &str, format: LogFormat) -> Log {
    let lines = Lines::start(io::stderr(), format).ok();
    let writer = match &lines {
        Some(lines) => BoxMakeWriter::new(lines.clone()),
        // Without a thread, lines are written as they come.
        None => BoxMakeWriter::new(io::stderr),
    };
    // Without a message about a line that cannot be written: it would go to the same standard error, and panic where that is closed.
    let builder = fmt::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(writer)
        .log_internal_errors(false);
    let outcome = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if let Err(error) = outcome {
        eprintln!("logging is already initialized: {error}");
    }
    if let Some(lines) = &lines {
        // Set once only, as logging is started once.
        let _ = LINES.set(lines.clone());
    }
    Log(lines)
}

/// Waits until what was logged is written, for at most `time`: for an end of the process that returns from no function.
pub fn flush(time: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_rejected_with_an_example() {
        for right in [
            "",
            "off",
            "info",
            "INFO",
            "info,sahasra_operator=debug",
            "h2=off",
            "[run{name=\"a\"}]=debug",
        ] {
            assert_eq!(filter(right).as_deref(), Ok(right));
        }
        for (wrong, part) in [("asd", "\"asd\""), ("foo=bar=baz", "\"bar=baz\""), ("info,foo=loud", "\"loud\"")] {
            let told = filter(wrong).unwrap_err();
            assert!(told.starts_with(part) && told.contains("info,sahasra_operator=debug"), "{told}");
        }
    }
}
