//! Short-lived child processes that answer one query: a query that may crash or hang gets a process of its own.

use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;

/// Limit of an answer in bytes; the rest is not read.
const ANSWER: u64 = 1 << 20;

/// Errors of a query by a child process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("failed to start the probe: {0}")]
    Start(io::Error),
    #[error("failed to read the output of the probe: {0}")]
    Read(io::Error),
    /// The child did not answer in time and was killed.
    #[error("the probe timed out after {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the probe crashed ({0})")]
    Crashed(ExitStatus),
}

/// Runs a child process, and returns its standard output, parsed as JSON. Kills the child if it does not exit `within` this time.
pub(crate) async fn ask<T: DeserializeOwned>(command: Command, within: Duration) -> Result<T, AskError> {
    let mut child = tokio::process::Command::from(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(AskError::Start)?;
    let answered = async {
        let mut answer = Vec::new();
        if let Some(output) = child.stdout.take() {
            output.take(ANSWER).read_to_end(&mut answer).await?;
        }
        Ok((answer, child.wait().await?))
    };
    match tokio::time::timeout(within, answered).await {
        Err(_) => Err(AskError::Silent(within)),
        Ok(Err(error)) => Err(AskError::Read(error)),
        Ok(Ok((answer, status))) => serde_json::from_slice(&answer).map_err(|_| AskError::Crashed(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, within: Duration) -> Result<Vec<u32>, AskError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        ask(command, within).await
    }

    #[tokio::test]
    async fn a_child_answers_or_says_why_not() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo '[1, 2]'", long).await.unwrap(), [1, 2]);
        let crashed = shell("echo '[1'; kill -SEGV $$", long).await.unwrap_err();
        assert!(crashed.to_string().starts_with("the probe crashed (signal: 11"), "{crashed}");
        let silent = shell("exec sleep 600", Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(silent, AskError::Silent(_)), "{silent}");
        let missing = ask::<()>(Command::new("/nowhere/sahasra"), long).await.unwrap_err();
        assert!(matches!(missing, AskError::Start(_)), "{missing}");
    }
}
