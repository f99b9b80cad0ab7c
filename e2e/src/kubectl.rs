//! Runs programs such as kubectl until they end, and captures their output.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::tools::{self, ToolError};

/// Timeout of a command: longer than any command takes on a loaded machine.
const WITHIN: Duration = Duration::from_secs(600);

/// A command could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("find the program")]
    Tool(#[from] ToolError),
    /// The program could not be started, or its output could not be read.
    #[error("run {}", program.display())]
    Run {
        program: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The command did not end in time.
    #[error("{command} has not ended after {WITHIN:?}")]
    StillRunning { command: String },
    /// The command's output is not JSON.
    #[error("read what it printed as JSON")]
    Json(#[source] serde_json::Error),
    /// The command ended with a failure.
    #[error("{0}")]
    Failed(Output),
}

/// Output and exit status of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// Command line, for messages.
    pub command: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Whether the exit code is 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Returns standard output if the command succeeded.
    ///
    /// # Errors
    /// [`CommandError::Failed`] when the exit code is not 0.
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
            // A program that does not read its input may end before all of it is written; its exit status shows whether it failed.
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
