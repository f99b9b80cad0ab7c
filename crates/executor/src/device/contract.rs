//! Contract of all backends: one test suite, run unchanged against each. The CPU backend always runs it; the CUDA backend runs it where
//! there is a GPU, and reports visibly when there is none. A fault poisons a CUDA context, so each fault is tested in a process of its own
//! there.

mod backends;
mod examples;

use std::sync::Arc;
use std::time::Duration;

use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

use super::{ALIGNMENT, Arguments, Device, DeviceError, LaunchShape};

const KERNELS: &str = include_str!("../../tests/kernels.ptx");

fn shape(grid: [u32; 3], block: [u32; 3]) -> LaunchShape {
    LaunchShape {
        grid,
        block,
        dynamic_shared_bytes: 0,
    }
}

const ONE: LaunchShape = LaunchShape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    dynamic_shared_bytes: 0,
};

/// Kernel of a new instance.
fn kernel<D: Device>(
    device: &D,
    module: &Arc<D::Module>,
    entry: &str,
    shape: LaunchShape,
    arguments: &Arguments,
) -> Result<D::Kernel, DeviceError> {
    device.kernel(&Arc::new(device.instantiate(module, true)?), entry, shape, arguments)
}

/// Kernel with an output, as a chunk uses it.
struct Prepared<'a, D: Device> {
    device: &'a D,
    kernel: D::Kernel,
    output: D::Area,
    arguments: Arguments,
    stream: D::Stream,
}

impl<'a, D: Device> Prepared<'a, D> {
    /// Prepares a kernel whose first arguments are addresses of the outputs, followed by the values.
    fn new(device: &'a D, ptx: &str, entry: &str, shape: LaunchShape, outputs: &[u64], values: &[&[u8]]) -> Self {
        let module = Arc::new(device.load(ptx).unwrap());
        let output = device.allocate(outputs).unwrap();
        let sizes: Vec<usize> = outputs.iter().map(|_| 8).chain(values.iter().map(|value| value.len())).collect();
        let mut arguments = Arguments::new(&sizes);
        for place in 0..outputs.len() {
            arguments.set(place, &device.address(&output, place).to_le_bytes());
        }
        for (place, value) in values.iter().enumerate() {
            arguments.set(outputs.len() + place, value);
        }
        Self {
            kernel: kernel(device, &module, entry, shape, &arguments).unwrap(),
            stream: device.stream().unwrap(),
            device,
            output,
            arguments,
        }
    }

    fn run(&mut self, cancel: &Cancel) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = Vec::new();
        self.device.zero(&mut self.stream, &self.output)?;
        self.device.launch(&mut self.stream, &self.kernel, &self.arguments, cancel)?;
        self.device.read(&mut self.stream, &self.output, &mut bytes)?;
        Ok(bytes)
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn memory_is_zeroed_counted_and_freed<D: Device>(device: &D) {
    let before = device.used_bytes();
    let mut stream = device.stream().unwrap();
    for _ in 0..3 {
        let area = device.allocate(&[1000, 1, 4096]).unwrap();
        assert_eq!(device.used_bytes() - before, 1024 + 256 + 4096);
        for part in 0..3 {
            assert_eq!(device.address(&area, part) % ALIGNMENT, 0);
            assert_ne!(device.address(&area, part), 0);
        }
        let mut bytes = vec![7];
        device.read(&mut stream, &area, &mut bytes).unwrap();
        assert_eq!(bytes[0], 7, "appended");
        assert_eq!(bytes[1..], [0; 5097], "zeroed, whatever lay there before");
        for part in 0..3 {
            device.write(&mut stream, &area, part, &[0xee]).unwrap();
        }
        device.write(&mut stream, &area, 0, &[0xee; 1000]).unwrap();
        bytes.clear();
        device.read(&mut stream, &area, &mut bytes).unwrap();
        assert_eq!(bytes[..1001], [0xee; 1001], "parts follow each other without gaps");
        assert!(device.write(&mut stream, &area, 1, &[0; 2]).is_err(), "more than the part has");
        drop(area);
        assert_eq!(device.used_bytes(), before);
    }
    let nothing = device.allocate(&[]).unwrap();
    assert_eq!(device.used_bytes(), before);
    device.read(&mut stream, &nothing, &mut Vec::new()).unwrap();
}

fn too_much_memory_is_refused<D: Device>(device: &D) {
    let before = device.used_bytes();
    for parts in [
        &[1 << 50][..],
        &[64, 1 << 50],
        &[u64::MAX],
        &[u64::MAX / 2, u64::MAX / 2, u64::MAX / 2],
    ] {
        let refused = device.allocate(parts).map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), FailureCode::OutOfDeviceMemory, "{refused}");
    }
    assert_eq!(device.used_bytes(), before, "nothing stays of what was refused");
}

fn bad_ptx_is_refused<D: Device>(device: &D) {
    for text in [
        "",
        "nonsense",
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { bogus.u32 %r1; }",
    ] {
        let refused = device.load(text).map(|_| ());
        // A driver may accept an empty module; then the module has no entry.
        let Err(refused) = refused else {
            assert_eq!(text, "");
            continue;
        };
        assert!(
            matches!(refused.code(), FailureCode::LoadFailed | FailureCode::Unsupported),
            "{refused:?}"
        );
        assert!(!refused.is_poisoned());
    }
    assert!(device.load(KERNELS).is_ok(), "a refusal leaves the device intact");
}

fn entries_and_arguments_must_fit<D: Device>(device: &D) {
    let module = Arc::new(device.load(KERNELS).unwrap());
    let before = device.used_bytes();
    for (entry, sizes, shape, words) in [
        ("missing", &[8usize, 4][..], ONE, "missing"),
        ("affine", &[8], ONE, "argument"),
        ("affine", &[8, 4, 4], ONE, "argument"),
        ("affine", &[8, 8], ONE, "bytes"),
    ] {
        let refused = kernel(device, &module, entry, shape, &Arguments::new(sizes))
            .map(|_| ())
            .unwrap_err();
        assert_eq!(refused.code(), FailureCode::LaunchFailed, "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert_eq!(device.used_bytes(), before);
    // A shape may be rejected either when the kernel is prepared or when it is launched.
    for (grid, block, dynamic_shared_bytes) in [
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1, 1, 1], 64 << 20),
    ] {
        let shape = LaunchShape {
            grid,
            block,
            dynamic_shared_bytes,
        };
        let output = device.allocate(&[4]).unwrap();
        let mut arguments = Arguments::new(&[8, 4]);
        arguments.set(0, &device.address(&output, 0).to_le_bytes());
        let mut stream = device.stream().unwrap();
        let refused = kernel(device, &module, "affine", shape, &arguments)
            .and_then(|kernel| device.launch(&mut stream, &kernel, &arguments, &Cancel::new()))
            .unwrap_err();
        assert_eq!(refused.code(), FailureCode::LaunchFailed, "{shape:?}: {refused}");
    }
    let mut well = Prepared::new(device, KERNELS, "affine", ONE, &[4], &[&5u32.to_le_bytes()]);
    assert_eq!(words(&well.run(&Cancel::new()).unwrap()), [16], "refusals leave the device intact");
}

fn every_scalar_arrives<D: Device>(device: &D) {
    let mut echo = Prepared::new(
        device,
        KERNELS,
        "echo",
        ONE,
        &[56],
        &[
            &[200],
            &(-7i32).to_le_bytes(),
            &4_000_000_000u32.to_le_bytes(),
            &i64::MIN.to_le_bytes(),
            &(u64::MAX - 1).to_le_bytes(),
            &1.5f32.to_le_bytes(),
            &(-0.1f64).to_le_bytes(),
        ],
    );
    let bytes = echo.run(&Cancel::new()).unwrap();
    assert_eq!(bytes[0], 200);
    assert_eq!(bytes[8..12], (-7i32).to_le_bytes());
    assert_eq!(bytes[16..20], 4_000_000_000u32.to_le_bytes());
    assert_eq!(bytes[24..32], i64::MIN.to_le_bytes());
    assert_eq!(bytes[32..40], (u64::MAX - 1).to_le_bytes());
    assert_eq!(bytes[40..44], 1.5f32.to_le_bytes());
    assert_eq!(bytes[48..56], (-0.1f64).to_le_bytes());
}

fn grids_and_blocks_have_three_dimensions<D: Device>(device: &D) {
    for (grid, block) in [
        ([2, 3, 4], [5, 3, 2]),
        ([1, 1, 1], [1024, 1, 1]),
        ([100, 1, 1], [33, 1, 1]),
        ([7, 5, 3], [1, 2, 64]),
    ] {
        let threads: u32 = grid.iter().chain(&block).product();
        let mut kernel = Prepared::new(device, KERNELS, "coordinates", shape(grid, block), &[u64::from(threads) * 4], &[]);
        let expected: Vec<u32> = (1..=threads).collect();
        assert_eq!(words(&kernel.run(&Cancel::new()).unwrap()), expected, "{grid:?} {block:?}");
    }
}

fn dynamic_shared_memory_has_the_size_asked_for<D: Device>(device: &D) {
    // Up to 1024 threads; then the most dynamic shared memory that a block may have without opting in (48 KiB), and more.
    for (threads, bytes) in [(1u32, 4u32), (100, 400), (1024, 4096), (1024, 48 << 10), (64, 64 << 10)] {
        let shape = LaunchShape {
            dynamic_shared_bytes: bytes,
            ..shape([1, 1, 1], [threads, 1, 1])
        };
        let mut kernel = Prepared::new(device, KERNELS, "shared_sum", shape, &[4], &[]);
        assert_eq!(words(&kernel.run(&Cancel::new()).unwrap()), [threads * (threads + 1) / 2]);
    }
}

fn module_variables_start_afresh_with_each_instance<D: Device>(device: &D) {
    let before = device.used_bytes();
    for _ in 0..2 {
        let mut kernel = Prepared::new(device, KERNELS, "variables", ONE, &[20], &[]);
        assert!(device.keeps_state(&kernel.kernel));
        assert_eq!(words(&kernel.run(&Cancel::new()).unwrap()), [10, 20, 30, 40, 5]);
        assert_eq!(
            words(&kernel.run(&Cancel::new()).unwrap()),
            [10, 20, 30, 40, 6],
            "launches of one instance share them"
        );
    }
    assert_eq!(device.used_bytes(), before);
}

fn a_module_outlives_its_kernels_and_serves_many<D: Device>(device: &D) {
    let module = Arc::new(device.load(KERNELS).unwrap());
    let output = device.allocate(&[4]).unwrap();
    let mut stream = device.stream().unwrap();
    for index in 0..20u32 {
        let mut arguments = Arguments::new(&[8, 4]);
        arguments.set(0, &device.address(&output, 0).to_le_bytes());
        arguments.set(1, &index.to_le_bytes());
        let kernel = kernel(device, &module, "affine", ONE, &arguments).unwrap();
        device.launch(&mut stream, &kernel, &arguments, &Cancel::new()).unwrap();
        let mut bytes = Vec::new();
        device.read(&mut stream, &output, &mut bytes).unwrap();
        assert_eq!(words(&bytes), [3 * index + 1]);
    }
}

fn large_areas_are_copied_whole<D: Device>(device: &D) {
    // Odd sizes around and beyond the size of a staging buffer.
    let sizes = [(3 << 20) + 5, 1, (1 << 20) - 1];
    let area = device.allocate(&sizes).unwrap();
    let mut stream = device.stream().unwrap();
    let pattern = |part: usize| -> Vec<u8> { (0..sizes[part]).map(|at| (at * 31 + part as u64) as u8).collect() };
    for part in 0..3 {
        device.write(&mut stream, &area, part, &pattern(part)).unwrap();
    }
    let mut bytes = Vec::new();
    device.read(&mut stream, &area, &mut bytes).unwrap();
    assert!(bytes == [pattern(0), pattern(1), pattern(2)].concat());
}

fn many_lanes_do_not_disturb_each_other<D: Device>(device: &D) {
    let module = Arc::new(device.load(KERNELS).unwrap());
    let sizes = Arguments::new(&[8, 4]);
    let kernel = kernel(device, &module, "affine", ONE, &sizes).unwrap();
    std::thread::scope(|scope| {
        for lane in 0..8u32 {
            let (kernel, sizes) = (&kernel, &sizes);
            scope.spawn(move || {
                let mut stream = device.stream().unwrap();
                let output = device.allocate(&[4]).unwrap();
                let mut arguments = sizes.clone();
                arguments.set(0, &device.address(&output, 0).to_le_bytes());
                for round in 0..200u32 {
                    let index = lane * 1000 + round;
                    arguments.set(1, &index.to_le_bytes());
                    device.zero(&mut stream, &output).unwrap();
                    device.launch(&mut stream, kernel, &arguments, &Cancel::new()).unwrap();
                    let mut bytes = Vec::new();
                    device.read(&mut stream, &output, &mut bytes).unwrap();
                    assert_eq!(words(&bytes), [3 * index + 1]);
                }
            });
        }
    });
}

/// Runs a kernel that faults. The device must report the fault, and must stay usable afterwards unless faults poison it.
fn a_fault_is_told<D: Device>(device: &D, entry: &str, code: FailureCode) {
    let which = 3u32.to_le_bytes();
    let mut kernel = Prepared::new(device, KERNELS, entry, ONE, &[4], &[&which, &which]);
    let fault = kernel.run(&Cancel::new()).unwrap_err();
    assert_eq!(fault.code(), code, "{fault}");
    assert_eq!(fault.is_poisoned(), D::FAULTS_POISON);
    let mut other = device.stream().and_then(|stream| Ok((stream, device.allocate(&[4])?)));
    let after = other
        .as_mut()
        .map_err(|error| error.clone())
        .and_then(|(stream, area)| device.read(stream, area, &mut Vec::new()));
    assert_eq!(after.is_err(), D::FAULTS_POISON, "{after:?}");
    if !D::FAULTS_POISON {
        let mut well = Prepared::new(device, KERNELS, entry, ONE, &[4], &[&2u32.to_le_bytes(), &which]);
        assert_eq!(words(&well.run(&Cancel::new()).unwrap()), [2]);
    }
}

/// Cancels a kernel that never ends. Does not return if the device cannot cancel.
fn an_endless_kernel_ends_when_cancelled<D: Device>(device: &D) {
    let mut kernel = Prepared::new(device, KERNELS, "spin", ONE, &[4], &[&1u32.to_le_bytes(), &0u32.to_le_bytes()]);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            cancel.cancel();
        });
        let ended = kernel.run(&cancel).unwrap_err();
        assert_eq!(ended.code(), FailureCode::ChunkTimeout, "{ended}");
    });
    let mut well = Prepared::new(device, KERNELS, "spin", ONE, &[4], &[&1u32.to_le_bytes(), &2u32.to_le_bytes()]);
    assert_eq!(words(&well.run(&Cancel::new()).unwrap()), [1]);
}
