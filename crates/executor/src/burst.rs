//! Execution of chunks: the messages of the supervisor fill a queue, and lanes run the chunks on the device.
//!
//! ```text
//!  supervisor ──Open, Submit, SetConcurrency…──► main thread ──► Queue ──► lanes ──► Device
//!      ▲  ▲                                                                 │ │
//!      │  └──────────────── frames: runs of results ◄── Reporter ◄──────────┘ │
//!      └──────────────────────────── status page (shared memory) ◄────────────┘
//! ```
//!
//! The process keeps one device context open and caches loaded modules by the hash of their text. It evaluates parameters itself, so that a
//! tenant's formulas stay in the tenant's process, and reports results in runs of consecutive chunks. It trusts only its supervisor; the
//! supervisor trusts nothing that the executor reports. The process ends when its socket closes.

mod lane;
mod program;
mod queue;
mod report;
mod results;
mod watch;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use sahasra_executor_protocol::burst::messages::{Ready, ToExecutor, from_executor::Kind, to_executor};
use sahasra_executor_protocol::burst::status_page::{MAX_LANES, StatusPage};
use sahasra_wire::frame::Decoder;

use self::report::Reporter;
use crate::device::{Device, DeviceError};
use crate::process::end_process;

/// Stack size of a lane's thread, in bytes. The engine keeps its own state on the heap; the compiler of a GPU driver needs the most stack.
const LANE_STACK: usize = 4 << 20;

/// Runs chunks on `device` until `socket` closes. Returns only if the device cannot be opened or a thread cannot be started.
pub(crate) fn serve<D: Device>(device: Result<D, DeviceError>, socket: UnixStream, status_page: StatusPage) -> ExitCode {
    let mut reader = match socket.try_clone() {
        Ok(reader) => reader,
        Err(error) => {
            eprintln!("failed to clone the socket: {error}");
            return ExitCode::FAILURE;
        }
    };
    let reporter = Reporter::new(socket);
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            reporter.send_all([Kind::Unavailable(error.to_string())]);
            return ExitCode::FAILURE;
        }
    };
    let lanes = device.lanes().clamp(1, MAX_LANES);
    let shared = Arc::new(lane::Shared::new(device, reporter, status_page, lanes));
    let watched = Arc::clone(&shared);
    let watch = std::thread::Builder::new().name("watch".to_owned()).stack_size(256 << 10);
    let watch = watch.spawn(move || watch_lanes(&watched));
    if let Err(error) = watch {
        eprintln!("failed to spawn the chunk timeout thread: {error}");
        return ExitCode::FAILURE;
    }
    shared.reporter.send_all([Kind::Ready(Ready { lanes: lanes as u32 })]);
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    let mut started = 0;
    loop {
        match reader.read(&mut buffer) {
            // End of file: the agent has ended, or no longer needs this process.
            Ok(0) => end_process(),
            Ok(read) => decoder.extend(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                eprintln!("failed to read from the agent: {error}");
                end_process();
            }
        }
        loop {
            match decoder.next_message::<ToExecutor>() {
                Ok(Some(message)) => {
                    let wanted = handle(&shared, message);
                    while started < wanted.min(lanes) {
                        start_lane(&shared, started);
                        started += 1;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    eprintln!("invalid message from the agent: {error}");
                    end_process();
                }
            }
        }
    }
}

fn watch_lanes<D: Device>(shared: &lane::Shared<D>) -> ! {
    loop {
        let interval = shared.watch.wait_for_lanes();
        if shared.watch.cancel_overdue(&shared.status_page) {
            shared.reporter.end_process();
        }
        shared.send_old_results();
        std::thread::sleep(interval);
    }
}

/// Carries out one message of the supervisor. Returns how many lanes can be used after a `SetConcurrency` message, and 0 after any other.
fn handle<D: Device>(shared: &lane::Shared<D>, message: ToExecutor) -> usize {
    let queue = &shared.queue;
    let mut lanes = 0;
    let answer = match message.kind {
        Some(to_executor::Kind::Open(open)) => {
            queue.open(open.run, open.program);
            None
        }
        Some(to_executor::Kind::Submit(submit)) => queue.submit(submit),
        Some(to_executor::Kind::SetConcurrency(change)) => {
            let settled;
            (lanes, settled) = queue.set_concurrency(change);
            settled
        }
        Some(to_executor::Kind::Withdraw(run)) => queue.withdraw(run),
        Some(to_executor::Kind::Pause(pause)) => {
            queue.pause(pause.run, pause.paused);
            None
        }
        Some(to_executor::Kind::Close(run)) => {
            queue.close(run);
            None
        }
        Some(to_executor::Kind::Revoke(revoke)) => {
            shared.watch.revoke(revoke.run, revoke.code());
            None
        }
        None => None,
    };
    shared.reporter.send_all(answer);
    lanes
}

fn start_lane<D: Device>(shared: &Arc<lane::Shared<D>>, number: usize) {
    let of_lane = Arc::clone(shared);
    let builder = std::thread::Builder::new().name(format!("lane-{number}")).stack_size(LANE_STACK);
    let started = builder.spawn(move || {
        lane::run(&of_lane, number);
        // A lane that cannot continue leaves chunks behind that no other lane would run, so the process ends and the supervisor starts a
        // new executor.
        of_lane.reporter.end_process()
    });
    if let Err(error) = started {
        eprintln!("failed to spawn the thread of lane {number}: {error}");
        shared.reporter.end_process();
    }
}
