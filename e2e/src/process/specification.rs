//! Command line of a process, and how its readiness is determined.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Process, ProcessError};

/// Program, arguments and environment of a process; [`Specification::start`] starts it.
#[derive(Debug, Clone)]
pub struct Specification {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) log: PathBuf,
    pub(super) ready_url: Option<String>,
    pub(super) ready_within: Duration,
    pub(super) quiet: bool,
}

impl Specification {
    /// Specifies `program`, called `name` in messages, with its output in `NAME.log` in `log_directory`.
    pub fn new(name: &str, program: impl Into<PathBuf>, log_directory: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            log: log_directory.join(format!("{name}.log")),
            ready_url: None,
            ready_within: Duration::from_secs(60),
            quiet: false,
        }
    }

    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    #[must_use]
    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable in addition to the inherited ones.
    #[must_use]
    pub fn environment(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Sets the readiness URL: the process is ready when `GET url` answers with 200; certificates are not verified. Without a URL the process
    /// counts as ready once it is started.
    #[must_use]
    pub fn ready_at(mut self, url: impl Into<String>) -> Self {
        self.ready_url = Some(url.into());
        self
    }

    /// Sets the timeout of readiness; 60 s by default.
    #[must_use]
    pub fn ready_within(mut self, duration: Duration) -> Self {
        self.ready_within = duration;
        self
    }

    /// Shows the log only when the process does not start, and not whenever a test fails: the control plane's logs would hide those of the
    /// processes under test. The log is kept in any case.
    #[must_use]
    pub(crate) fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Starts the process and waits until it is ready.
    ///
    /// # Errors
    /// When the process cannot be started, ends, or is not ready in time; its log tail is written to stderr.
    pub async fn start(self) -> Result<Process, ProcessError> {
        let mut process = Process {
            specification: self,
            child: None,
            starts: 0,
        };
        process.start().await?;
        Ok(process)
    }
}
