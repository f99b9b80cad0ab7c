//! Launches.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{LaunchRequest, Operation};

use crate::attributes;
use crate::boundary::{Handle, HostPointer, In};
use crate::driver;
use crate::lane::Lane;
use crate::module::Entry;
use crate::status::Status;
use crate::stream::Event;

/// `CU_LAUNCH_PARAM_END` and the others, in the place of pointers.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_BYTES: usize = 2;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE` and others.
const COOPERATIVE: c_uint = 2;
const CLUSTER: c_uint = 4;
const PROGRAMMATIC_EVENT: c_uint = 7;
const COMPLETION_EVENT: c_uint = 12;

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

/// Shape of a launch.
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    is_cooperative: bool,
    /// Events that are recorded by the launch.
    events: Vec<Arc<Event>>,
}

impl Shape {
    /// Reads the attributes of a launch. Its events are recorded when the launch is done, which is later than when its blocks have begun.
    fn read(&mut self, configuration: &LaunchConfiguration) -> Result<(), Status> {
        for index in 0..configuration.attribute_count as usize {
            let attribute = configuration.attributes.at(index)?;
            match attribute.id {
                COOPERATIVE => self.is_cooperative = attribute.value[0] != 0,
                CLUSTER if attribute.value[..3] != [1, 1, 1] => return refuse("a launch in clusters"),
                PROGRAMMATIC_EVENT | COMPLETION_EVENT => {
                    let [low, high, ..] = attribute.value;
                    let event = driver::get()?.events.get(Handle(u64::from(low) | u64::from(high) << 32))?;
                    if event.has_time() {
                        return Err(Status::INVALID_VALUE);
                    }
                    self.events.push(event);
                }
                // Everything else is a hint, or what one ordered queue does anyway.
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses shapes in which the function cannot be launched.
    fn check(&self, entry: &Entry) -> Result<(), Status> {
        let [x, y, z] = self.grid;
        let is_grid = (1..=attributes::GRID_X).contains(&x) && [y, z].iter().all(|size| (1..=attributes::GRID_YZ).contains(size));
        let threads = self.block.iter().fold(1, |all: u64, size| all.saturating_mul(u64::from(*size)));
        let is_block = (1..=u64::from(attributes::BLOCK_THREADS)).contains(&threads) && self.block[2] <= attributes::BLOCK_Z;
        let is_shared = self.shared_bytes <= entry.most_dynamic_shared.load(Ordering::Relaxed);
        let is_required = entry.description.required_block.is_none_or(|required| required == self.block);
        if !is_grid || !is_block || !is_shared || !is_required {
            return Err(Status::INVALID_VALUE);
        }
        if threads > u64::from(entry.description.max_threads) {
            return Err(Status::LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }
}

/// Parameter block of a launch, from pointers to each parameter or from a block that the caller made.
fn parameters(entry: &Entry, pointers: In<In<u8>>, extra: In<usize>) -> Result<Vec<u8>, Status> {
    let description = &entry.description;
    let length = description.parameter_bytes as usize;
    let mut block = vec![0; length];
    if length == 0 {
        return Ok(block);
    }
    if !pointers.is_null() {
        for (index, place) in description.parameters.iter().enumerate() {
            let source = HostPointer::new(pointers.at(index)?.address() as *mut c_void);
            let target = &mut block[place.offset as usize..(place.offset + place.bytes) as usize];
            source.with_bytes(target.len(), |bytes| target.copy_from_slice(bytes))?;
        }
        return Ok(block);
    }
    let (mut buffer, mut bytes) = (None, None);
    for pair in (0..).step_by(2) {
        match extra.at(pair)? {
            END => break,
            BUFFER => buffer = Some(extra.at(pair + 1)?),
            BUFFER_BYTES => bytes = Some(In::<usize>::new(extra.at(pair + 1)? as *const usize).get()?),
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    let (Some(buffer), Some(bytes)) = (buffer, bytes) else {
        return Err(Status::INVALID_VALUE);
    };
    if bytes < length {
        return Err(Status::INVALID_VALUE);
    }
    HostPointer::of_address(buffer).with_bytes(length, |bytes| block.copy_from_slice(bytes))?;
    Ok(block)
}

fn launch(function: Handle, shape: &Shape, stream: Handle, pointers: In<In<u8>>, extra: In<usize>) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    lane.begin()?;
    let function = driver::get()?.function(function, &lane.context)?;
    shape.check(&function.entry)?;
    if shape.events.iter().any(|event| event.context_id != lane.context.id) {
        return Err(Status::INVALID_HANDLE);
    }
    if !pointers.is_null() && !extra.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let request = LaunchRequest {
        module: function.module_id,
        function: function.index,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared_bytes: shape.shared_bytes,
        stack_bytes: lane.context.stack_bytes.load(Ordering::Relaxed) as u32,
        cooperative: shape.is_cooperative,
        parameters: parameters(&function.entry, pointers, extra)?.into(),
    };
    let ticket = lane.submit(Operation::Launch(Box::new(request)))?;
    for event in &shape.events {
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
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            is_cooperative: false,
            events: Vec::new(),
        };
        launch(function, &shape, stream, pointers, extra)
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
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            is_cooperative: true,
            events: Vec::new(),
        };
        launch(function, &shape, stream, pointers, In::new(std::ptr::null()))
    }

    fn cuLaunchKernelEx(configuration: In<LaunchConfiguration>, function: Handle, pointers: In<In<u8>>, extra: In<usize>) {
        let configuration = configuration.get()?;
        let mut shape = Shape {
            grid: configuration.grid,
            block: configuration.block,
            shared_bytes: configuration.shared_bytes,
            is_cooperative: false,
            events: Vec::new(),
        };
        shape.read(&configuration)?;
        launch(function, &shape, configuration.stream, pointers, extra)
    }

    /// Work that follows in the stream is accepted when the function has run. The function does not run after a fault.
    fn cuLaunchHostFunc(stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: HostPointer) {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let lane = Lane::of(stream)?;
        lane.context.check()?;
        lane.call(move |failure| {
            if failure.is_none_or(|failure| !failure.is_sticky()) {
                // The whole of it, which may be sent to the thread.
                let data: HostPointer = data;
                // SAFETY: the caller passed the function to be called with this argument, from any thread.
                unsafe { function(data.pointer()) };
            }
        })
    }
}
