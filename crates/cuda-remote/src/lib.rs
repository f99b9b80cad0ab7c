//! The device of a session of the engine `cuda`, for a CUDA driver library: a [`Device`] whose queues are contexts at the far end of a
//! session stream.
//!
//! ```text
//! driver library ──► RemoteQueue ──► Outbox (batches, one order for all queues) ──► sahasra_client::Session ──► session executor
//!                        ◄── answers to reads, loads and waits ─────────────────────────┘
//! ```
//!
//! An operation is encoded into the current batch and needs no system call. A thread of the device sends batches while no thread waits; a thread
//! that waits sends the batch itself. Tickets count operations on both sides, so that a wait names the operation it waits for.

mod addresses;
mod contexts;
mod lent;
mod marks;
mod mirrors;
mod outbox;
mod pinned;
mod progress;
mod queue;
mod statistics;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use sahasra_client::{Error, Options, Session, Target};
use sahasra_cuda_device::{Device, Failure, FailureKind, HostBlock, KeptAddresses, Properties, Queue};
use sahasra_error_chain::causes;
use sahasra_wire::session::RejectionCode;

use contexts::Contexts;
use outbox::Outbox;
use queue::{LEAST_PINNED_BYTES, RemoteQueue};

/// Time for which the session keeps the device's memory after a connection broke, unless it is resumed.
pub const GRACE: Duration = Duration::from_secs(30);

/// Alignment of pinned memory in bytes.
const PAGE_BYTES: usize = 4096;

/// Time for which the end of a process waits until the session has freed the device's memory.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The device of a session.
#[derive(Debug)]
pub struct RemoteDevice {
    properties: Properties,
    outbox: Arc<Outbox>,
    contexts: Arc<Contexts>,
    /// Addresses of the device.
    _kept: Option<KeptAddresses>,
}

impl RemoteDevice {
    /// Connects to a session. With `shares_memory`, copies go through shared memory if the session is on this machine.
    ///
    /// # Errors
    /// The reason why the session cannot be reached, or that its engine is another one.
    pub fn connect(target: Target, shares_memory: bool) -> Result<Self, String> {
        let options = Options {
            grace: GRACE,
            shares_memory,
            ..Options::default()
        };
        let text = |error: Error| match &error {
            Error::Refused {
                code: RejectionCode::Busy, ..
            } => "another program uses the session: wait until it has ended, or use another session".to_owned(),
            error => causes(error),
        };
        let (session, connected) = Session::begin(target, options).map_err(text)?;
        connected.wait().map_err(text)?;
        let welcome = session.welcome().ok_or("the session sent no greeting")?;
        let Some(device) = welcome.cuda else {
            return Err(format!(
                "the session has engine {}: CUDA programs require a GpuSession with spec.engine cuda",
                welcome.engine
            ));
        };
        let properties = Properties::of_session(*device, welcome.limit_bytes)?;
        let kept = addresses::keep(&properties.addresses)?;
        let outbox = Outbox::start(session).map_err(|error| format!("failed to start a thread: {error}"))?;
        Ok(Self {
            properties,
            outbox,
            contexts: Arc::default(),
            _kept: kept,
        })
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

impl Device for RemoteDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn summary(&self) -> Option<String> {
        let traffic = self.outbox.session().traffic();
        let (statistics, sent, received) = (self.outbox.statistics(), traffic.sent_bytes, traffic.received_bytes);
        let copied = match self.outbox.session().shared_memory() {
            Some(_) => format!("{} bytes copied through shared memory", statistics.shared_bytes()),
            None => "no shared memory".to_owned(),
        };
        Some(format!("{statistics}, {sent} bytes sent, {received} received, {copied}"))
    }

    fn allocate_host(&self, bytes: usize, alignment: usize) -> Option<HostBlock> {
        let shared = self.outbox.session().shared_memory();
        let shared = shared.filter(|_| bytes >= LEAST_PINNED_BYTES && alignment <= PAGE_BYTES);
        match shared.and_then(|memory| memory.allocate_pinned(bytes)) {
            // SAFETY: the value keeps the memory, and gives it only to the block.
            Some(memory) => Some(unsafe { HostBlock::owned_by(memory.start(), bytes, memory) }),
            None => HostBlock::new(bytes, alignment),
        }
    }

    fn close(&self) {
        let _ = self.outbox.session().close().wait_for(CLOSE_TIMEOUT);
    }

    fn open(&self) -> Result<Arc<dyn Queue>, Failure> {
        if let Some(error) = self.outbox.session().ended() {
            return Err(failure(&error));
        }
        let context = self.contexts.add()?;
        Ok(Arc::new(RemoteQueue::new(
            Arc::clone(&self.outbox),
            Arc::clone(&self.contexts),
            context,
        )))
    }
}

/// The failure of an operation, from the session's error.
fn failure(error: &Error) -> Failure {
    match error {
        Error::Failed(failed) => Failure::new(failed.code.into(), failed.message.as_str()),
        error => Failure::new(FailureKind::Lost, causes(error)),
    }
}
