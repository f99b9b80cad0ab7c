//! Check of the sandbox of executors: a child process applies the sandbox on this machine and reports which parts the kernel supports.

use std::path::Path;
use std::time::Duration;

use sahasra_executor_protocol::probe::Walls;

use super::ask::{AskError, ask};
use super::spawn;

/// Timeout of the child process, generous for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);
/// Advice for a machine that lacks part of the sandbox.
const REMEDY: &str = "a kernel from 6.12 on with CONFIG_SECURITY_LANDLOCK and `landlock` among the `lsm=` of its command line (6.2 for executors of \
                      the CPU engine), and a container runtime that lets Landlock and seccomp through";

/// Reason why executors must not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WallsError {
    #[error("nothing is known of the walls of executors")]
    Unknown(#[from] AskError),
    /// The sandbox cannot be applied.
    #[error("the walls of executors do not come about: {0}")]
    Broken(String),
    /// The sandbox is required, and this machine lacks part of it.
    #[error("the walls of executors are required, and this machine lacks {missing}; what helps: {REMEDY}")]
    Missing {
        /// Description of the missing parts.
        missing: String,
    },
}

/// Logs which parts of the sandbox this machine lacks; with `gpu`, also for executors of a GPU.
///
/// # Errors
/// [`WallsError`]; [`WallsError::Missing`] only if the sandbox is `required`.
pub(crate) async fn check(program: &Path, gpu: bool, required: bool) -> Result<(), WallsError> {
    let walls: Result<Walls, String> = ask(spawn::command(program, "check-sandbox"), WITHIN).await?;
    let walls = walls.map_err(WallsError::Broken)?;
    let missing = walls.missing(gpu).join("; ");
    if missing.is_empty() {
        tracing::info!(landlock = walls.landlock, "executors are walled in");
    } else if required {
        return Err(WallsError::Missing { missing });
    } else {
        tracing::warn!(
            missing,
            remedy = REMEDY,
            "EXECUTORS ARE NOT WALLED IN: one that a tenant breaks into can do more than it should"
        );
    }
    Ok(())
}
