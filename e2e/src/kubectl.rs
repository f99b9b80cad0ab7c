//! Programs run to their end, kubectl above all, with what they printed.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::tools::{self, ToolError};

/// No command takes longer on a machine under load: one that does waits for what will not come.
const WITHIN: Duration = Duration::from_secs(600);

/// Why a command could not be run, or what it said when it failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be found or built.
    #[error("find the program")]
    Tool(#[from] ToolError),
    /// It could not be started, or its input not written.
    #[error("run {}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It did not end.
    #[error("{command} has not ended after {WITHIN:?}")]
    StillRunning {
        /// The command line.
        command: String,
    },
    /// It printed something else than JSON.
    #[error("read what it printed as JSON")]
    Json(#[source] serde_json::Error),
    /// It ended with a failure.
    #[error("{0}")]
    Failed(Output),
}

/// What a command printed and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Whether it ended with 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Standard output, or the failure.
    ///
    /// # Errors
    /// [`CommandError::Failed`] when it did not end with 0.
    pub fn success(self) -> Result<String, CommandError> {
        if self.is_success() {
            Ok(self.stdout)
        } else {
            Err(CommandError::Failed(self))
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} ended with {}: {}{}",
            self.command, self.status, self.stdout, self.stderr
        )
    }
}

/// Runs `program` with `arguments`, `KUBECONFIG` set and `input` on standard input, in the workspace's root folder.
pub(crate) async fn run<A: AsRef<OsStr>>(
    program: &Path,
    kubeconfig: &Path,
    arguments: impl IntoIterator<Item = A>,
    input: &str,
) -> Result<Output, CommandError> {
    let failed = |source| CommandError::Run {
        program: program.to_owned(),
        source,
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .current_dir(tools::workspace_root())
        .kill_on_drop(true)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let shown = shown(&command);
    let mut child = command.spawn().map_err(failed)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may be gone before all is written; how it ended tells.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ended = tokio::time::timeout(WITHIN, async { tokio::join!(feed, child.wait_with_output()).1 });
    let Ok(output) = ended.await else {
        return Err(CommandError::StillRunning { command: shown });
    };
    let output = output.map_err(failed)?;
    Ok(Output {
        command: shown,
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
