//! Capture of streams.

use std::ffi::c_uint;
use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out};
use crate::capture::{Mode, exchange_mode};
use crate::driver;
use crate::graph::Graph;
use crate::lane::Lane;
use crate::parameters::EdgeData;
use crate::status::Status;

use super::graph::check_edges;

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET: c_uint = 1;

/// Where answers about a capture are written, besides its status.
#[derive(Clone, Copy)]
struct Answers {
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
}

impl Answers {
    fn none() -> Self {
        Self {
            id: Out::null(),
            graph: Out::null(),
            nodes: Out::null(),
            edges: Out::null(),
            count: Out::null(),
        }
    }
}

/// Begins a capture in a stream of the program's own.
fn begin(stream: Handle, mode: c_uint, graph: Option<Arc<Graph>>, nodes: Vec<Handle>) -> Result<(), Status> {
    let mode = Mode::of(mode)?;
    let lane = Lane::of(stream)?;
    let Some(stream) = &lane.stream else {
        if lane.is_legacy {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        return refuse("a capture of CU_STREAM_PER_THREAD");
    };
    lane.context.check()?;
    let driver = driver::get()?;
    let stream = (stream.handle, stream.is_blocking());
    let capture = driver.captures.begin(stream, lane.context.id, mode, graph, nodes)?;
    if capture.owns_graph {
        driver.add_graph(&capture.graph);
    }
    // The stream may have been destroyed since it was found; its destruction then found no capture to end, or no graph.
    if driver.streams.find(stream.0).is_none() {
        driver.captures.forget_stream(stream.0);
        driver.abandon(&capture, None);
        return Err(Status::INVALID_HANDLE);
    }
    Ok(())
}

/// Answers what a stream takes part in (`CUstreamCaptureStatus`).
fn info(stream: Handle, status: Out<c_uint>, answers: Answers) -> Result<(), Status> {
    status.require()?;
    let lane = Lane::of(stream)?;
    let captures = &driver::get()?.captures;
    if lane.is_legacy && captures.is_legacy_involved(lane.context.id) {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    let Some(capture) = captures.of_stream(lane.handle()) else {
        answers.count.set_if_wanted(0);
        return status.set(0);
    };
    let participation = capture.participation(lane.handle());
    if participation.is_invalid {
        answers.count.set_if_wanted(0);
        return status.set(2);
    }
    answers.id.set_if_wanted(capture.id);
    answers.graph.set_if_wanted(capture.graph.handle);
    answers.nodes.set_if_wanted(participation.nodes.0);
    answers.count.set_if_wanted(participation.nodes.1);
    answers.edges.set_if_wanted(participation.edges);
    status.set(1)
}

/// Replaces the nodes before the next one of a stream, or adds some.
fn update(stream: Handle, nodes: In<Handle>, count: usize, flags: c_uint) -> Result<(), Status> {
    if flags > SET {
        return Err(Status::INVALID_VALUE);
    }
    let lane = Lane::of(stream)?;
    let capture = driver::get()?
        .captures
        .valid_of_stream(lane.handle())?
        .ok_or(Status::ILLEGAL_STATE)?;
    let mut all = match flags {
        SET => Vec::new(),
        _ => capture.frontier(lane.handle()),
    };
    for node in nodes.array(count)? {
        if !all.contains(&node) {
            all.push(node);
        }
    }
    capture.set_frontier(lane.handle(), all)
}

exports! {
    fn cuStreamBeginCapture(stream: Handle) {
        begin(stream, 0, None, Vec::new())
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) {
        begin(stream, mode, None, Vec::new())
    }

    fn cuStreamBeginCaptureToGraph(
        stream: Handle,
        graph: Handle,
        nodes: In<Handle>,
        edges: In<EdgeData>,
        count: usize,
        mode: c_uint,
    ) {
        let graph = driver::get()?.graphs.get(graph)?;
        let nodes = nodes.array(count)?;
        check_edges(edges, count)?;
        {
            let known = graph.nodes.lock();
            for node in &nodes {
                known.get(*node)?;
            }
        }
        begin(stream, mode, Some(graph), nodes)
    }

    /// A capture that fails ends nevertheless, without a graph.
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.require()?;
        let lane = Lane::of(stream)?;
        let driver = driver::get()?;
        let (capture, outcome) = driver.captures.end(lane.handle())?;
        if let Err(status) = outcome {
            driver.abandon(&capture, Some(&lane.context));
            graph.set(Handle::NULL)?;
            return Err(status);
        }
        graph.set(capture.graph.handle)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        info(stream, status, Answers::none())
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) {
        info(stream, status, Answers { id, ..Answers::none() })
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        count: Out<usize>,
    ) {
        let edges = Out::null();
        info(stream, status, Answers { id, graph, nodes, edges, count })
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        edges: Out<usize>,
        count: Out<usize>,
    ) {
        info(stream, status, Answers { id, graph, nodes, edges, count })
    }

    fn cuStreamUpdateCaptureDependencies(stream: Handle, nodes: In<Handle>, count: usize, flags: c_uint) {
        update(stream, nodes, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: Handle,
        nodes: In<Handle>,
        edges: In<EdgeData>,
        count: usize,
        flags: c_uint,
    ) {
        check_edges(edges, count)?;
        update(stream, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let before = exchange_mode(Mode::of(mode.get()?)?);
        mode.set(before as c_uint)
    }
}
