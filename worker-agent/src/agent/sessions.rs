//! Sessions of an agent: starts an executor for a session, ends it with the session's grant, and extends the grants of sessions that have a
//! connected client.

use std::{sync::Arc, time::Duration};

use sahasra_executor_protocol::clock::monotonic_now;
use sahasra_names::UnknownName;
use sahasra_service::tasks;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Agent;
use crate::session_executors::{launch::LaunchError, process::Process, registry::Session};

#[cfg(test)]
mod tests;

/// Interval at which the grants of connected sessions are extended: a small fraction of the shortest grant.
const EXTEND_EVERY: Duration = Duration::from_secs(1);
/// Delay after the end of its grant at which an executor exits on its own, in case the agent hangs. A working agent ends the executor
/// earlier.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for the end of all session executors when the agent shuts down.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason why a client cannot connect to a session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the session has ended")]
    Ended,
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Agent {
    /// Returns the executor of a session, and starts one if none runs.
    pub async fn executor_of(self: &Arc<Self>, session: &Arc<Session>) -> Result<Arc<Process>, ConnectError> {
        let _changing = session.changing.lock().await;
        if let Some(process) = session.process() {
            return Ok(process);
        }
        let launcher = &self.sessions.launcher;
        let device = self.parts.pool.device(&session.device).ok_or(ConnectError::Ended)?;
        let terms = session.terms();
        let engine = terms.engine.parse().map_err(|UnknownName(engine)| LaunchError::NoEngine {
            device: device.name.clone(),
            engine,
        })?;
        // The slice counts as in use from before the process exists until after it has been reaped.
        let occupied = self.change(|ledger, now| ledger.occupy(now, &session.owner_uid, &session.device, 1));
        if occupied == 0 || session.ended.is_cancelled() {
            self.vacate_session(session, occupied);
            return Err(ConnectError::Ended);
        }
        let launched = launcher.launch(device, &terms.namespace, engine, session.limit_bytes).await;
        let process = match launched {
            Ok(process) => Arc::new(process),
            Err(error) => {
                self.vacate_session(session, occupied);
                return Err(error.into());
            }
        };
        // Not within the span of the client's stream, which the executor can outlive.
        let span = tracing::info_span!(
            parent: None,
            "session",
            session = terms.name,
            namespace = terms.namespace,
            worker = self.identity.worker.as_str(),
            device = session.device.as_str(),
            process = process.id()
        );
        span.in_scope(|| tracing::info!("executor started"));
        self.publish_end(session, &process);
        session.set_process(Some(Arc::clone(&process)));
        let watch = Arc::clone(self).watch_executor(Arc::clone(session), Arc::clone(&process));
        tasks::spawn(watch.instrument(span));
        Ok(process)
    }

    /// Writes to the executor's status page when its session ends unless the grant is extended.
    fn publish_end(&self, session: &Session, process: &Process) {
        let left = self.change(|ledger, now| Some(ledger.ends(&session.owner_uid)?.saturating_sub(now)));
        if let Some(left) = left {
            process.status_page().set_until(monotonic_now().saturating_add(left + HANG_TIMEOUT));
        }
    }

    fn vacate_session(&self, session: &Session, slices: u32) {
        self.change(|ledger, now| ledger.vacate(now, &session.owner_uid, &session.device, slices));
    }

    /// Waits for the first of two events: when the grant ends, ends the executor; when the executor exits on its own, ends the grant.
    async fn watch_executor(self: Arc<Self>, session: Arc<Session>, process: Arc<Process>) {
        let end = tokio::select! {
            () = session.ended.cancelled() => process.end().await,
            () = process.ended() => process.reap().await,
        };
        let changing = session.changing.lock().await;
        // An exit on its own counts as a loss whatever the status, even 0: nobody requested it, and the client's tensors and programs are
        // gone.
        let lost = !session.ended.is_cancelled();
        if lost {
            tracing::warn!(end, "executor lost");
            self.sessions.lost(&session, end, self.clock.now());
        } else {
            tracing::info!(end, "executor ended");
        }
        self.sessions.executor_ended(&session, &process, self.clock.now());
        // `changing` stays locked meanwhile, so that no client starts another executor: the end of the grant would end that one at once.
        self.change(|ledger, now| {
            ledger.vacate(now, &session.owner_uid, &session.device, 1);
            if lost {
                ledger.forfeit(now, &session.owner_uid);
            }
        });
        drop(changing);
        tasks::blocking(move || self.sessions.launcher.trim_cache()).await;
    }

    /// Extends the grants of sessions with a connected client, each up to the session's limit, and writes to the executors when their sessions end.
    /// Needs neither operator nor API server. Runs until `stop` is cancelled.
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
                if process.status_page().stats().connected {
                    self.change(|ledger, now| ledger.extend(now, &session.owner_uid, session.ttl(), session.limit()));
                }
                self.publish_end(&session, &process);
            }
        }
    }

    /// Ends all session executors, and waits until their processes have exited or [`END_TIMEOUT`] has passed.
    pub(super) async fn end_sessions(&self) {
        let sessions = self.sessions.all();
        sessions.iter().for_each(|session| session.ended.cancel());
        let ended = async {
            for process in sessions.iter().filter_map(|session| session.process()) {
                process.ended().await;
            }
        };
        if tokio::time::timeout(END_TIMEOUT, ended).await.is_err() {
            tracing::warn!("timed out waiting for executors of sessions to end");
        }
    }
}
