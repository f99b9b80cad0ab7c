//! Turns of namespaces on a device that has no room for an executor of each.

use sahasra_executor_protocol::burst::messages::{Pause, to_executor};

use super::Supervisor;
use crate::burst_executors::{outstanding::Stage, run::Shared};

impl Supervisor {
    /// Starts to make room if another namespace waits and it is this executor's turn to leave. Stays if nobody waits any more.
    pub(super) fn take_turns(&mut self) {
        let Some(process) = &mut self.process else { return };
        let (state, turn) = (&self.pool.states[self.place], self.pool.config.turn);
        if self.makes_room {
            if !state.must_go(process.id(), false) {
                self.stay();
            }
            return;
        }
        if !process.ready || !state.must_make_room(process.id(), turn) {
            return;
        }
        self.makes_room = true;
        for (id, run) in &mut self.runs {
            if run.opened {
                run.recalled = true;
                process.send(to_executor::Kind::Pause(Pause { run: *id, paused: true }));
                process.send(to_executor::Kind::Withdraw(*id));
            }
        }
    }

    /// Lets a process that was making room continue.
    fn stay(&mut self) {
        let Some(process) = &mut self.process else { return };
        self.makes_room = false;
        for (id, run) in &self.runs {
            if run.opened {
                let paused = run.shared.is_paused();
                process.send(to_executor::Kind::Pause(Pause { run: *id, paused }));
            }
        }
        for id in self.runs.keys().copied().collect::<Vec<_>>() {
            self.hand_over(id);
        }
    }

    /// Returns whether the process has no chunk left that was handed over to it.
    pub(super) fn has_ended_all(&self) -> bool {
        let idle = self
            .process
            .as_ref()
            .is_some_and(|process| process.status_page.slots().next().is_none());
        let handed_over = |shared: &Shared| shared.chunks.count(shared.device, Stage::HANDED_OVER);
        idle && self.runs.values().all(|run| handed_over(&run.shared) == 0)
    }

    /// Ends a process that has made room, unless nobody waits any more. Chunks of its runs wait for the namespace's next turn.
    pub(super) async fn depart(&mut self) {
        let Some(process) = &mut self.process else { return };
        if !self.pool.states[self.place].must_go(process.id(), true) {
            return self.stay();
        }
        tracing::info!(executor = process.id(), "executor ended: it is another namespace's turn");
        // Room is free once the system has reclaimed the resources of the process.
        process.reap().await;
        self.forget();
    }
}
