//! Model of burst executors: they speak the real protocol with their real supervisors, but wait instead of computing.
//!
//! The result of a chunk, its duration and whether its kernel fails are functions of the burst's salt and the chunk's index
//! ([`crate::kernel`]), so that every reported result can be checked.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use futures::{FutureExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use sahasra_executor_protocol::burst::{
    messages::{Ended, Ready, Returned, Settled, from_executor, to_executor},
    status_page::{Activity, StatusPage},
};
use sahasra_service::tasks;
use sahasra_wire::{
    Message,
    burst::{ChunkRange, Failure, FailureCode, Program, ResultRun},
};
use sahasra_worker::{
    burst_executors::{Process, TaskEnd, launch::Launcher},
    devices::DeviceDescription,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    book::{Live, Running},
    kernel::{self, Outcome},
    world::World,
};

/// Starts modelled executors for one agent.
#[derive(Debug)]
pub struct Models {
    world: Arc<World>,
    index: usize,
    executors: AtomicU32,
    /// Cancelled to kill all running executors, and then replaced by a new token.
    killing: Mutex<CancellationToken>,
}

impl Models {
    /// Creates the launcher of the agent with this index.
    pub fn new(world: Arc<World>, index: usize) -> Arc<Self> {
        Arc::new(Self {
            world,
            index,
            executors: AtomicU32::new(0),
            killing: Mutex::default(),
        })
    }

    /// Kills all executors, as a signal from outside would.
    pub fn kill_all(&self) {
        std::mem::take(&mut *self.killing.lock()).cancel();
    }
}

impl Launcher for Models {
    fn launch<'a>(&'a self, device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Process>> {
        Box::pin(async move {
            let number = self.executors.fetch_add(1, Ordering::Relaxed) + 1;
            sleep(Duration::from_millis(5 + self.world.below(100))).await;
            let status_page = Arc::new(StatusPage::create()?.0);
            let (process, end) = Process::task(number, Arc::clone(&status_page));
            self.world.note(format_args!(
                "worker-{} executor {number} on {} for {namespace}",
                self.index, device.name
            ));
            let live = self.world.agent(self.index).ok_or_else(|| io::Error::other("the agent is gone"))?;
            let executor = Executor {
                world: Arc::clone(&self.world),
                live,
                device: device.name.to_string(),
                lanes: device.lanes as usize,
                status_page,
                runs: BTreeMap::new(),
                free: (0..device.lanes as usize).rev().collect(),
                busy: FuturesUnordered::new(),
                alone: false,
            };
            let killed = self.killing.lock().child_token();
            tasks::spawn(executor.live(end, killed));
            Ok(process)
        })
    }

    fn monotonic_now(&self) -> Duration {
        monotonic_now(&self.world)
    }
}

fn monotonic_now(world: &World) -> Duration {
    // Starts at 1 s, because a time on a status page must not be 0.
    Duration::from_secs(1) + world.elapsed()
}

struct Run {
    program: Program,
    salt: u32,
    waiting: VecDeque<(ChunkRange, bool)>,
    limit: u32,
    active: u32,
    paused: bool,
    closed: bool,
    /// Change of the limit that has not taken effect yet.
    change: Option<(u32, u64)>,
    /// Cancelled to revoke the running chunks, and then replaced by a new token.
    revoking: CancellationToken,
    /// Code with which revoked chunks fail.
    revoked_with: i32,
}

struct Executor {
    world: Arc<World>,
    live: Arc<Live>,
    device: String,
    lanes: usize,
    status_page: Arc<StatusPage>,
    runs: BTreeMap<u64, Run>,
    free: Vec<usize>,
    busy: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Whether a chunk that is suspected of ending its executor runs alone.
    alone: bool,
}

struct Done {
    run: u64,
    lane: usize,
    index: u64,
    attempt: u32,
    /// Outcome of the chunk; absent if its slice was revoked.
    outcome: Option<Outcome>,
    running: Running,
}

impl Executor {
    async fn live(mut self, end: TaskEnd, signal: CancellationToken) {
        let TaskEnd {
            mut incoming,
            outgoing,
            killed,
            gone,
        } = end;
        let say = |kind| drop(outgoing.send(kind));
        say(from_executor::Kind::Ready(Ready { lanes: self.lanes as u32 }));
        loop {
            self.fill();
            tokio::select! {
                biased;
                () = killed.cancelled() => break,
                () = signal.cancelled() => break,
                told = incoming.recv() => match told {
                    Some(told) => self.obey(told).into_iter().for_each(say),
                    None => break,
                },
                Some(done) = self.busy.next() => match self.end(done) {
                    Some(said) => said.into_iter().for_each(say),
                    None => break,
                },
            }
        }
        drop(outgoing);
        // The system reclaims the resources of a process shortly after it has ended.
        sleep(Duration::from_millis(1 + self.world.below(50))).await;
        drop(self);
        drop(gone);
    }

    fn obey(&mut self, told: to_executor::Kind) -> Vec<from_executor::Kind> {
        match told {
            to_executor::Kind::Open(open) => {
                let program = Program::decode(open.program).unwrap_or_default();
                let run = Run {
                    salt: kernel::salt(&program),
                    program,
                    waiting: VecDeque::new(),
                    limit: 0,
                    active: 0,
                    paused: false,
                    closed: false,
                    change: None,
                    revoking: CancellationToken::new(),
                    revoked_with: 0,
                };
                self.runs.insert(open.run, run);
            }
            to_executor::Kind::Submit(submit) => {
                if let Some(run) = self.runs.get_mut(&submit.run) {
                    run.waiting.extend(submit.ranges.into_iter().map(|range| (range, submit.alone)));
                }
            }
            to_executor::Kind::SetConcurrency(change) => {
                if let Some(run) = self.runs.get_mut(&change.run) {
                    run.limit = change.limit;
                    run.change = Some((change.limit, change.change));
                }
                return self.settle(change.run).into_iter().collect();
            }
            to_executor::Kind::Withdraw(id) => {
                let Some(run) = self.runs.get_mut(&id) else { return Vec::new() };
                let ranges: Vec<ChunkRange> = run.waiting.drain(..).map(|(range, _)| range).collect();
                if !ranges.is_empty() {
                    return vec![from_executor::Kind::Returned(Returned { run: id, ranges })];
                }
            }
            to_executor::Kind::Pause(pause) => {
                if let Some(run) = self.runs.get_mut(&pause.run) {
                    run.paused = pause.paused;
                }
            }
            to_executor::Kind::Revoke(revoke) => {
                if let Some(run) = self.runs.get_mut(&revoke.run) {
                    run.revoked_with = revoke.code;
                    std::mem::take(&mut run.revoking).cancel();
                }
            }
            to_executor::Kind::Close(id) => {
                if let Some(run) = self.runs.get_mut(&id) {
                    run.closed = true;
                    run.waiting.clear();
                    if run.active == 0 {
                        self.runs.remove(&id);
                    }
                }
            }
        }
        Vec::new()
    }

    fn settle(&mut self, id: u64) -> Option<from_executor::Kind> {
        let run = self.runs.get_mut(&id)?;
        let (limit, change) = run.change.filter(|(limit, _)| run.active <= *limit)?;
        run.change = None;
        Some(from_executor::Kind::Settled(Settled { run: id, limit, change }))
    }

    /// Starts as many chunks as the limits allow.
    fn fill(&mut self) {
        while !self.free.is_empty() && !self.alone {
            let open = |run: &Run| !run.paused && run.active < run.limit && !run.waiting.is_empty();
            let Some((id, run)) = self.runs.iter_mut().find(|(_, run)| open(run)) else {
                return;
            };
            let alone = run.waiting.front().is_some_and(|(_, alone)| *alone);
            if alone && !self.busy.is_empty() {
                return;
            }
            let Some((range, _)) = run.waiting.front_mut() else { return };
            let (index, attempt) = (range.first, range.attempt);
            range.first += 1;
            range.count -= 1;
            if range.count == 0 {
                run.waiting.pop_front();
            }
            let Some(lane) = self.free.pop() else { return };
            run.active += 1;
            self.alone = alone;
            let running = self.live.run(&self.world, &self.device, run.program.slice_bytes);
            let activity = Activity::Running { run: *id, index };
            self.status_page.begin_at(lane, activity, monotonic_now(&self.world));
            let slow = self.world.conditions().slow.get(&self.live.index).copied().unwrap_or(1);
            let planned = kernel::run(run.salt, index, attempt);
            let revoked = run.revoking.clone();
            let (run, lasts) = (*id, planned.lasts * u32::try_from(slow).unwrap_or(1));
            self.busy.push(
                async move {
                    let ends = async {
                        if planned.outcome == Outcome::Hangs {
                            std::future::pending::<()>().await;
                        }
                        sleep(lasts).await;
                        planned.outcome
                    };
                    let outcome = revoked.run_until_cancelled(ends).await;
                    Done {
                        run,
                        lane,
                        index,
                        attempt,
                        outcome,
                        running,
                    }
                }
                .boxed(),
            );
        }
    }

    /// Handles the end of a chunk. Returns the messages to the supervisor, or `None` if the chunk ended its executor.
    fn end(&mut self, done: Done) -> Option<Vec<from_executor::Kind>> {
        let Done {
            run: id,
            lane,
            index,
            attempt,
            outcome,
            running,
        } = done;
        match outcome {
            Some(Outcome::Crashes) => return None,
            Some(Outcome::Poisons) => {
                self.status_page.poison();
                return None;
            }
            _ => {}
        }
        drop(running);
        self.status_page.end(lane);
        self.free.push(lane);
        self.alone = false;
        let run = self.runs.get_mut(&id)?;
        run.active -= 1;
        let (closed, active, salt, revoked_with) = (run.closed, run.active, run.salt, run.revoked_with);
        if closed {
            if active == 0 {
                self.runs.remove(&id);
            }
            return Some(Vec::new());
        }
        let mut ended = Ended {
            run: id,
            ..Ended::default()
        };
        let failed = match outcome {
            None => Some((revoked_with, "its slice was taken back while it ran")),
            Some(Outcome::Fails) => Some((FailureCode::Trap as i32, "trap")),
            Some(_) => None,
        };
        if let Some((code, message)) = failed {
            ended.failed.push(Failure {
                first: index,
                count: 1,
                attempt,
                code,
                message: message.to_owned(),
            });
        } else {
            ended.succeeded.push(ResultRun {
                first: index,
                count: 1,
                attempt,
                outputs: kernel::value(salt, index).to_le_bytes().to_vec().into(),
            });
        }
        let mut said = vec![from_executor::Kind::Ended(ended)];
        said.extend(self.settle(id));
        Some(said)
    }
}
