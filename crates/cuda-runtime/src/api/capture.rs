//! Capture of streams.

use std::ffi::c_uint;

use crate::boundary::{Handle, Out, Pointer};
use crate::{Error, context, exports};

/// Where answers about a capture are written, besides its status. Each may be null.
#[derive(Clone, Copy)]
pub struct Answers {
    /// Number of the capture.
    pub id: Out<u64>,
    /// Graph that is being made.
    pub graph: Out<Handle>,
    /// Address of the nodes before the next one.
    pub nodes: Out<usize>,
    /// Address of what describes their edges.
    pub edges: Out<usize>,
    /// Number of these nodes.
    pub count: Out<usize>,
}

/// Writes what a stream takes part in.
pub fn info(stream: Handle, status: Out<c_uint>, answers: Answers) -> Result<(), Error> {
    status.require()?;
    let Answers {
        id,
        graph,
        nodes,
        edges,
        count,
    } = answers;
    context::ready()?.cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count)
}

/// Replaces the nodes before the next one of a stream, or adds some.
pub fn update(stream: Handle, nodes: Pointer, edges: Pointer, count: usize, flags: c_uint) -> Result<(), Error> {
    context::ready()?.cuStreamUpdateCaptureDependencies_v2(stream, nodes, edges, count, flags)
}

exports! {
    fn cudaStreamBeginCapture(stream: Handle, mode: c_uint) {
        context::ready()?.cuStreamBeginCapture_v2(stream, mode)
    }

    fn cudaStreamBeginCaptureToGraph(
        stream: Handle,
        graph: Handle,
        nodes: Pointer,
        edges: Pointer,
        count: usize,
        mode: c_uint,
    ) {
        context::ready()?.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode)
    }

    fn cudaStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.require()?;
        context::ready()?.cuStreamEndCapture(stream, graph)
    }

    fn cudaStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        status.require()?;
        context::ready()?.cuStreamIsCapturing(stream, status)
    }
}
