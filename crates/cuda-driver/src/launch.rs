//! Launches of kernels, before it is known whether they run or become nodes of a graph.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sahasra_cuda_boundary::log;
use sahasra_cuda_device::Properties;

use crate::attributes;
use crate::boundary::{HostPointer, In};
use crate::context::Context;
use crate::driver;
use crate::graph::{Kernel, is_cooperative};
use crate::module::Entry;
use crate::occupancy;
use crate::parameters::KernelParameters;
use crate::status::Status;

/// `CU_LAUNCH_PARAM_END` and the others, in the place of pointers.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_BYTES: usize = 2;

/// Shape of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

impl Shape {
    /// Refuses shapes in which the function cannot be launched.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), Status> {
        if let Some(refusal) = &entry.description.refusal {
            log::once(format!("kernel {} is not launched: {refusal}", entry.description.name));
            return Err(Status::NOT_SUPPORTED);
        }
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

    /// Refuses a cooperative launch whose blocks cannot all be on the device at the same time. The shape was checked.
    pub(crate) fn check_cooperative(&self, entry: &Entry, device: &Properties) -> Result<(), Status> {
        let product = |sizes: &[u32; 3]| sizes.iter().fold(1, |all: u64, size| all.saturating_mul(u64::from(*size)));
        let threads = u32::try_from(product(&self.block)).map_err(|_| Status::INVALID_VALUE)?;
        // A block that runs at all can be alone on a multiprocessor.
        let resident = u64::from(occupancy::blocks(entry, threads, self.shared_bytes as usize, device).max(1));
        if product(&self.grid) > resident * u64::from(device.multiprocessors) {
            return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}

/// Parameter block of a launch, from pointers to each parameter or from a block that the caller made.
pub(crate) fn parameters(entry: &Entry, pointers: In<In<u8>>, extra: In<usize>) -> Result<Vec<u8>, Status> {
    let description = &entry.description;
    let length = description.parameter_bytes as usize;
    let mut block = vec![0; length];
    if !pointers.is_null() && !extra.is_null() {
        return Err(Status::INVALID_VALUE);
    }
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

/// The launch as the work of a node, in a context. The function may be a kernel of a library, as in a launch.
pub(crate) fn kernel(context: &Arc<Context>, named: &KernelParameters, attributes: BTreeMap<u32, [u32; 16]>) -> Result<Kernel, Status> {
    let launch = &named.launch;
    let function = driver::get()?.function(named.handle(), context)?;
    let shape = Shape {
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
    };
    shape.check(&function.entry)?;
    if is_cooperative(&attributes) {
        shape.check_cooperative(&function.entry, driver::get()?.device.properties())?;
    }
    let block = Bytes::from(parameters(&function.entry, launch.parameters, launch.extra)?);
    let places = function.entry.description.parameters.iter();
    Ok(Kernel {
        function: launch.function,
        kernel: named.kernel,
        context: Arc::downgrade(context),
        context_handle: context.handle,
        context_id: context.id,
        entry: Arc::clone(&function.entry),
        module: function.module_id,
        index: function.index,
        grid: shape.grid,
        block: shape.block,
        shared_bytes: shape.shared_bytes,
        places: places.map(|place| block.as_ptr() as usize + place.offset as usize).collect(),
        parameters: block,
        attributes,
    })
}
