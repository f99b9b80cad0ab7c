//! Launches.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Dimensions, Handle, In, Out, Pointer};
use crate::driver::Driver;
use crate::driver::structures::DriverConfiguration;
use crate::registry;
use crate::{Error, context, exports};

/// `cudaLaunchConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Configuration {
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: usize,
    stream: Handle,
    attributes: usize,
    attribute_count: c_uint,
}

impl Configuration {
    fn for_driver(&self) -> Result<DriverConfiguration, Error> {
        Ok(DriverConfiguration {
            grid: self.grid,
            block: self.block,
            shared_bytes: c_uint::try_from(self.shared_bytes).map_err(|_| Error::INVALID_VALUE)?,
            stream: self.stream,
            attributes: self.attributes,
            attribute_count: self.attribute_count,
        })
    }
}

/// Arguments of a launch.
pub(crate) struct Launch {
    /// Address of a registered kernel, or a kernel of the driver.
    pub(crate) function: usize,
    pub(crate) grid: Dimensions,
    pub(crate) block: Dimensions,
    pub(crate) parameters: Pointer,
    pub(crate) shared_bytes: usize,
    pub(crate) stream: Handle,
    pub(crate) is_cooperative: bool,
}

pub(crate) fn launch(launch: &Launch) -> Result<(), Error> {
    let driver = context::ready()?;
    let function = registry::function(driver, launch.function)?;
    let (grid, block, stream, parameters) = (launch.grid, launch.block, launch.stream, launch.parameters);
    let shared = c_uint::try_from(launch.shared_bytes).map_err(|_| Error::INVALID_VALUE)?;
    let launched = if launch.is_cooperative {
        driver.cuLaunchCooperativeKernel(
            function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, parameters,
        )
    } else {
        let none = Pointer::of_address(0);
        driver.cuLaunchKernel(
            function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, parameters, none,
        )
    };
    launched.map_err(|error| shape_error(driver, error, grid, block))
}

/// The runtime has an error of its own for shapes that the device does not have.
fn shape_error(driver: &Driver, error: Error, grid: Dimensions, block: Dimensions) -> Error {
    let is_within = |size: u32, attribute: c_uint| {
        let mut most = 0;
        let known = context::device().and_then(|device| driver.cuDeviceGetAttribute(Out::new(&raw mut most), attribute, device));
        known.is_err() || (1..=most as u32).contains(&size)
    };
    let threads = [block.x, block.y, block.z].into_iter().fold(1, u32::saturating_mul);
    // CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, then the maxima of blocks and grids along each dimension.
    let sizes = [threads, block.x, block.y, block.z, grid.x, grid.y, grid.z];
    let is_shape = sizes.into_iter().zip(1..).all(|(size, attribute)| is_within(size, attribute));
    if error == Error::INVALID_VALUE && !is_shape {
        return Error::INVALID_CONFIGURATION;
    }
    error
}

exports! {
    fn cudaLaunchKernel(
        function: usize,
        grid: Dimensions,
        block: Dimensions,
        parameters: Pointer,
        shared_bytes: usize,
        stream: Handle,
    ) {
        launch(&Launch { function, grid, block, parameters, shared_bytes, stream, is_cooperative: false })
    }

    fn cudaLaunchCooperativeKernel(
        function: usize,
        grid: Dimensions,
        block: Dimensions,
        parameters: Pointer,
        shared_bytes: usize,
        stream: Handle,
    ) {
        launch(&Launch { function, grid, block, parameters, shared_bytes, stream, is_cooperative: true })
    }

    fn cudaLaunchKernelExC(configuration: In<Configuration>, function: usize, parameters: Pointer) {
        let driver = context::ready()?;
        let configuration = configuration.get()?.for_driver()?;
        let function = registry::function(driver, function)?;
        let none = Pointer::of_address(0);
        let launched = driver.cuLaunchKernelEx(In::new(&raw const configuration), function, parameters, none);
        launched.map_err(|error| shape_error(driver, error, configuration.grid, configuration.block))
    }

    fn cudaOccupancyMaxActiveClusters(clusters: Out<c_int>, function: usize, configuration: In<Configuration>) {
        let driver = context::ready()?;
        let configuration = configuration.get()?.for_driver()?;
        driver.cuOccupancyMaxActiveClusters(clusters, registry::function(driver, function)?, In::new(&raw const configuration))
    }

    fn cudaOccupancyMaxPotentialClusterSize(size: Out<c_int>, function: usize, configuration: In<Configuration>) {
        let driver = context::ready()?;
        let configuration = configuration.get()?.for_driver()?;
        driver.cuOccupancyMaxPotentialClusterSize(size, registry::function(driver, function)?, In::new(&raw const configuration))
    }
}
