//! State of a client of the engine `cuda`: contexts, each an ordered queue of operations on the device. Operations have no answers. Answers
//! are given when what they wait for has been executed, in any order.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use prost::{DecodeError, Message};
use sahasra_cuda_device::{
    CpuDevice, Extent, Failure, FailureKind, LoadFailure, ModuleId, Operation, Properties, Queue, Region, Ticket, WatchedDevice,
    is_machine_code, wire,
};
use sahasra_memory::{Filling, shared::Loan};
use sahasra_names::{self as names, Backend};
use sahasra_wire::cuda::{Discard, Load, Printed, Read, Wait, Waited, Write};
use sahasra_wire::session::{Done, FailureCode, Stats, Tensor, client_frame, server_frame::Kind};

use crate::gpu::{self, GpuDevice};
use crate::process::end_process;
use crate::session::FINAL_MESSAGE_TIMEOUT;
use crate::session::answer::SessionAnswer;
use crate::session::engine::Description;
use crate::session::engine_thread::ClientState;
use crate::session::hub::{Hub, Waiting};
use crate::session::payload::Payload;
use crate::session::state::Malformed;

mod context;
mod held;
mod kind;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::ON_GPU;

use context::{Context, Contexts, MAX_REFUSED, NOTHING};
use held::Held;

/// Maximum size of a batch in bytes: its operations are decoded at once.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Number of waiting requests at which later operations wait.
const MAX_WAITS: usize = 4096;
/// Maximum size of a module's description in bytes, below that of a message.
const MAX_DESCRIPTION_BYTES: usize = 960 << 10;
/// Size of the pieces in which printed text is sent, in bytes.
const PRINTED_BYTES: usize = 256 << 10;

/// The [state](self) of a client.
pub(super) struct CudaState {
    device: Box<dyn WatchedDevice>,
    hub: Arc<Hub>,
    contexts: Contexts,
    waits: Vec<(u64, Wait)>,
    held: Option<(u64, Held)>,
    answers: Vec<SessionAnswer>,
    closed: Option<SessionAnswer>,
    /// Memory in use when the state was settled last, in bytes. A GPU frees that of a client after it has left.
    used_bytes: u64,
    /// First operation of the client that needs another engine, and its sequence number.
    misplaced: Option<(u64, &'static str)>,
}

/// The CPU as the device of a session with this memory in bytes.
pub(super) fn cpu(memory_bytes: u64, threads: u32) -> Box<dyn WatchedDevice> {
    let threads = NonZero::new(threads as usize).unwrap_or(NonZero::<usize>::MIN);
    Box::new(CpuDevice::new(memory_bytes, threads))
}

/// A GPU as the device of a session with this memory in bytes, of which each further context takes `context_bytes`. The standard
/// output of this process is what its kernels print.
///
/// # Errors
/// The reason why the GPU cannot be used.
pub(super) fn gpu(ordinal: u32, memory_bytes: u64, context_bytes: u64) -> Result<Box<dyn WatchedDevice>, String> {
    let printed = gpu::Printed::keep().map_err(|error| format!("failed to keep what kernels print: {error}"))?;
    let device = GpuDevice::open(ordinal, memory_bytes, context_bytes, printed).map_err(|failure| failure.message)?;
    Ok(Box::new(device))
}

/// Description of a device of this backend.
pub(super) fn description(properties: &Properties, backend: Backend) -> Description {
    Description {
        engine: names::Engine::Cuda,
        platform: backend.to_string(),
        platform_version: env!("CARGO_PKG_VERSION").to_owned(),
        device: properties.name.clone(),
        stablehlo_version: String::new(),
        cuda: Some(Box::new(properties.into())),
    }
}

fn operations(mut payload: Bytes) -> Result<Vec<Operation>, DecodeError> {
    let mut operations = Vec::new();
    while let Some(operation) = wire::decode(&mut payload)? {
        operations.push(operation);
    }
    Ok(operations)
}

impl CudaState {
    pub(super) fn new(device: Box<dyn WatchedDevice>, hub: Arc<Hub>) -> Self {
        let (woken, told) = (Arc::clone(&hub), Arc::clone(&hub));
        device.when_freed(Box::new(move || woken.download_ends()));
        device.when_lost(Box::new(move |reason| {
            eprintln!("the GPU is lost: {reason}");
            told.end(&format!("the GPU is lost: {reason}"), FINAL_MESSAGE_TIMEOUT);
            end_process()
        }));
        Self {
            device,
            hub,
            contexts: Contexts::default(),
            waits: Vec::new(),
            held: None,
            answers: Vec::new(),
            closed: None,
            used_bytes: 0,
            misplaced: None,
        }
    }

    /// The context with this number, which is created if there is none.
    fn context(&mut self, number: u64) -> &mut Context {
        self.contexts.get_or_open(number, &*self.device, &self.hub)
    }

    fn submit(&mut self, number: u64, operation: Operation) {
        let hub = Arc::clone(&self.hub);
        let context = self.context(number);
        context.operations += 1;
        let Ok(queue) = &context.queue else { return };
        match &operation {
            operation if operation.runs_kernels() => hub.execution_begins(),
            Operation::Map { .. } => context.allocations += 1,
            Operation::Unmap { .. } => context.allocations = context.allocations.saturating_sub(1),
            Operation::Mark(mark) => {
                context.marks.insert(*mark, Ticket(context.operations));
            }
            _ => {}
        }
        queue.submit(operation);
    }

    fn has_room(&mut self, number: u64) -> bool {
        self.context(number).queue.as_ref().map_or(true, |queue| queue.has_room())
    }

    /// Submits operations as far as the queue has room, and holds the rest.
    fn batch(&mut self, context: u64, mut rest: std::vec::IntoIter<Operation>) {
        while self.has_room(context) {
            let Some(operation) = rest.next() else { return };
            self.submit(context, operation);
        }
        self.held = Some((0, Held::Batch { context, rest }));
    }

    fn write(&mut self, write: Write, bytes: Bytes) {
        if !self.has_room(write.context) {
            self.held = Some((0, Held::Write(write, bytes)));
            return;
        }
        let operation = Operation::Write {
            to: write.to.into(),
            extent: write.extent.into(),
            bytes,
        };
        self.submit(write.context, operation);
    }

    /// Splits the payload of a [`Load`] into its images.
    fn images(load: &Load, mut payload: Bytes) -> Option<Vec<Bytes>> {
        let mut images = Vec::with_capacity(load.text_bytes.len());
        for bytes in &load.text_bytes {
            let bytes = usize::try_from(*bytes).ok().filter(|bytes| *bytes <= payload.len())?;
            let image = payload.split_to(bytes);
            (is_machine_code(&image) || str::from_utf8(&image).is_ok()).then_some(())?;
            images.push(image);
        }
        payload.is_empty().then_some(images)
    }

    fn discard(&mut self, discard: &Discard) {
        self.contexts.remove(discard.context);
        let is_of_context = |(_, wait): &(u64, Wait)| wait.context == discard.context;
        let (ended, waiting) = std::mem::take(&mut self.waits).into_iter().partition(is_of_context);
        self.waits = waiting;
        let failure = Failure::new(FailureKind::Lost, "the context was discarded");
        for (sequence, wait) in ended {
            self.fail(wait.request, sequence, "wait", &failure);
        }
    }

    /// Sends what kernels of a context printed.
    fn print(&mut self, number: u64, queue: &dyn Queue) {
        let printed = Bytes::from(queue.printed());
        for start in (0..printed.len()).step_by(PRINTED_BYTES) {
            let text = printed.slice(start..printed.len().min(start + PRINTED_BYTES));
            self.answers.push(Kind::CudaPrinted(Printed { context: number, text }).into());
        }
    }

    fn fail(&mut self, request: u64, sequence: u64, operation: &str, failure: &Failure) {
        let code = FailureCode::from(failure.kind);
        self.answers
            .push(SessionAnswer::failed(request, sequence, operation, code, failure.message.as_str()));
    }

    fn finish_wait(&mut self, sequence: u64, wait: &Wait) {
        let found = self.context(wait.context).queue().cloned();
        let waited = found.and_then(|queue| {
            self.print(wait.context, &*queue);
            if wait.operations > 0 {
                queue.wait(Ticket(wait.operations))?;
            }
            let executed = queue.executed()?;
            let marks = self.context(wait.context).take_marks(&*queue, executed);
            Ok(Waited {
                request: wait.request,
                executed: executed.0,
                marks,
            })
        });
        match waited {
            Ok(waited) => self.answers.push(Kind::CudaWaited(waited).into()),
            Err(failure) => self.fail(wait.request, sequence, "wait", &failure),
        }
    }

    /// Reads rows into shared memory, if some is lent, or else into the answer.
    fn read(&mut self, sequence: u64, read: &Read, loan: Option<Loan>) {
        let (from, extent) = (Region::from(read.from), Extent::from(read.extent));
        let limit = self.device.properties().memory_bytes;
        let found = self.context(read.context).queue().cloned();
        if let Some(mut loan) = loan {
            let done = found.and_then(|queue| {
                self.print(read.context, &*queue);
                queue.read(from, extent, loan.target())
            });
            return match done {
                Ok(()) => self.answers.push(Kind::Done(Done { request: read.request }).into()),
                Err(failure) => self.fail(read.request, sequence, "read", &failure),
            };
        }
        let data = found.and_then(|queue| {
            let bytes = extent
                .bytes()
                .filter(|bytes| *bytes <= limit)
                .ok_or_else(|| Failure::new(FailureKind::IllegalAddress, "a read is larger than the session's memory"))?;
            self.print(read.context, &*queue);
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let mut memory = Filling::new(bytes).map_err(|error| Failure::new(FailureKind::OutOfMemory, error.to_string()))?;
            queue.read(from, extent, memory.extend_zeroed(bytes))?;
            Ok(Bytes::from(memory.finish()))
        });
        match data {
            Ok(data) => {
                let head = Tensor {
                    request: read.request,
                    element_type: "u8".to_owned(),
                    dimensions: vec![data.len() as i64],
                    bytes: data.len() as u64,
                };
                self.answers.extend(SessionAnswer::array(head, &data));
            }
            Err(failure) => self.fail(read.request, sequence, "read", &failure),
        }
    }

    fn load(&mut self, sequence: u64, load: &Load, images: &[Bytes]) {
        let found = self.context(load.context).queue().cloned();
        let loaded = found.map_err(LoadFailure::from).and_then(|queue| {
            let images: Vec<&[u8]> = images.iter().map(Bytes::as_ref).collect();
            let loaded = queue.load(ModuleId(load.module), &images)?.into_message(load.request);
            let bytes = loaded.encoded_len();
            if bytes > MAX_DESCRIPTION_BYTES {
                let message = format!("the description of the module has {bytes} bytes, more than {MAX_DESCRIPTION_BYTES}: split it");
                return Err(LoadFailure::Unsupported(message));
            }
            Ok(loaded)
        });
        match loaded {
            Ok(loaded) => self.answers.push(Kind::CudaLoaded(loaded).into()),
            Err(failure) => {
                let (code, message) = failure.to_code();
                self.answers
                    .push(SessionAnswer::failed(load.request, sequence, "load", code, message));
            }
        }
    }

    fn stats(&self, request: u64) -> Stats {
        let (tensors, used_bytes) = self.stored();
        Stats {
            request,
            tensors,
            used_bytes,
            limit_bytes: self.device.properties().memory_bytes,
            programs: 0,
            active_executions: 0,
        }
    }

    /// Records for which tickets answers wait, so that their execution wakes the engine's thread.
    fn watch(&self) {
        for (number, context) in self.contexts.iter() {
            let waits = self
                .waits
                .iter()
                .filter(|(_, wait)| wait.context == number)
                .map(|(_, wait)| wait.operations);
            let held = self.held.iter().filter(|(_, held)| held.context() == number);
            let held = held.map(|(_, held)| if held.waits_for_all() { context.operations } else { 0 });
            context.awaited.store(waits.chain(held).min().unwrap_or(NOTHING), Ordering::SeqCst);
        }
    }

    /// Whether what holds later operations back can go on.
    fn is_held_ready(&self) -> bool {
        let Some((_, held)) = &self.held else { return false };
        let Some(context) = self.contexts.get(held.context()) else {
            return true;
        };
        match &context.queue {
            Ok(queue) if !held.waits_for_all() => queue.has_room(),
            _ => context.has_executed(context.operations),
        }
    }

    fn is_ready(&self, wait: &Wait) -> bool {
        let context = self.contexts.get(wait.context);
        context.is_none_or(|context| context.has_executed(wait.operations.min(context.operations)))
    }

    fn refuse(&mut self, request: u64, sequence: u64, operation: &str) {
        let message = format!("{operation} requires a session of engine ptx or xla: this session has engine cuda");
        self.answers.push(SessionAnswer::failed(
            request,
            sequence,
            operation,
            FailureCode::Unsupported,
            message,
        ));
    }
}

impl ClientState for CudaState {
    fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.closed.is_some()
    }

    fn take_answers(&mut self) -> (Vec<SessionAnswer>, Option<SessionAnswer>) {
        (std::mem::take(&mut self.answers), self.closed.take())
    }

    fn stored(&self) -> (u64, u64) {
        let allocations = self.contexts.iter().map(|(_, context)| context.allocations).sum();
        (allocations, self.device.used_bytes())
    }

    fn waiting(&self) -> Waiting {
        Waiting {
            pending_bytes: 0,
            is_compiling: self.held.is_some() || self.waits.len() >= MAX_WAITS,
            is_asked: !self.waits.is_empty(),
            running: 0,
        }
    }

    fn can_settle(&self) -> bool {
        let is_answered = self.waits.iter().any(|(_, wait)| self.is_ready(wait));
        is_answered || self.is_held_ready() || self.used_bytes != self.device.used_bytes()
    }

    fn settle(&mut self) {
        if self.is_held_ready()
            && let Some((sequence, held)) = self.held.take()
        {
            match held {
                Held::Read(read, loan) => self.read(sequence, &read, loan),
                Held::Load { load, images } => self.load(sequence, &load, &images),
                Held::Batch { context, rest } => self.batch(context, rest),
                Held::Write(write, bytes) => self.write(write, bytes),
            }
        }
        let (ready, waiting) = std::mem::take(&mut self.waits)
            .into_iter()
            .partition(|(_, wait)| self.is_ready(wait));
        self.waits = waiting;
        for (sequence, wait) in ready {
            self.finish_wait(sequence, &wait);
        }
        self.used_bytes = self.device.used_bytes();
        self.watch();
    }

    fn reset(&mut self) {
        self.contexts.clear();
        self.waits.clear();
        self.held = None;
        self.answers.clear();
        self.closed = None;
        self.misplaced = None;
    }

    fn operation(&mut self, sequence: u64, kind: client_frame::Kind, payload: Payload) -> Result<(), Malformed> {
        use client_frame::Kind as Operation;
        let malformed = |reason: String| Malformed { sequence, reason };
        let carries = matches!(kind, Operation::CudaBatch(_) | Operation::CudaWrite(_) | Operation::CudaLoad(_))
            || matches!((&kind, &payload), (Operation::CudaRead(_), Payload::Lent(_)));
        if let Some(operation) = kind::misplaced(&kind) {
            self.misplaced.get_or_insert((sequence, operation));
            let request = match kind {
                Operation::Compile(compile) => compile.request,
                Operation::Download(download) => download.request,
                _ => 0,
            };
            if request > 0 {
                self.refuse(request, sequence, operation);
            }
            return Ok(());
        }
        if !payload.is_empty() && !carries {
            return Err(malformed("unexpected payload".to_owned()));
        }
        if kind::context(&kind).is_some_and(|number| !self.contexts.takes(number)) {
            return Err(malformed(format!(
                "more than {MAX_REFUSED} contexts that were refused: discard them"
            )));
        }
        match kind {
            Operation::CudaBatch(batch) => {
                if payload.len() > MAX_BATCH_BYTES {
                    return Err(malformed(format!("a batch of more than {MAX_BATCH_BYTES} bytes")));
                }
                let operations = operations(payload.into_bytes());
                let operations = operations.map_err(|error| malformed(format!("invalid batch: {error}")))?;
                self.batch(batch.context, operations.into_iter());
            }
            Operation::CudaWrite(write) => self.write(write, payload.into_bytes()),
            Operation::CudaRead(read) => {
                let loan = match payload {
                    Payload::Lent(loan) => Some(loan),
                    Payload::Shared(_) | Payload::InPlace(_) => None,
                };
                self.held = Some((sequence, Held::Read(read, loan)));
            }
            Operation::CudaLoad(load) => {
                let images = Self::images(&load, payload.into_bytes());
                let images =
                    images.ok_or_else(|| malformed("the texts of a module are not as long as announced, or not UTF-8".to_owned()))?;
                self.held = Some((sequence, Held::Load { load, images }));
            }
            Operation::CudaWait(wait) => {
                if wait.operations > self.context(wait.context).operations {
                    return Err(malformed(format!("a wait for operation {} before it was sent", wait.operations)));
                }
                self.waits.push((sequence, wait));
            }
            Operation::CudaDiscard(discard) => self.discard(&discard),
            Operation::Load(load) => {
                let stats = self.stats(load.request);
                self.answers.push(Kind::Stats(stats).into());
            }
            Operation::Synchronise(synchronise) => match self.misplaced.take() {
                Some((sequence, operation)) => self.refuse(synchronise.request, sequence, operation),
                None => self.answers.push(
                    Kind::Done(Done {
                        request: synchronise.request,
                    })
                    .into(),
                ),
            },
            Operation::Close(close) => {
                self.reset();
                self.closed = Some(Kind::Done(Done { request: close.request }).into());
            }
            Operation::Delete(_) => {}
            _ => return Err(malformed("unexpected operation".to_owned())),
        }
        self.settle();
        Ok(())
    }
}
