//! The session executor: a child process that holds one session's tensors and programs on one device and communicates directly with the
//! session's client.
//!
//! ```text
//!  agent ──connections (adopt)──► control thread
//!                                     │ starts
//!            ┌────────────────────────▼──────────────┐
//!  client ══►│ reader ─► Hub: Link, inbox ─► engine  │   State: names, failures, memory, answers, on an
//!  client ◄══│ writer ◄─ Hub: answers     ◄─ thread  │   Engine: xla (a PJRT plugin) or ptx (a Device); or CudaState
//!            └───────────────────────────────────────┘
//!                 status page ──► agent
//! ```
//!
//! [`link`] implements the numbering, windows and resumption of the stream without knowledge of its content; [`state`] implements the
//! operations without knowledge of connections. Both are pure. Each connection has a reader thread and a writer thread. One thread drives
//! the engine, in the client's order; for a client that waits for each answer it reads and writes the connection itself (`docs/adr/0036`).
//! The client's tensors and programs outlive its connection until the grace period is over. The process ends when its control socket
//! closes. `docs/protocol.md` states what clients may rely on.

mod answer;
mod connection;
mod engine;
mod engine_thread;
mod engines;
mod hub;
mod link;
mod payload;
mod state;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sahasra_executor_protocol::clock::monotonic_now;
use sahasra_executor_protocol::session::adoption;
use sahasra_executor_protocol::session::status_page::StatusPage;
use sahasra_names as names;

#[cfg(test)]
pub(crate) use self::engines::cuda::ON_GPU;

use self::connection::Connections;
use self::engine::ENGINE_STACK;
use self::hub::{Hub, Offer};
use crate::assigned::Assigned;
use crate::process::end_process;

/// Timeout for sending the reason to a connected client when the session ends.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_millis(50);
/// Polling interval for the session's expiry before the agent has set it.
const EXPIRY_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Memory for a plugin, its compiler and the stacks of threads, in bytes.
const OWN_BYTES: u64 = 4 << 30;
/// Time during which connections are accepted and receive the reason if the engine cannot be opened.
const REJECTION_PERIOD: Duration = Duration::from_secs(1);

/// Options of a process that holds a session.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Program interface of the session.
    #[arg(long)]
    pub engine: names::Engine,
    /// Device memory that each further context of engine cuda takes, in bytes.
    #[arg(long, default_value_t = 0)]
    pub context_bytes: u64,
    /// Library of the PJRT plugin of engine xla.
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder for compiled programs of engine xla [default: programs are kept in memory].
    #[arg(long, value_name = "DIR")]
    pub program_cache_dir: Option<PathBuf>,
    /// Maximum size of this folder in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    pub program_cache_limit_bytes: u64,
    /// Private folder for temporary files.
    #[arg(long, value_name = "DIR")]
    pub scratch_dir: Option<PathBuf>,
    /// Name of the agent's abstract Unix socket where clients of engine cuda on this machine get shared memory [default: none is shared].
    #[arg(long, value_name = "NAME")]
    pub shared_memory_socket: Option<String>,
    #[command(flatten)]
    pub assigned: Assigned,
    /// Boot id of this machine's kernel, which cannot be read in the sandbox.
    #[arg(skip)]
    pub kernel_boot_id: Option<String>,
}

impl Options {
    /// The offer of shared memory to clients.
    fn offer(&self) -> Option<Offer> {
        Some(Offer {
            socket: self.shared_memory_socket.clone()?,
            kernel_boot_id: self.kernel_boot_id.clone()?,
        })
    }
}

/// Limit for the host memory of an executor on a CPU device, in bytes: the stored tensors, as much again for data in transit, and a fixed
/// amount for the compiler.
pub(crate) fn own_memory_bytes(limit_bytes: u64) -> u64 {
    limit_bytes.saturating_mul(2).saturating_add(OWN_BYTES)
}

/// Serves one session: receives connections over `control`, and ends the process when `control` closes. Returns only if the engine cannot
/// be opened.
pub(crate) fn serve(control: UnixStream, status_page: StatusPage, options: Options) -> ExitCode {
    let (sender, opened) = mpsc::channel();
    let builder = std::thread::Builder::new()
        .name("session-engine".to_owned())
        .stack_size(ENGINE_STACK);
    let started = builder.spawn(move || {
        engines::open(status_page, &options, |outcome| {
            // The receiver waits for the outcome, so sending cannot fail.
            let _ = sender.send(outcome);
        });
    });
    let opened = match started {
        Ok(_) => opened.recv().unwrap_or_else(|_| Err("the engine thread ended".to_owned())),
        Err(error) => Err(format!("failed to spawn the engine thread: {error}")),
    };
    match opened {
        Ok(hub) => serve_connections(&control, &hub),
        Err(reason) => {
            eprintln!("failed to open the engine: {reason}");
            reject_connections(&control, &reason);
            ExitCode::FAILURE
        }
    }
}

fn serve_connections(control: &UnixStream, hub: &Arc<Hub>) -> ! {
    let watching = Arc::clone(hub);
    let watch = std::thread::Builder::new().name("session-expiry".to_owned());
    if let Err(error) = watch.spawn(move || watch_expiry(&watching)) {
        // The session still works: its agent can end it.
        eprintln!("failed to spawn the session expiry thread: {error}");
    }
    let connections = Connections::default();
    loop {
        match adoption::receive(control) {
            Ok(Some(adopted)) => {
                if let Err(error) = connections.serve(hub, adopted) {
                    eprintln!("failed to serve a connection: {error}");
                }
            }
            Ok(None) => {
                // If the agent has died, the client finds out itself: it reconnects to the worker and reports what was lost.
                if hub.status_page.is_over() {
                    hub.end(
                        "the session has ended: it was deleted, exceeded its idle timeout, or expired",
                        FINAL_MESSAGE_TIMEOUT,
                    );
                }
                end_process()
            }
            Err(error) => {
                eprintln!("failed to receive a connection from the agent: {error}");
                end_process()
            }
        }
    }
}

/// Ends the session when its time is over and the agent has neither extended nor ended it, as when the agent hangs. Otherwise the session
/// would use memory that may be granted to another owner once the agreed time has passed.
fn watch_expiry(hub: &Hub) -> ! {
    loop {
        let Some(until) = hub.status_page.until() else {
            std::thread::sleep(EXPIRY_POLL_INTERVAL);
            continue;
        };
        let Some(left) = until.checked_sub(monotonic_now()) else {
            hub.end(
                "the session has expired: the agent of its worker stopped responding and did not extend it in time",
                FINAL_MESSAGE_TIMEOUT,
            );
            end_process()
        };
        std::thread::sleep(left + Duration::from_nanos(1));
    }
}

/// Rejects connections that arrive within [`REJECTION_PERIOD`] with `reason`.
fn reject_connections(control: &UnixStream, reason: &str) {
    let until = Instant::now() + REJECTION_PERIOD;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if control.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match adoption::receive(control) {
            Ok(Some(adopted)) => connection::reject(adopted, reason),
            Ok(None) | Err(_) => return,
        }
    }
}
