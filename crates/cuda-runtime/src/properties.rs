//! Properties of a device (`cudaDeviceProp`), whose layout differs between the versions of the API.

use std::ffi::{c_int, c_uint};

use crate::Error;
use crate::boundary::Out;
use crate::context;
use crate::driver::Driver;

/// Bytes of the structure in version 12.
pub const BYTES_12: usize = 1032;
/// Bytes of the structure before version 12, which added fields behind them.
pub const BYTES_11: usize = 728;
/// Bytes of the structure in version 13.
pub const BYTES_13: usize = 1008;

/// Bytes of a device's name.
const NAME_BYTES: usize = 256;
/// Bytes of the identifier that Windows has, with its mask.
const LUID_BYTES: usize = 12;

/// Fields in order, each at its alignment.
struct Fields<'a> {
    bytes: Vec<u8>,
    driver: &'a Driver,
    device: c_int,
}

impl Fields<'_> {
    fn align(&mut self, alignment: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
    }

    /// Value of an attribute of the device; 0 if the driver does not know it.
    fn attribute(&self, number: c_uint) -> c_int {
        let mut value = 0;
        match self.driver.cuDeviceGetAttribute(Out::new(&raw mut value), number, self.device) {
            Ok(()) => value,
            Err(_) => 0,
        }
    }

    /// Fields of type `int` with the values of attributes.
    fn ints(&mut self, attributes: &[c_uint]) {
        for attribute in attributes {
            let value = self.attribute(*attribute);
            self.int(value);
        }
    }

    fn int(&mut self, value: c_int) {
        self.align(4);
        self.bytes.extend(value.to_ne_bytes());
    }

    fn size(&mut self, value: usize) {
        self.align(8);
        self.bytes.extend(value.to_ne_bytes());
    }

    /// A field of type `size_t` with the value of an attribute.
    fn size_of(&mut self, attribute: c_uint) {
        let value = usize::try_from(self.attribute(attribute)).unwrap_or(0);
        self.size(value);
    }
}

/// The structure as version `major` of the API has it. Numbers are those of `CUdevice_attribute`, in the order of the fields.
pub fn properties(major: u32, device: c_int) -> Result<Vec<u8>, Error> {
    let driver = context::of_device(device)?;
    let is_12 = major < 13;
    let (mut name, mut uuid, mut memory) = ([0; NAME_BYTES], [0; 16], 0);
    driver.cuDeviceGetName(Out::new(name.as_mut_ptr()), NAME_BYTES as c_int, device)?;
    driver.cuDeviceGetUuid_v2(Out::new(&raw mut uuid), device)?;
    driver.cuDeviceTotalMem_v2(Out::new(&raw mut memory), device)?;
    let mut fields = Fields {
        bytes: name.to_vec(),
        driver,
        device,
    };
    fields.bytes.extend(uuid);
    fields.bytes.extend([0; LUID_BYTES]);
    fields.size(memory);
    // Shared memory and registers of a block, threads of a warp.
    fields.size_of(8);
    fields.ints(&[12, 10]);
    // Longest row; threads of a block and blocks of a grid.
    fields.size_of(11);
    fields.ints(&[1, 2, 3, 4, 5, 6, 7]);
    if is_12 {
        // Clock rate.
        fields.ints(&[13]);
    }
    // Constant memory, compute capability, alignment of textures.
    fields.size_of(9);
    fields.ints(&[75, 76]);
    fields.size_of(14);
    fields.size_of(51);
    // Overlap of copies, multiprocessors, time limit of kernels, memory of the host, mapping, compute mode.
    fields.ints(if is_12 { &[15, 16, 17, 18, 19, 20] } else { &[16, 18, 19] });
    // Largest textures of one dimension: in an array, in an array with mipmaps (not in 13), in linear memory.
    fields.ints(if is_12 { &[21, 77, 69] } else { &[21, 77] });
    // Largest textures of two dimensions: in an array, with mipmaps, in linear memory, for gathers. Then of three, cubes and layers.
    fields.ints(&[22, 23, 73, 74, 70, 71, 72, 45, 46]);
    fields.ints(&[24, 25, 26, 47, 48, 49, 52]);
    fields.ints(&[42, 43, 27, 28, 29, 53, 54]);
    // Surfaces, in the same order.
    fields.ints(&[55, 56, 57, 58, 59, 60]);
    fields.ints(&[61, 62, 63, 64, 65, 66, 67, 68]);
    // Alignment of surfaces.
    fields.size_of(30);
    // Concurrent kernels, ECC; bus, device and domain; driver model, copy engines, unified addresses.
    fields.ints(&[31, 32, 33, 34, 50, 35, 40, 41]);
    // Clock rate and width of the memory, caches, threads of a multiprocessor, priorities.
    fields.ints(if is_12 { &[36, 37] } else { &[37] });
    fields.ints(&[38, 108, 39, 78, 79, 80]);
    fields.size_of(81);
    // Registers of a multiprocessor, managed memory, boards, atomics of the host.
    fields.ints(&[82, 83, 84, 85, 86]);
    if is_12 {
        // Ratio of single to double precision.
        fields.ints(&[87]);
    }
    // Pageable memory, concurrent managed access, preemption, registered memory at its address, cooperative launches.
    fields.ints(&[88, 89, 90, 91, 95]);
    if is_12 {
        // Cooperative launches on several devices.
        fields.ints(&[96]);
    }
    fields.size_of(97);
    // Page tables, direct access, blocks of a multiprocessor, access policy.
    fields.ints(&[100, 101, 106, 109]);
    fields.size_of(111);
    // Registration of host memory, sparse arrays, read-only registration, semaphores, pools, RDMA, pools' handles, deferred mapping, IPC.
    fields.ints(&[99, 112, 113, 114, 115, 116, 117, 118, 119, 121, 125]);
    // Clusters, unified function pointers.
    fields.ints(&[120, 129]);
    if !is_12 {
        // NUMA nodes of the device, MPS, node of the host, identifiers on the bus, IPC across nodes.
        fields.ints(&[130, 131, 133, 134, 139, 140, 143]);
    }
    fields.bytes.resize(if is_12 { BYTES_12 } else { BYTES_13 }, 0);
    Ok(fields.bytes)
}

/// Writes the first bytes of the structure.
pub fn write(out: Out<u8>, major: u32, device: c_int, bytes: usize) -> Result<(), Error> {
    out.require()?;
    for (index, byte) in properties(major, device)?.into_iter().take(bytes).enumerate() {
        out.set_at(index, byte)?;
    }
    Ok(())
}
