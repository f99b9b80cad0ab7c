//! Logging to standard error: one line with fields per event, as text, or as JSON for log collectors.

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors.
    Json,
}

/// Initializes logging with `filter`, such as `info` or `info,sahasra_operator=debug`. `main` calls it once.
pub fn start(filter: &str, format: LogFormat) {
    // Without a message about a line that cannot be written: it would go to the same standard error, and panic where that is closed.
    let builder = fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let outcome = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if let Err(error) = outcome {
        eprintln!("logging was already started: {error}");
    }
}
