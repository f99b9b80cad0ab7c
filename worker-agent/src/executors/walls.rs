//! Which walls this machine has for executors: a child puts them up and tells.

use std::path::Path;
use std::time::Duration;

use super::ask::{AskError, ask};
use super::spawn;
use crate::executor::sandbox::Walls;

/// How long that may take, on a machine that has much else to do.
const WITHIN: Duration = Duration::from_secs(60);
/// What helps where something is missing.
const REMEDY: &str = "a kernel from 6.12 on with CONFIG_SECURITY_LANDLOCK and `landlock` among the `lsm=` of its command line (6.2 for executors of \
                      the CPU engine), and a container runtime that lets Landlock and seccomp through";

/// Why executors are not to be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WallsError {
    /// Nobody knows.
    #[error("nothing is known of the walls of executors")]
    Unknown(#[from] AskError),
    /// They do not come about.
    #[error("the walls of executors do not come about: {0}")]
    Broken(String),
    /// They are required, and not complete.
    #[error("the walls of executors are required, and this machine lacks {missing}; what helps: {REMEDY}")]
    Missing {
        /// What it lacks, in words.
        missing: String,
    },
}

/// Tells in the log what this machine lacks of the walls, for executors of a `gpu` too.
///
/// # Errors
/// [`WallsError`]; [`WallsError::Missing`] where they are `required` alone.
pub(crate) async fn check(program: &Path, gpu: bool, required: bool) -> Result<(), WallsError> {
    let walls: Result<Walls, String> = ask(spawn::command(program, "walls"), WITHIN).await?;
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
