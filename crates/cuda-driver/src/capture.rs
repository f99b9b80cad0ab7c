//! Captures: streams whose work becomes nodes of a graph instead of being done.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use crate::boundary::Handle;
use crate::graph::{Graph, Work};
use crate::parameters::EdgeData;
use crate::status::Status;
use crate::table::new_handle;

/// Capture mode of a stream or a thread (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    /// The mode with this number.
    pub(crate) fn of(number: u32) -> Result<Self, Status> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets the mode of the thread. Returns the one before.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadId,
    /// The stream in which it was begun.
    origin: Handle,
    pub(crate) context_id: u64,
    /// Whether the graph was made for the capture, and ends with it unless it succeeds.
    pub(crate) owns_graph: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_invalid: bool,
    /// The last nodes of each stream, which are before the next one.
    streams: HashMap<Handle, Frontier>,
}

struct Frontier {
    nodes: Vec<Handle>,
    /// As many as there are nodes, for programs that ask.
    edges: Vec<EdgeData>,
    /// Whether the stream waits for the legacy stream otherwise.
    is_blocking: bool,
}

impl Frontier {
    fn set(&mut self, nodes: Vec<Handle>) {
        self.edges = vec![EdgeData([0; 8]); nodes.len()];
        self.nodes = nodes;
    }
}

/// What a stream takes part in.
pub(crate) struct Participation {
    pub(crate) is_invalid: bool,
    /// Address and number of the nodes before the next one, and the address of what describes their edges.
    pub(crate) nodes: (usize, usize),
    pub(crate) edges: usize,
}

impl Capture {
    /// Refuses work in an invalid capture.
    fn check(&self) -> Result<(), Status> {
        if self.state.lock().is_invalid {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(())
    }

    /// Makes the capture invalid, for the reason that is returned.
    pub(crate) fn invalidate(&self, reason: Status) -> Status {
        self.state.lock().is_invalid = true;
        reason
    }

    /// Adds a node as the next work of a stream. Returns its handle.
    pub(crate) fn add(&self, stream: Handle, work: Work) -> Result<Handle, Status> {
        let mut state = self.state.lock();
        let frontier = state.streams.get_mut(&stream).ok_or(Status::STREAM_CAPTURE_INVALIDATED)?;
        let node = self.graph.nodes.lock().insert(work, &frontier.nodes)?;
        frontier.set(vec![node]);
        Ok(node)
    }

    /// The nodes before the next one of a stream.
    pub(crate) fn frontier(&self, stream: Handle) -> Vec<Handle> {
        self.state
            .lock()
            .streams
            .get(&stream)
            .map_or_else(Vec::new, |frontier| frontier.nodes.clone())
    }

    /// Lets a stream that takes part wait for nodes.
    pub(crate) fn wait(&self, stream: Handle, nodes: &[Handle]) {
        if let Some(frontier) = self.state.lock().streams.get_mut(&stream) {
            let mut all = frontier.nodes.clone();
            all.extend(nodes.iter().filter(|node| !frontier.nodes.contains(node)));
            frontier.set(all);
        }
    }

    /// Lets a stream take part, behind nodes.
    pub(crate) fn join(&self, stream: Handle, is_blocking: bool, nodes: Vec<Handle>) {
        let mut frontier = Frontier {
            nodes: Vec::new(),
            edges: Vec::new(),
            is_blocking,
        };
        frontier.set(nodes);
        self.state.lock().streams.insert(stream, frontier);
    }

    /// Replaces the nodes before the next one of a stream.
    pub(crate) fn set_frontier(&self, stream: Handle, nodes: Vec<Handle>) -> Result<(), Status> {
        {
            let known = self.graph.nodes.lock();
            for node in &nodes {
                known.get(*node)?;
            }
        }
        if let Some(frontier) = self.state.lock().streams.get_mut(&stream) {
            frontier.set(nodes);
        }
        Ok(())
    }

    /// What the capture is for a stream.
    pub(crate) fn participation(&self, stream: Handle) -> Participation {
        let state = self.state.lock();
        let frontier = state.streams.get(&stream);
        let address = |frontier: &Frontier| match frontier.nodes.len() {
            0 => (0, 0, 0),
            count => (frontier.nodes.as_ptr() as usize, count, frontier.edges.as_ptr() as usize),
        };
        let (nodes, count, edges) = frontier.map_or((0, 0, 0), address);
        Participation {
            is_invalid: state.is_invalid,
            nodes: (nodes, count),
            edges,
        }
    }

    fn has_stream(&self, stream: Handle) -> bool {
        self.state.lock().streams.contains_key(&stream)
    }

    fn has_blocking_stream(&self) -> bool {
        self.state.lock().streams.values().any(|frontier| frontier.is_blocking)
    }

    /// Returns `STREAM_CAPTURE_UNJOINED` if a forked stream has not been joined to the origin stream.
    fn check_joined(&self) -> Result<(), Status> {
        let state = self.state.lock();
        if state.is_invalid {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        let last = state.streams.get(&self.origin).map_or(&[][..], |frontier| &frontier.nodes);
        let joined = self.graph.nodes.lock().with_all_before(last);
        let is_joined = |frontier: &Frontier| frontier.nodes.iter().all(|node| joined.contains(node));
        if state.streams.values().all(is_joined) {
            Ok(())
        } else {
            Err(Status::STREAM_CAPTURE_UNJOINED)
        }
    }
}

/// The captures of the process that have not ended.
#[derive(Default)]
pub(crate) struct Captures {
    active: Mutex<Vec<Arc<Capture>>>,
    /// Number of captures, for calls that need not know more.
    count: AtomicUsize,
}

impl Captures {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn find(&self, is_meant: impl Fn(&Capture) -> bool) -> Option<Arc<Capture>> {
        if self.is_empty() {
            return None;
        }
        self.active.lock().iter().find(|capture| is_meant(capture)).cloned()
    }

    /// Begins a capture in a stream, behind nodes of a graph or to a new one.
    pub(crate) fn begin(
        &self,
        (stream, is_blocking): (Handle, bool),
        context_id: u64,
        mode: Mode,
        graph: Option<Arc<Graph>>,
        nodes: Vec<Handle>,
    ) -> Result<Arc<Capture>, Status> {
        let capture = Arc::new(Capture {
            id: new_handle().0,
            owns_graph: graph.is_none(),
            graph: graph.unwrap_or_else(Graph::new),
            mode,
            thread: thread::current().id(),
            origin: stream,
            context_id,
            state: Mutex::default(),
        });
        capture.join(stream, is_blocking, nodes);
        let mut active = self.active.lock();
        if active.iter().any(|other| other.has_stream(stream)) {
            return Err(Status::ILLEGAL_STATE);
        }
        active.push(Arc::clone(&capture));
        self.count.store(active.len(), Ordering::Release);
        Ok(capture)
    }

    /// Ends the capture that was begun in a stream. Returns it with the reason why it has no graph, if that is so.
    pub(crate) fn end(&self, stream: Handle) -> Result<(Arc<Capture>, Result<(), Status>), Status> {
        let capture = self.of_stream(stream).ok_or(Status::ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(Status::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
            return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
        }
        let outcome = capture.check_joined();
        self.remove(&capture);
        Ok((capture, outcome))
    }

    fn remove(&self, capture: &Arc<Capture>) {
        let mut active = self.active.lock();
        active.retain(|other| !Arc::ptr_eq(other, capture));
        self.count.store(active.len(), Ordering::Release);
    }

    /// The capture in which a stream takes part.
    pub(crate) fn of_stream(&self, stream: Handle) -> Option<Arc<Capture>> {
        self.find(|capture| capture.has_stream(stream))
    }

    /// The same; [`Status::STREAM_CAPTURE_INVALIDATED`] if it is invalid.
    pub(crate) fn valid_of_stream(&self, stream: Handle) -> Result<Option<Arc<Capture>>, Status> {
        let found = self.of_stream(stream);
        if let Some(capture) = &found {
            capture.check()?;
        }
        Ok(found)
    }

    /// The capture of a number; [`Status::CAPTURED_EVENT`] if it has ended.
    pub(crate) fn of_id(&self, id: u64) -> Result<Arc<Capture>, Status> {
        let capture = self.find(|capture| capture.id == id).ok_or(Status::CAPTURED_EVENT)?;
        capture.check()?;
        Ok(capture)
    }

    /// Makes the captures invalid that are meant, if there is one. Returns the reason as an error then.
    fn invalidate(&self, reason: Status, is_meant: impl Fn(&Capture) -> bool) -> Result<(), Status> {
        if self.is_empty() {
            return Ok(());
        }
        let active = self.active.lock();
        let mut meant = active.iter().filter(|capture| is_meant(capture)).peekable();
        if meant.peek().is_none() {
            return Ok(());
        }
        meant.for_each(|capture| {
            capture.invalidate(reason);
        });
        Err(reason)
    }

    /// Whether the legacy stream of a context would wait for a stream that captures.
    pub(crate) fn is_legacy_involved(&self, context_id: u64) -> bool {
        self.find(|capture| capture.context_id == context_id && capture.has_blocking_stream())
            .is_some()
    }

    /// Refuses work in the legacy stream of a context.
    pub(crate) fn check_legacy(&self, context_id: u64) -> Result<(), Status> {
        self.invalidate(Status::STREAM_CAPTURE_IMPLICIT, |capture| {
            capture.context_id == context_id && capture.has_blocking_stream()
        })
    }

    /// Refuses a wait for everything in a context.
    pub(crate) fn check_context(&self, context_id: u64) -> Result<(), Status> {
        self.invalidate(Status::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.context_id == context_id)
    }

    /// Refuses a call that may wait for work, as the modes of the thread and of the captures have it.
    pub(crate) fn check_call(&self) -> Result<(), Status> {
        if self.is_empty() {
            return Ok(());
        }
        let (mode, thread) = (MODE.get(), thread::current().id());
        self.invalidate(Status::STREAM_CAPTURE_UNSUPPORTED, |capture| {
            let is_own = capture.thread == thread && capture.mode != Mode::Relaxed;
            mode != Mode::Relaxed && (is_own || mode == Mode::Global && capture.mode == Mode::Global)
        })
    }

    /// Refuses a question about an event that was recorded in a capture, which becomes invalid.
    pub(crate) fn refuse_event(&self, id: u64) -> Status {
        match self.find(|capture| capture.id == id) {
            Some(capture) => capture.invalidate(Status::CAPTURED_EVENT),
            None => Status::CAPTURED_EVENT,
        }
    }

    /// Ends and returns the capture that was begun in a stream that is destroyed. Work of other streams must be joined as if they existed.
    pub(crate) fn forget_stream(&self, stream: Handle) -> Option<Arc<Capture>> {
        let capture = self.find(|capture| capture.origin == stream)?;
        self.remove(&capture);
        Some(capture)
    }

    /// Ends and returns the captures of a context.
    pub(crate) fn forget_context(&self, context_id: u64) -> Vec<Arc<Capture>> {
        let mut active = self.active.lock();
        let (ended, kept) = active.drain(..).partition(|capture| capture.context_id == context_id);
        *active = kept;
        self.count.store(active.len(), Ordering::Release);
        ended
    }
}
