//! What becomes of the chunks that a lost process had. The status board says what was in flight; the rest costs no attempt,
//! unless a process keeps ending with nothing in flight: then an attempt is charged, so that it cannot go on for ever.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use sahasra_wire::burst::FailureCode;

use super::run::Event;
use super::supervise::{Cause, Entry};
use crate::executor::board::{Activity, Board, monotonic_nanoseconds};

/// Processes in a row that may end with nothing in flight before their chunks are charged an attempt.
const FREE_LOSSES: u32 = 2;

/// A process that is gone.
pub(super) struct Loss<'a> {
    pub(super) board: &'a Board,
    pub(super) cause: Option<&'a Cause>,
    pub(super) how: &'a str,
    /// Its device had been opened.
    pub(super) ready: bool,
    /// Processes in a row, this one included, that ended nothing.
    pub(super) fruitless: u32,
    pub(super) timeouts: &'a HashMap<u64, Duration>,
    pub(super) grace: Duration,
}

/// How a process ended, in words.
pub(super) fn describe(status: Option<ExitStatus>, cause: Option<&Cause>, unavailable: Option<&str>, poisoned: bool) -> String {
    match (cause, unavailable) {
        (Some(Cause::Killed { .. }), _) => return "executor was ended with its grant".to_owned(),
        (Some(Cause::Hung), _) => return "executor hung and was killed".to_owned(),
        (Some(Cause::NotReady), _) => return "executor did not become ready".to_owned(),
        (Some(Cause::Nonsense(what)), _) => return format!("executor sent {what} and was killed"),
        (Some(Cause::ShutDown), _) => return "the agent shuts down".to_owned(),
        (None, Some(reason)) => return format!("device cannot be opened: {reason}"),
        (None, None) if poisoned => return "executor's context was poisoned by a kernel".to_owned(),
        (None, None) => {}
    }
    match status.and_then(|status| status.signal()) {
        Some(signal) => format!("executor was ended by signal {signal}"),
        None => format!(
            "executor ended with status {}",
            status.and_then(|status| status.code()).unwrap_or(-1)
        ),
    }
}

/// Settles every chunk of every run, or keeps it as a suspect.
pub(super) fn account(runs: &mut BTreeMap<u64, Entry>, loss: Loss<'_>) {
    let now = monotonic_nanoseconds();
    let poisoned = loss.board.is_poisoned();
    let innocent = matches!(loss.cause, Some(Cause::Killed { .. } | Cause::ShutDown));
    let mut charged = false;
    for slot in loss.board.slots() {
        let elapsed = Duration::from_nanos(now.saturating_sub(slot.since));
        match slot.activity {
            Activity::Preparing { run } if !innocent => {
                if let Some(entry) = runs.get_mut(&run) {
                    charged = true;
                    let message = format!("{} while it prepared the program", loss.how);
                    entry.shared.fail_all(FailureCode::ExecutorLost, &message);
                }
            }
            Activity::Preparing { .. } => {}
            Activity::Running { run, index } => {
                let Some(entry) = runs.get_mut(&run) else { continue };
                let Some(range) = entry.shared.attempt_of(index) else { continue };
                charged = true;
                let timeout = loss.timeouts.get(&run).copied().unwrap_or_default();
                let hung = loss.cause == Some(&Cause::Hung) && elapsed > timeout + loss.grace;
                let (code, message) = if slot.timed_out || hung {
                    let message = format!("ran longer than {} ms and could not be ended in its process", timeout.as_millis());
                    (FailureCode::ChunkTimeout, message)
                } else if poisoned && !entry.alone.contains(&index) {
                    entry.suspects.push(range);
                    continue;
                } else {
                    let code = match loss.cause {
                        Some(Cause::Killed { run: killed, code }) if *killed == run => *code,
                        Some(Cause::ShutDown) => FailureCode::ShuttingDown,
                        _ => FailureCode::ExecutorLost,
                    };
                    (code, loss.how.to_owned())
                };
                entry.shared.settle(Event::Failed { range, code, message });
            }
        }
    }
    for entry in runs.values_mut() {
        entry.clear_work();
        let endless = !charged && !innocent && !poisoned && loss.fruitless > FREE_LOSSES;
        if (!loss.ready && !innocent) || endless {
            entry.suspects.clear();
            entry.shared.fail_all(FailureCode::ExecutorLost, loss.how);
        } else {
            entry.shared.return_all_but(&entry.suspects);
        }
    }
}
