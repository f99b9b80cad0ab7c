//! Graphs as text in Graphviz's language.

use std::fmt::Write;

use super::{Graph, Work};

impl Graph {
    /// The graph in Graphviz's language, with all parameters of nodes if `is_verbose`.
    pub(crate) fn dot(&self, is_verbose: bool) -> String {
        let mut text = String::from("digraph dot {\n");
        self.write(&mut text, is_verbose);
        text.push_str("}\n");
        text
    }

    fn write(&self, text: &mut String, is_verbose: bool) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "subgraph cluster_{0} {{\nlabel=\"graph_{0}\"", self.id);
        let nodes = self.nodes.lock();
        for (_, node) in nodes.iter() {
            let name = format!("graph_{}_node_{}", self.id, node.local);
            let label = label(&node.work, is_verbose);
            let _ = writeln!(text, "\"{name}\" [shape=\"record\" label=\"{{{} | {label}}}\"]", node.local);
            for behind in &node.dependents {
                if let Ok(behind) = nodes.get(*behind) {
                    let _ = writeln!(text, "\"{name}\" -> \"graph_{}_node_{}\"", self.id, behind.local);
                }
            }
            if let Work::Graph(child) = &node.work {
                child.write(text, is_verbose);
            }
        }
        text.push_str("}\n");
    }
}

/// Label of a node.
fn label(work: &Work, is_verbose: bool) -> String {
    let (kind, details) = match work {
        Work::Kernel(kernel) => {
            let name = &kernel.entry.description.name;
            let details = format!(
                "{name}\\<\\<\\<{:?},{:?},{}\\>\\>\\>",
                kernel.grid, kernel.block, kernel.shared_bytes
            );
            return if is_verbose { format!("KERNEL | {details}") } else { name.clone() };
        }
        Work::Copy(copy) => ("MEMCPY", format!("{} x {} x {}", copy.width, copy.height, copy.depth)),
        Work::Fill(fill) => (
            "MEMSET",
            format!("{:#x}, {} x {} of {}", fill.to, fill.width, fill.height, fill.element_bytes),
        ),
        Work::Call(call) => ("HOST", format!("{:#x}", call.function)),
        Work::Graph(child) => ("GRAPH", format!("graph_{}", child.id)),
        Work::Empty => return "EMPTY".to_owned(),
        Work::Wait(event) => ("WAIT_EVENT", format!("{:#x}", event.0)),
        Work::Record(event) => ("EVENT_RECORD", format!("{:#x}", event.0)),
        Work::Allocate(parameters) => ("MEM_ALLOC", format!("{:#x}, {} bytes", parameters.address, parameters.bytes)),
        Work::Free(address) => ("MEM_FREE", format!("{address:#x}")),
    };
    if is_verbose {
        format!("{kind} | {details}")
    } else {
        kind.to_owned()
    }
}
