//! Launches.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{LaunchRequest, Operation};

use crate::boundary::{Handle, HostPointer, In};
use crate::driver;
use crate::graph::{COOPERATIVE, Work, is_cooperative};
use crate::lane::Lane;
use crate::launch::{Shape, kernel, parameters};
use crate::parameters::{HostParameters, KernelParametersV1};
use crate::status::Status;
use crate::stream::Event;

/// Value of `CU_LAUNCH_ATTRIBUTE_COOPERATIVE` for cooperative launches.
const COOPERATIVE_ON: [u32; 16] = {
    let mut value = [0; 16];
    value[0] = 1;
    value
};
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION` and others.
const CLUSTER: c_uint = 4;
const PROGRAMMATIC_EVENT: c_uint = 7;
const COMPLETION_EVENT: c_uint = 12;
/// `CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE`, the last one of CUDA 13.
const LAST_ATTRIBUTE: c_uint = 18;

/// `CUlaunchAttribute`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfiguration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: In<LaunchAttribute>,
    attribute_count: c_uint,
}

/// A launch, with the attributes that it has.
struct Request {
    shape: Shape,
    attributes: BTreeMap<u32, [u32; 16]>,
    /// Events that are recorded by the launch.
    events: Vec<Arc<Event>>,
}

impl Request {
    fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Self {
        Self {
            shape: Shape { grid, block, shared_bytes },
            attributes: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Reads the attributes of a launch. Its events are recorded when the launch is done, which is later than when its blocks have begun.
    fn read(&mut self, configuration: &LaunchConfiguration) -> Result<(), Status> {
        for index in 0..configuration.attribute_count as usize {
            let attribute = configuration.attributes.at(index)?;
            check_attribute(attribute.id, &attribute.value)?;
            if matches!(attribute.id, PROGRAMMATIC_EVENT | COMPLETION_EVENT) {
                let [low, high, ..] = attribute.value;
                let event = driver::get()?.events.get(Handle(u64::from(low) | u64::from(high) << 32))?;
                if event.has_time() {
                    return Err(Status::INVALID_VALUE);
                }
                self.events.push(event);
            }
            // Everything else is a hint, or what one ordered queue does anyway.
            self.attributes.insert(attribute.id, attribute.value);
        }
        Ok(())
    }
}

/// Refuses attributes without which the launch would be another one.
pub(crate) fn check_attribute(id: u32, value: &[u32; 16]) -> Result<(), Status> {
    match id {
        CLUSTER if value[..3] != [1, 1, 1] => refuse("a launch in clusters"),
        0..=LAST_ATTRIBUTE => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn launch(function: Handle, request: &Request, stream: Handle, pointers: In<In<u8>>, extra: In<usize>) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    let shape = request.shape;
    let captured = || {
        if !request.events.is_empty() {
            return refuse("a launch that records events in a capture");
        }
        let named = KernelParametersV1 {
            function,
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            parameters: pointers,
            extra,
        };
        let kernel = kernel(&lane.context, &named.into(), request.attributes.clone())?;
        Ok(Work::Kernel(Box::new(kernel)))
    };
    if lane.add(captured)? {
        return Ok(());
    }
    if request.events.iter().any(|event| event.context_id != lane.context.id) {
        return Err(Status::INVALID_HANDLE);
    }
    lane.begin()?;
    let driver = driver::get()?;
    let function = driver.function(function, &lane.context)?;
    shape.check(&function.entry)?;
    let cooperative = is_cooperative(&request.attributes);
    if cooperative {
        shape.check_cooperative(&function.entry, driver.device.properties())?;
    }
    let launch = LaunchRequest {
        module: function.module_id,
        function: function.index,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared_bytes: shape.shared_bytes,
        stack_bytes: lane.context.stack_bytes.load(Ordering::Relaxed) as u32,
        cooperative,
        parameters: parameters(&function.entry, pointers, extra)?.into(),
    };
    let ticket = lane.submit(Operation::Launch(Box::new(launch)))?;
    for event in &request.events {
        event.record(ticket);
    }
    Ok(())
}

exports! {
    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        pointers: In<In<u8>>,
        extra: In<usize>,
    ) {
        let request = Request::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes);
        launch(function, &request, stream, pointers, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        pointers: In<In<u8>>,
    ) {
        let mut request = Request::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes);
        request.attributes.insert(COOPERATIVE, COOPERATIVE_ON);
        launch(function, &request, stream, pointers, In::new(std::ptr::null()))
    }

    fn cuLaunchKernelEx(configuration: In<LaunchConfiguration>, function: Handle, pointers: In<In<u8>>, extra: In<usize>) {
        let configuration = configuration.get()?;
        let mut request = Request::new(configuration.grid, configuration.block, configuration.shared_bytes);
        request.read(&configuration)?;
        launch(function, &request, configuration.stream, pointers, extra)
    }

    /// Work that follows in the stream is accepted when the function has run. The function does not run after a fault.
    fn cuLaunchHostFunc(stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: HostPointer) {
        let call = HostParameters {
            function: function.ok_or(Status::INVALID_VALUE)? as usize,
            data,
        };
        let lane = Lane::of(stream)?;
        if lane.add(|| Ok(Work::Call(call)))? {
            return Ok(());
        }
        lane.call_host(call)
    }
}
