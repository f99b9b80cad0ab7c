//! Model of session executors: each reports a connected client and a running execution, until it is killed or exits on its own.

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use sahasra_names::{Backend, Engine};
use sahasra_service::tasks;
use sahasra_worker::{
    devices::DeviceDescription,
    session_executors::{
        launch::{Launch, LaunchError},
        process::{Process, TaskEnd},
    },
};
use tokio::{sync::oneshot, time::sleep};

use crate::world::World;

/// Status with which an executor exits on its own, as `wait(2)` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A signal ends the executor: it crashes, or the system is out of memory.
    Killed,
    /// The executor exits with status 0.
    Success,
    /// The executor exits with status 1.
    Failure,
}

impl Exit {
    fn status(self) -> ExitStatus {
        ExitStatus::from_raw(match self {
            Self::Killed => 9,
            Self::Success => 0,
            Self::Failure => 1 << 8,
        })
    }
}

/// Starts modelled session executors for one agent.
#[derive(Debug)]
pub struct SessionModels {
    world: Arc<World>,
    index: usize,
    launched: AtomicU32,
}

impl SessionModels {
    /// Creates the launcher of the agent with this index.
    pub fn new(world: &Arc<World>, index: usize) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            index,
            launched: AtomicU32::new(0),
        })
    }
}

impl Launch for SessionModels {
    fn engines(&self, _backend: Backend) -> Vec<Engine> {
        vec![Engine::Ptx]
    }

    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        _engine: Engine,
        _limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>> {
        Box::pin(async move {
            let id = self.launched.fetch_add(1, Ordering::Relaxed) + 1;
            sleep(Duration::from_millis(5 + self.world.below(100))).await;
            let (process, end) = Process::task(id)?;
            self.world.note(format_args!(
                "worker-{} session executor {id} on {} for {namespace}",
                self.index, device.name
            ));
            let (exit, exits) = oneshot::channel();
            self.world.session_executors.lock().insert((self.index, id), exit);
            let world = Arc::clone(&self.world);
            tasks::spawn(live(world, end, exits));
            Ok(process)
        })
    }

    fn trim_cache(&self) {}
}

async fn live(world: Arc<World>, end: TaskEnd, exits: oneshot::Receiver<Exit>) {
    end.status_page.set_connected(true);
    end.status_page.execution_begins();
    let exit = tokio::select! {
        biased;
        () = end.killed.cancelled() => Exit::Killed,
        exit = exits => exit.unwrap_or(Exit::Killed),
    };
    // The system reclaims the resources of a process shortly after it has ended.
    sleep(Duration::from_millis(1 + world.below(50))).await;
    end.exit(exit.status());
}
