//! Graphs, their memory and what they keep, as they come and go.

use std::collections::{BTreeMap, HashMap};
use std::mem::transmute;
use std::sync::{Arc, Weak};

use sahasra_cuda_device::Operation;

use crate::boundary::{Handle, HostPointer};
use crate::capture::Capture;
use crate::context::Context;
use crate::executable::Executable;
use crate::graph::{Graph, Work};
use crate::objects::UserObject;
use crate::ranges::{Kind, counted};
use crate::status::Status;

use super::Driver;

/// Memory of graphs by address: addresses that nodes have, and whether they are mapped.
#[derive(Default)]
pub(crate) struct GraphMemory {
    ranges: BTreeMap<u64, Memory>,
    /// Bytes that are mapped, and the most that were.
    pub(crate) used: u64,
    pub(crate) most_used: u64,
}

/// Whether memory of a graph is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mapped {
    No,
    /// A thread maps or unmaps it, for which it waits while the queue is full. Others must not: theirs might come first.
    Changing,
    Yes,
}

struct Memory {
    bytes: u64,
    context: Weak<Context>,
    context_id: u64,
    /// Number of graphs and executable graphs that have the node.
    owners: u32,
    mapped: Mapped,
}

impl GraphMemory {
    /// The memory at an address, unless it is another context's by now.
    fn of_context(&mut self, address: u64, context_id: u64) -> Option<&mut Memory> {
        self.ranges.get_mut(&address).filter(|memory| memory.context_id == context_id)
    }
}

impl Driver {
    /// Makes the handles of a graph and of its nodes known.
    pub(crate) fn add_graph(&self, graph: &Arc<Graph>) {
        self.graphs.insert(graph.handle, Arc::clone(graph));
        for (handle, node) in graph.nodes.lock().iter() {
            self.nodes.insert(handle, Arc::clone(graph));
            if let Work::Graph(child) = &node.work {
                self.add_graph(child);
            }
        }
    }

    /// Adds a node to a graph by a function. If that fails, what was made for the work is given back.
    pub(crate) fn add_node(
        &self,
        graph: &Arc<Graph>,
        work: Work,
        insert: impl FnOnce(Work) -> Result<Handle, Status>,
    ) -> Result<Handle, Status> {
        let (child, memory) = match &work {
            Work::Graph(child) => (Some(Arc::clone(child)), None),
            Work::Allocate(parameters) => (None, Some(parameters.address)),
            _ => (None, None),
        };
        let inserted = insert(work);
        if let Ok(node) = inserted {
            self.nodes.insert(node, Arc::clone(graph));
            if let Some(child) = child {
                self.add_graph(&child);
            }
            return inserted;
        }
        if let Some(child) = child {
            let mut objects = HashMap::new();
            self.each_kept(&child, &mut objects, &|driver, address| driver.release_graph_memory(address));
            self.release_objects(objects, None);
        }
        if let Some(address) = memory {
            self.release_graph_memory(address);
        }
        inserted
    }

    pub(crate) fn remove_node(&self, handle: Handle, context: Option<&Arc<Context>>) -> Result<(), Status> {
        let graph = self.nodes.get(handle)?;
        if graph.has_memory() {
            return Err(Status::NOT_SUPPORTED);
        }
        let node = graph.nodes.lock().remove(handle)?;
        self.nodes.remove(handle)?;
        if let Work::Graph(child) = &node.work {
            self.forget_graph(child, context);
        }
        Ok(())
    }

    /// Destroys a graph of the program's own. Objects that only it keeps end after the work of the context.
    pub(crate) fn destroy_graph(&self, handle: Handle, context: Option<&Arc<Context>>) -> Result<(), Status> {
        if self.graphs.get(handle)?.is_embedded {
            return Err(Status::INVALID_VALUE);
        }
        let graph = self.graphs.get(handle)?;
        self.forget_graph(&graph, context);
        Ok(())
    }

    /// Forgets a graph with its nodes, and gives back what it keeps.
    pub(crate) fn forget_graph(&self, graph: &Graph, context: Option<&Arc<Context>>) {
        // Another thread may have destroyed it at the same time.
        if self.graphs.remove(graph.handle).is_err() {
            return;
        }
        let mut children = Vec::new();
        for (handle, node) in graph.nodes.lock().iter() {
            // Not known is as good as removed.
            let _ = self.nodes.remove(handle);
            match &node.work {
                Work::Graph(child) => children.push(Arc::clone(child)),
                Work::Allocate(parameters) => self.release_graph_memory(parameters.address),
                _ => {}
            }
        }
        children.iter().for_each(|child| self.forget_graph(child, context));
        let objects = std::mem::take(&mut graph.nodes.lock().objects);
        self.release_objects(objects, context);
    }

    /// Forgets the graph of a capture that has ended without one.
    pub(crate) fn abandon(&self, capture: &Capture, context: Option<&Arc<Context>>) {
        if capture.owns_graph {
            self.forget_graph(&capture.graph, context);
        }
    }

    /// Destroys an executable graph. Launches that were submitted are carried out.
    pub(crate) fn destroy_executable(&self, executable: &Executable) {
        let (graph, charged) = {
            let mut state = executable.state.lock();
            state.program = crate::executable::Program::default();
            (Arc::clone(&state.graph), std::mem::take(&mut state.charged))
        };
        self.release(charged);
        let mut objects = HashMap::new();
        self.each_kept(&graph, &mut objects, &|driver, address| driver.release_graph_memory(address));
        self.release_objects(objects, executable.context.upgrade().as_ref());
    }

    /// Takes what an executable graph keeps.
    pub(crate) fn retain_for_executable(&self, graph: &Graph) {
        let mut objects = HashMap::new();
        self.each_kept(graph, &mut objects, &|driver, address| {
            if let Some(memory) = driver.graph_memory.lock().ranges.get_mut(&address) {
                memory.owners += 1;
            }
        });
        self.retain_all(&objects);
    }

    /// Takes references to the objects that a copy of a graph keeps.
    pub(crate) fn retain_objects(&self, copy: &Graph) {
        let mut objects = HashMap::new();
        self.each_kept(copy, &mut objects, &|_, _| ());
        self.retain_all(&objects);
    }

    fn retain_all(&self, objects: &HashMap<Handle, u32>) {
        for (handle, count) in objects {
            if let Some(object) = self.objects.find(*handle) {
                object.retain(*count);
            }
        }
    }

    /// Collects the objects that a graph and its embedded graphs keep, and calls a function with the address of each memory.
    fn each_kept(&self, graph: &Graph, objects: &mut HashMap<Handle, u32>, memory: &impl Fn(&Self, u64)) {
        let nodes = graph.nodes.lock();
        for (handle, count) in &nodes.objects {
            *objects.entry(*handle).or_default() += count;
        }
        for (_, node) in nodes.iter() {
            match &node.work {
                Work::Graph(child) => self.each_kept(child, objects, memory),
                Work::Allocate(parameters) => memory(self, parameters.address),
                _ => {}
            }
        }
    }

    /// Destroys the executable graphs of a context, and forgets which memory of graphs it had mapped.
    pub(crate) fn forget_graphs_of(&self, context_id: u64) {
        let mut ended = Vec::new();
        self.executables.each(|executable| {
            if executable.context_id == context_id {
                ended.push(executable.handle);
            }
        });
        for executable in ended.into_iter().filter_map(|handle| self.executables.remove(handle).ok()) {
            self.destroy_executable(&executable);
        }
        let mut memory = self.graph_memory.lock();
        let mut freed = 0;
        memory.ranges.retain(|_, range| {
            let is_kept = range.context_id != context_id;
            if !is_kept && range.mapped != Mapped::No {
                freed += counted(range.bytes).unwrap_or(0);
            }
            is_kept
        });
        memory.used -= freed;
        self.release(freed);
    }

    /// Chooses addresses for memory that a node allocates.
    pub(crate) fn reserve_graph_memory(&self, context: &Arc<Context>, bytes: u64) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        context.check()?;
        let address = self.ranges.place(context, bytes, Kind::Graph)?;
        let memory = Memory {
            bytes,
            context: Arc::downgrade(context),
            context_id: context.id,
            owners: 1,
            mapped: Mapped::No,
        };
        self.graph_memory.lock().ranges.insert(address, memory);
        Ok(address)
    }

    /// Refuses an address that is not that of a graph's memory.
    pub(crate) fn check_graph_memory(&self, address: u64) -> Result<(), Status> {
        let is_known = self.graph_memory.lock().ranges.contains_key(&address);
        if is_known { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }

    /// Whether an executable graph that has the memory exists.
    pub(crate) fn is_instantiated(&self, address: u64) -> bool {
        self.graph_memory
            .lock()
            .ranges
            .get(&address)
            .is_some_and(|memory| memory.owners > 1)
    }

    /// Whether a launch has mapped the memory, and nothing has unmapped it since.
    pub(crate) fn is_graph_memory_mapped(&self, address: u64) -> bool {
        let graphs = self.graph_memory.lock();
        graphs.ranges.get(&address).is_some_and(|memory| memory.mapped != Mapped::No)
    }

    /// Maps memory of a graph.
    pub(crate) fn map_graph_memory(&self, address: u64) -> Result<(), Status> {
        let (context, bytes) = {
            let mut graphs = self.graph_memory.lock();
            let memory = graphs.ranges.get_mut(&address).ok_or(Status::INVALID_VALUE)?;
            let context = memory.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?;
            context.check()?;
            let bytes = counted(memory.bytes).ok_or(Status::OUT_OF_MEMORY)?;
            if memory.mapped != Mapped::No {
                return Err(Status::INVALID_VALUE);
            }
            self.charge(bytes)?;
            memory.mapped = Mapped::Changing;
            graphs.used += bytes;
            graphs.most_used = graphs.most_used.max(graphs.used);
            (context, bytes)
        };
        // Unlocked, because a full queue lets it wait. Refused only after a fault: the memory ends with the context.
        let outcome = context.submit(Operation::Map { address, bytes }).map(|_| ());
        if let Some(memory) = self.graph_memory.lock().of_context(address, context.id) {
            memory.mapped = Mapped::Yes;
        }
        outcome
    }

    /// Frees memory of a graph, after everything that was submitted.
    pub(crate) fn free_graph_memory(&self, address: u64) -> Result<(), Status> {
        let (context, context_id) = {
            let mut graphs = self.graph_memory.lock();
            let memory = graphs.ranges.get_mut(&address).filter(|memory| memory.mapped == Mapped::Yes);
            let memory = memory.ok_or(Status::INVALID_VALUE)?;
            memory.mapped = Mapped::Changing;
            (memory.context.upgrade(), memory.context_id)
        };
        // Unlocked, because a full queue lets it wait.
        let outcome = match context {
            Some(context) => context.submit(Operation::Unmap { address }).map(|_| ()),
            None => Ok(()),
        };
        let mut graphs = self.graph_memory.lock();
        // Unless it has ended with its context, which counted it as free.
        if let Some(memory) = graphs.of_context(address, context_id) {
            memory.mapped = Mapped::No;
            let (bytes, is_unused) = (counted(memory.bytes).unwrap_or(0), memory.owners == 0);
            graphs.used -= bytes;
            if is_unused {
                self.forget_graph_memory(&mut graphs, address);
            }
            self.release(bytes);
        }
        outcome
    }

    /// A graph that had the memory ended. It stays while it is mapped.
    fn release_graph_memory(&self, address: u64) {
        let mut graphs = self.graph_memory.lock();
        let Some(memory) = graphs.ranges.get_mut(&address) else { return };
        memory.owners = memory.owners.saturating_sub(1);
        if memory.owners == 0 && memory.mapped == Mapped::No {
            self.forget_graph_memory(&mut graphs, address);
        }
    }

    fn forget_graph_memory(&self, graphs: &mut GraphMemory, address: u64) {
        if let Some(memory) = graphs.ranges.remove(&address) {
            self.ranges.forget(address, memory.context_id);
        }
    }

    /// Runs a function on the statistics of memory of graphs.
    pub(crate) fn with_graph_memory<T>(&self, function: impl FnOnce(&mut GraphMemory) -> T) -> T {
        function(&mut self.graph_memory.lock())
    }

    /// Gives references to objects back.
    fn release_objects(&self, objects: HashMap<Handle, u32>, context: Option<&Arc<Context>>) {
        for (handle, count) in objects {
            // An object that the program has released too often is gone.
            let _ = self.release_object(handle, count, context);
        }
    }

    /// Gives references to an object back. The last one ends it, after the work of the context; no call waits for that.
    pub(crate) fn release_object(&self, handle: Handle, count: u32, context: Option<&Arc<Context>>) -> Result<(), Status> {
        let object = self.objects.get(handle)?;
        if !object.release(count)? {
            return Ok(());
        }
        self.objects.remove(handle)?;
        match context {
            Some(context) => {
                let end = move |_: Option<&_>| end(&object);
                context.destructors.submit(context.queue.last(), Box::new(end)).map(|_| ())
            }
            None => {
                end(&object);
                Ok(())
            }
        }
    }
}

/// Calls the function that ends an object.
fn end(object: &UserObject) {
    // SAFETY: the caller passed the address of a function to be called with this argument, from any thread.
    unsafe { transmute::<usize, unsafe extern "C" fn(HostPointer)>(object.destroy)(object.data) };
}
