//! Check of the sandbox of executors: a child process applies the sandbox on this machine and reports which parts the kernel supports.

use std::path::Path;
use std::time::Duration;

use sahasra_executor_protocol::probe::SandboxFeatures;

use super::ask::{AskError, ask};
use super::spawn;

/// Timeout of the child process, generous for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);
/// Advice for a machine that lacks part of the sandbox.
const REMEDY: &str = "use Linux 6.12 or newer (6.2 for executors of the CPU backend) with CONFIG_SECURITY_LANDLOCK and `landlock` in the `lsm=` \
                      of its command line, and a container runtime that permits Landlock and seccomp";

/// Reason why executors must not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxCheckError {
    #[error("failed to check the sandbox of executors")]
    Unknown(#[from] AskError),
    #[error("failed to apply the sandbox of executors: {0}")]
    Broken(String),
    #[error("the sandbox of executors is required, and this machine lacks {missing}: {REMEDY}")]
    Missing { missing: String },
}

/// Logs which parts of the sandbox this machine lacks; with `gpu`, also for executors of a GPU.
pub(crate) async fn check(program: &Path, gpu: bool, required: bool) -> Result<(), SandboxCheckError> {
    let features: Result<SandboxFeatures, String> = ask(spawn::command(program, "check-sandbox"), WITHIN).await?;
    let features = features.map_err(SandboxCheckError::Broken)?;
    let missing = features.missing(gpu).join("; ");
    if missing.is_empty() {
        tracing::info!(landlock = features.landlock, "executors are sandboxed");
    } else if required {
        return Err(SandboxCheckError::Missing { missing });
    } else {
        tracing::warn!(
            missing,
            remedy = REMEDY,
            "EXECUTORS ARE NOT FULLY SANDBOXED: a compromised executor has more access than intended"
        );
    }
    Ok(())
}
