//! The agent's part in sessions: executors started and ended with their grants, grants kept for who is there.

use std::{sync::Arc, time::Duration};

use sahasra_service::part;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Agent;
use crate::session::{
    board::monotonic_nanoseconds,
    process::{LaunchError, Process},
    sessions::{Session, Sessions},
};

#[cfg(test)]
mod tests;

/// How often the grants of connected sessions are extended: a small part of the shortest that they last.
const EXTEND_EVERY: Duration = Duration::from_secs(1);
/// An executor ends by itself so long after its grant has: an agent that does not hang is faster.
const HANGING: Duration = Duration::from_secs(2);
/// How long executors of sessions may take to end when the agent does.
const ENDING: Duration = Duration::from_secs(2);

/// Why a client does not get in.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The session's slice is on its way back.
    #[error("the session has ended")]
    Ended,
    /// There is no executor.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Agent {
    /// Its sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The executor of a session; started if none runs.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn executor_of(self: &Arc<Self>, session: &Arc<Session>) -> Result<Arc<Process>, ConnectError> {
        let mut executor = session.executor.lock().await;
        if let Some(process) = &*executor {
            return Ok(Arc::clone(process));
        }
        let launcher = self.sessions.launcher().ok_or(LaunchError::NoLauncher)?;
        let device = self.pool.devices().iter().find(|device| device.name == session.device);
        let device = device.ok_or(ConnectError::Ended)?;
        // In use from before there is a process until after there is none.
        let occupied = self.change(|ledger, now| ledger.occupy(now, &session.owner_uid, &session.device, 1));
        if occupied == 0 || session.ended.is_cancelled() {
            self.vacate_session(session, occupied);
            return Err(ConnectError::Ended);
        }
        let terms = session.terms();
        let launched = launcher.launch(device, &terms.namespace, &terms.engine, session.limit_bytes).await;
        let process = match launched {
            Ok(process) => Arc::new(process),
            Err(error) => {
                self.vacate_session(session, occupied);
                return Err(error.into());
            }
        };
        tracing::info!(
            session = terms.name,
            namespace = terms.namespace,
            device = session.device,
            process = process.id(),
            "executor started"
        );
        self.say_how_long(session, &process);
        *executor = Some(Arc::clone(&process));
        session.set_process(Some(Arc::clone(&process)));
        part::spawn(Arc::clone(self).watch_executor(Arc::clone(session), Arc::clone(&process)));
        Ok(process)
    }

    /// Tells an executor until when its session lasts as things stand.
    fn say_how_long(&self, session: &Session, process: &Process) {
        let left = self.change(|ledger, now| Some(ledger.ends(&session.owner_uid)?.saturating_sub(now)));
        if let Some(left) = left {
            let left = u64::try_from((left + HANGING).as_nanos()).unwrap_or(u64::MAX);
            process.board().set_until(monotonic_nanoseconds().saturating_add(left));
        }
    }

    fn vacate_session(&self, session: &Session, slices: u32) {
        self.change(|ledger, now| ledger.vacate(now, &session.owner_uid, &session.device, slices));
    }

    /// Ends an executor with its grant, and the grant with an executor that ended by itself.
    async fn watch_executor(self: Arc<Self>, session: Arc<Session>, process: Arc<Process>) {
        let end = tokio::select! {
            () = session.ended.cancelled() => process.end().await,
            () = process.ended() => process.reap().await,
        };
        let mut executor = session.executor.lock().await;
        // However it ended, even with status 0: nobody asked for that, and what its client had is gone.
        let lost = !session.ended.is_cancelled();
        let terms = session.terms();
        if lost {
            tracing::warn!(
                session = terms.name,
                namespace = terms.namespace,
                process = process.id(),
                end,
                "executor lost"
            );
            self.sessions.lost(&session, end, self.clock.elapsed());
        } else {
            tracing::info!(
                session = terms.name,
                namespace = terms.namespace,
                process = process.id(),
                end,
                "executor ended"
            );
        }
        self.sessions.executor_ended(&session, &process, self.clock.elapsed());
        *executor = None;
        // While nobody can have another one started: it would be ended at once with the grant.
        self.change(|ledger, now| {
            ledger.vacate(now, &session.owner_uid, &session.device, 1);
            if lost {
                ledger.forfeit(now, &session.owner_uid);
            }
        });
        drop(executor);
        part::blocking(move || {
            if let Some(launcher) = self.sessions.launcher() {
                launcher.trim_cache();
            }
        })
        .await;
    }

    /// Keeps the grants of sessions whose client is connected, each within its limit, whoever else is gone, and tells their
    /// executors how long they last. Until cancelled.
    pub async fn keep_sessions(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = interval(EXTEND_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            for session in self.sessions.all() {
                let Some(process) = session.process() else { continue };
                if process.board().figures().connected {
                    self.change(|ledger, now| ledger.extend(now, &session.owner_uid, session.ttl(), session.limit()));
                }
                self.say_how_long(&session, &process);
            }
        }
    }

    /// Ends all executors of sessions, and waits until they have.
    pub(super) async fn end_sessions(&self) {
        let sessions = self.sessions.all();
        sessions.iter().for_each(|session| session.ended.cancel());
        let ended = async {
            for process in sessions.iter().filter_map(|session| session.process()) {
                process.ended().await;
            }
        };
        if tokio::time::timeout(ENDING, ended).await.is_err() {
            tracing::warn!("executors of sessions did not end in time");
        }
    }
}
