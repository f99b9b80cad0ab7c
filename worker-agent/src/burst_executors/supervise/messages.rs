//! Messages between a supervisor and its process. Messages from the process are not trusted: reports of chunks that the process does not
//! have, or outputs of a wrong size, end it.

use sahasra_executor_protocol::burst::bounded_message;
use sahasra_executor_protocol::burst::messages::{Open, Pause, SetConcurrency, Submit, from_executor, to_executor};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::ChunkRange;

use super::Supervisor;
use crate::burst_executors::entry::Cause;
use crate::burst_executors::outstanding::Stage;
use crate::burst_executors::run::Event;

impl Supervisor {
    pub(super) fn set_concurrency(&mut self, id: u64, concurrency: u32) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.concurrency = concurrency;
        run.change += 1;
        if run.opened {
            let change = SetConcurrency {
                run: id,
                limit: concurrency,
                change: run.change,
            };
            self.send(to_executor::Kind::SetConcurrency(change));
        } else {
            run.settled = run.change;
            run.shared.settled(concurrency);
            self.hand_over(id);
        }
    }

    /// Sends the waiting chunks of a run to the process.
    pub(super) fn hand_over(&mut self, id: u64) {
        let (Some(process), Some(run)) = (&mut self.process, self.runs.get_mut(&id)) else {
            return;
        };
        if self.makes_room {
            return;
        }
        if !run.has_work() || (!run.opened && run.concurrency == 0) {
            return;
        }
        self.idle_since = None;
        if !run.opened {
            run.opened = true;
            let program = &run.shared.program;
            let timeout = program.program.chunk_timeout();
            self.timeouts.insert(id, timeout);
            process.send(to_executor::Kind::Open(Open {
                run: id,
                program: program.encoded.clone(),
            }));
            process.send(to_executor::Kind::SetConcurrency(SetConcurrency {
                run: id,
                limit: run.concurrency,
                change: run.change,
            }));
            if run.shared.is_paused() {
                process.send(to_executor::Kind::Pause(Pause { run: id, paused: true }));
            }
        }
        let (suspects, waiting) = (std::mem::take(&mut run.suspects), std::mem::take(&mut run.waiting));
        for (ranges, stage) in [(suspects, Stage::Alone), (waiting, Stage::Running)] {
            if ranges.is_empty() {
                continue;
            }
            let is_queued = |range: &AttemptRange| run.shared.advance(*range, &[Stage::Queued], stage).is_some();
            let handed = ranges.into_iter().filter(is_queued);
            let ranges = handed.map(|range| ChunkRange::new("", range));
            process.send(to_executor::Kind::Submit(Submit {
                run: id,
                ranges: ranges.collect(),
                alone: stage == Stage::Alone,
            }));
        }
    }

    pub(super) fn hear(&mut self, kind: from_executor::Kind) {
        match kind {
            from_executor::Kind::Ready(_) => {
                self.pool.states[self.place].ready();
                if let Some(process) = &mut self.process {
                    process.ready = true;
                }
            }
            // An executor truncates its messages itself, but a compromised one may not.
            from_executor::Kind::Unavailable(reason) => self.unavailable = Some(bounded_message(reason)),
            from_executor::Kind::Ended(ended) => {
                if let Some(process) = &mut self.process {
                    process.progressed = true;
                }
                // The process may still have had running chunks of a run that was closed.
                let id = ended.run;
                let Some(run) = self.runs.get_mut(&id) else { return };
                let output_bytes = run.shared.program.output_bytes;
                let mut sensible = true;
                for done in ended.succeeded {
                    let range = AttemptRange::from(&done);
                    let has_all_outputs = done.count.checked_mul(output_bytes) == Some(done.outputs.len() as u64);
                    let outputs = done.outputs;
                    sensible &= has_all_outputs && run.shared.settle(Stage::HANDED_OVER, Event::Succeeded { range, outputs });
                }
                for failure in ended.failed {
                    let code = failure.code();
                    let range = AttemptRange::from(&failure);
                    let message = bounded_message(failure.message);
                    sensible &= run.shared.settle(Stage::HANDED_OVER, Event::Failed { range, code, message });
                }
                if run.shared.must_pause() {
                    self.send(to_executor::Kind::Pause(Pause { run: id, paused: true }));
                }
                if !sensible {
                    self.kill(Cause::Nonsense("results of chunks that are not assigned to it"));
                }
            }
            from_executor::Kind::Returned(returned) => {
                let Some(run) = self.runs.get_mut(&returned.run) else { return };
                // The chunks of a recall arrive a moment later, when the process may already have been asked to stay.
                let is_kept = run.recalled && !run.withdrawn && run.revoked.is_none();
                let mut sensible = true;
                for range in returned.ranges {
                    let range = AttemptRange::from(&range);
                    sensible &= match is_kept {
                        true => run.keep(range),
                        false => run.shared.settle(Stage::HANDED_OVER, Event::Returned { range }),
                    };
                }
                if !sensible {
                    self.kill(Cause::Nonsense("back chunks that are not assigned to it"));
                } else if is_kept {
                    self.hand_over(returned.run);
                }
            }
            from_executor::Kind::Settled(settled) => {
                let Some(run) = self.runs.get_mut(&settled.run) else { return };
                if settled.change > run.settled && settled.change <= run.change {
                    run.settled = settled.change;
                    run.shared.settled(settled.limit);
                }
            }
        }
    }
}
