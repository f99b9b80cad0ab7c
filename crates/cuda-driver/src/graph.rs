//! Graphs of work: nodes and the order between them. A graph says what to do; `executable` has what is launched.

mod dot;
mod order;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::boundary::Handle;
use crate::status::Status;
use crate::table::new_handle;

pub(crate) use work::{COOPERATIVE, Kernel, Work, is_cooperative};

pub(crate) struct Graph {
    pub(crate) handle: Handle,
    /// Number that no other graph has.
    pub(crate) id: u32,
    /// Whether it is the graph of a node, with which it ends.
    pub(crate) is_embedded: bool,
    pub(crate) nodes: Mutex<Nodes>,
}

/// Nodes of a graph.
#[derive(Default)]
pub(crate) struct Nodes {
    /// In the order in which they were added: handles grow.
    by_handle: BTreeMap<Handle, Node>,
    next_local: u32,
    /// The graph of which this is a copy, and the nodes of the copy by those of the original.
    original: Option<(Handle, HashMap<Handle, Handle>)>,
    /// References to objects of the program that end with the graph.
    pub(crate) objects: HashMap<Handle, u32>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    /// Nodes before this one.
    pub(crate) dependencies: Vec<Handle>,
    /// Nodes behind this one.
    pub(crate) dependents: Vec<Handle>,
    /// Number in the graph.
    pub(crate) local: u32,
    /// Whether executable graphs do the work.
    pub(crate) is_enabled: bool,
}

impl Graph {
    /// Makes an empty graph.
    pub(crate) fn new() -> Arc<Self> {
        Self::with(new_handle(), false, Nodes::default())
    }

    fn with(handle: Handle, is_embedded: bool, nodes: Nodes) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Self {
            handle,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            is_embedded,
            nodes: Mutex::new(nodes),
        })
    }

    /// A copy with the same handles, which later changes of this graph do not concern.
    pub(crate) fn snapshot(&self) -> Arc<Self> {
        let nodes = self.nodes.lock();
        let by_handle = nodes.by_handle.iter().map(|(handle, node)| {
            let mut node = node.clone();
            if let Work::Graph(child) = &node.work {
                node.work = Work::Graph(child.snapshot());
            }
            (*handle, node)
        });
        let copy = Nodes {
            by_handle: by_handle.collect(),
            next_local: nodes.next_local,
            original: None,
            objects: nodes.objects.clone(),
        };
        Self::with(self.handle, self.is_embedded, copy)
    }

    /// A copy with handles of its own.
    pub(crate) fn duplicate(&self, is_embedded: bool) -> Arc<Self> {
        let nodes = self.nodes.lock();
        let handles: HashMap<Handle, Handle> = nodes.by_handle.keys().map(|node| (*node, new_handle())).collect();
        let renamed = |old: &[Handle]| old.iter().map(|node| handles[node]).collect();
        let by_handle = nodes.by_handle.iter().map(|(handle, node)| {
            let node = Node {
                work: match &node.work {
                    Work::Graph(child) => Work::Graph(child.duplicate(true)),
                    other => other.clone(),
                },
                dependencies: renamed(&node.dependencies),
                dependents: renamed(&node.dependents),
                ..*node
            };
            (handles[handle], node)
        });
        let copy = Nodes {
            by_handle: by_handle.collect(),
            next_local: nodes.next_local,
            original: Some((self.handle, handles.clone())),
            objects: nodes.objects.clone(),
        };
        Self::with(new_handle(), is_embedded, copy)
    }

    /// The same nodes as the graph of a node.
    pub(crate) fn embed(&self) -> Arc<Self> {
        Self::with(self.handle, true, std::mem::take(&mut *self.nodes.lock()))
    }

    /// Calls a function with the handle and work of every node, those of embedded graphs among them.
    pub(crate) fn each(&self, function: &mut impl FnMut(&Self, Handle, &Work)) {
        for (handle, node) in &self.nodes.lock().by_handle {
            function(self, *handle, &node.work);
            if let Work::Graph(child) = &node.work {
                child.each(function);
            }
        }
    }

    /// Calls a function with every node, those of embedded graphs among them, until an error.
    pub(crate) fn each_mut<E>(&self, function: &mut impl FnMut(Handle, &mut Node) -> Result<(), E>) -> Result<(), E> {
        for (handle, node) in &mut self.nodes.lock().by_handle {
            function(*handle, node)?;
            if let Work::Graph(child) = &node.work {
                child.each_mut(function)?;
            }
        }
        Ok(())
    }

    /// Whether a graph is embedded in this one, at any depth.
    pub(crate) fn contains(&self, graph: Handle) -> bool {
        self.nodes.lock().by_handle.values().any(|node| match &node.work {
            Work::Graph(child) => child.handle == graph || child.contains(graph),
            _ => false,
        })
    }

    /// Whether a node allocates or frees memory.
    pub(crate) fn has_memory(&self) -> bool {
        let mut found = false;
        self.each(&mut |_, _, work| found |= matches!(work, Work::Allocate(_) | Work::Free(_)));
        found
    }

    /// Runs a function on a node, which may be one of an embedded graph.
    pub(crate) fn with_node<T>(&self, handle: Handle, function: &mut impl FnMut(&mut Node) -> T) -> Option<T> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.by_handle.get_mut(&handle) {
            return Some(function(node));
        }
        let children = nodes.by_handle.values().filter_map(|node| match &node.work {
            Work::Graph(child) => Some(child),
            _ => None,
        });
        children.into_iter().find_map(|child| child.with_node(handle, function))
    }
}

impl Nodes {
    /// Adds a node behind others.
    pub(crate) fn insert(&mut self, work: Work, dependencies: &[Handle]) -> Result<Handle, Status> {
        self.check(dependencies)?;
        let handle = new_handle();
        for dependency in dependencies {
            self.by_handle.entry(*dependency).and_modify(|node| node.dependents.push(handle));
        }
        let node = Node {
            work,
            dependencies: dependencies.to_vec(),
            dependents: Vec::new(),
            local: self.next_local,
            is_enabled: true,
        };
        self.next_local += 1;
        self.by_handle.insert(handle, node);
        Ok(handle)
    }

    /// Refuses dependencies of a node that are unknown, or there twice.
    pub(crate) fn check(&self, dependencies: &[Handle]) -> Result<(), Status> {
        for (index, dependency) in dependencies.iter().enumerate() {
            if !self.by_handle.contains_key(dependency) || dependencies[..index].contains(dependency) {
                return Err(Status::INVALID_VALUE);
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<&Node, Status> {
        self.by_handle.get(&handle).ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Result<&mut Node, Status> {
        self.by_handle.get_mut(&handle).ok_or(Status::INVALID_VALUE)
    }

    /// Nodes in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &Node)> {
        self.by_handle.iter().map(|(handle, node)| (*handle, node))
    }

    /// The node of this graph that is the copy of another graph's node.
    pub(crate) fn copy_of(&self, original: Handle) -> Option<Handle> {
        let (_, copies) = self.original.as_ref()?;
        copies.get(&original).copied().filter(|copy| self.by_handle.contains_key(copy))
    }

    /// Removes a node with its edges.
    pub(crate) fn remove(&mut self, handle: Handle) -> Result<Node, Status> {
        let node = self.by_handle.remove(&handle).ok_or(Status::INVALID_VALUE)?;
        for before in &node.dependencies {
            self.by_handle
                .entry(*before)
                .and_modify(|node| node.dependents.retain(|other| *other != handle));
        }
        for behind in &node.dependents {
            self.by_handle
                .entry(*behind)
                .and_modify(|node| node.dependencies.retain(|other| *other != handle));
        }
        Ok(node)
    }

    /// Adds edges: all, or none if one is of an unknown node, from a node to itself, or there already.
    pub(crate) fn connect(&mut self, edges: &[(Handle, Handle)]) -> Result<(), Status> {
        for (index, (from, to)) in edges.iter().enumerate() {
            let is_new = !self.get(*to)?.dependencies.contains(from) && !edges[..index].contains(&(*from, *to));
            self.get(*from)?;
            if from == to || !is_new {
                return Err(Status::INVALID_VALUE);
            }
        }
        for (from, to) in edges {
            self.get_mut(*from)?.dependents.push(*to);
            self.get_mut(*to)?.dependencies.push(*from);
        }
        Ok(())
    }

    /// Removes edges: all, or none if there is none of them.
    pub(crate) fn disconnect(&mut self, edges: &[(Handle, Handle)]) -> Result<(), Status> {
        for (index, (from, to)) in edges.iter().enumerate() {
            self.get(*from)?;
            if !self.get(*to)?.dependencies.contains(from) || edges[..index].contains(&(*from, *to)) {
                return Err(Status::INVALID_VALUE);
            }
        }
        for (from, to) in edges {
            self.get_mut(*from)?.dependents.retain(|other| other != to);
            self.get_mut(*to)?.dependencies.retain(|other| other != from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_added_and_removed_as_a_whole() {
        let mut nodes = Nodes::default();
        let first = nodes.insert(Work::Empty, &[]).unwrap();
        let second = nodes.insert(Work::Empty, &[first]).unwrap();
        let third = nodes.insert(Work::Empty, &[]).unwrap();
        assert_eq!(nodes.insert(Work::Empty, &[first, first]), Err(Status::INVALID_VALUE));
        assert_eq!(nodes.insert(Work::Empty, &[Handle(1)]), Err(Status::INVALID_VALUE));
        for wrong in [(first, second), (third, third), (third, Handle(1)), (Handle(1), third)] {
            assert_eq!(nodes.connect(&[(second, third), wrong]), Err(Status::INVALID_VALUE));
        }
        assert!(nodes.get(third).unwrap().dependencies.is_empty());
        nodes.connect(&[(second, third), (first, third)]).unwrap();
        assert_eq!(nodes.disconnect(&[(second, third), (third, second)]), Err(Status::INVALID_VALUE));
        assert_eq!(nodes.get(third).unwrap().dependencies, [second, first]);
        nodes.remove(second).unwrap();
        assert_eq!(nodes.get(third).unwrap().dependencies, [first]);
        assert_eq!(nodes.get(first).unwrap().dependents, [third]);
    }

    #[test]
    fn copies_have_the_same_shape() {
        let graph = Graph::new();
        let child = Graph::new();
        child.nodes.lock().insert(Work::Empty, &[]).unwrap();
        let first = graph.nodes.lock().insert(Work::Graph(child.duplicate(true)), &[]).unwrap();
        let second = graph.nodes.lock().insert(Work::Empty, &[first]).unwrap();
        let copy = graph.duplicate(false);
        let nodes = copy.nodes.lock();
        let [a, b] = [first, second].map(|node| nodes.copy_of(node).unwrap());
        assert!(a != first && nodes.get(b).unwrap().dependencies == [a]);
        drop(nodes);
        let mut count = 0;
        copy.each(&mut |_, _, _| count += 1);
        assert_eq!(count, 3);
        assert!(graph.snapshot().with_node(first, &mut |_| ()).is_some() && copy.with_node(first, &mut |_| ()).is_none());
    }
}
