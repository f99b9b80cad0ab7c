//! Kernels of `examples/` from their committed PTX, checked against host computations that do not use the engine.

mod half_moons;

use std::error::Error;

use half_moons::{Configuration, HalfMoons};
use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, Launch, LoadedModule, Memory, Module};

const EVAL_CONFIG: &str = include_str!("../../../../examples/hyperparameter-search/eval_config.ptx");
const ESTIMATE_PI: &str = include_str!("../../../../examples/monte-carlo/estimate_pi.ptx");
const SAXPY: &str = include_str!("../../../../examples/saxpy/saxpy.ptx");
const DATASET: &str = include_str!("../../../../examples/hyperparameter-search/dataset.h");

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Device with one module, as in an executor.
struct Device {
    memory: Memory,
    module: LoadedModule,
}

impl Device {
    fn with(ptx: &str) -> Outcome<Self> {
        let memory = Memory::new(8 << 20);
        let module = Module::load(ptx)?.instantiate(&memory)?;
        Ok(Self { memory, module })
    }

    fn array<const N: usize>(&self, values: impl IntoIterator<Item = [u8; N]>) -> Outcome<DevicePointer> {
        let bytes: Vec<u8> = values.into_iter().flatten().collect();
        let pointer = self.memory.allocate(bytes.len() as u64)?;
        self.memory.write(pointer, &bytes)?;
        Ok(pointer)
    }

    fn read(&self, pointer: DevicePointer, count: usize) -> Outcome<Vec<[u8; 4]>> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(pointer, &mut bytes)?;
        Ok(bytes.as_chunks().0.to_vec())
    }

    /// Runs one block of the kernel. Returns the number of steps.
    fn launch(&self, entry: &str, threads: u32, arguments: &ArgumentList) -> Outcome<u64> {
        let kernel = self.module.entry(entry).ok_or("no such kernel")?;
        let launch = Launch::new([1, 1, 1], [threads, 1, 1]);
        Ok(kernel.launch(&launch, arguments.bytes(), &self.memory, &Cancel::new())?.steps)
    }
}

/// Returns the losses of these configurations.
fn searched(indexes: &[u32]) -> Outcome<Vec<f32>> {
    let device = Device::with(EVAL_CONFIG)?;
    let output = device.memory.allocate(4)?;
    let loss = |&index: &u32| {
        let configuration = Configuration::of(index);
        let arguments = ArgumentList::new()
            .pointer(output)
            .f32(configuration.learning_rate)
            .u32(configuration.batch_size)
            .f32(configuration.dropout);
        device.launch("eval_config", 256, &arguments)?;
        Ok(f32::from_le_bytes(device.read(output, 1)?[0]))
    };
    indexes.iter().map(loss).collect()
}

#[test]
fn training_gives_the_losses_that_the_host_computes() -> Outcome {
    let moons = HalfMoons::parse(DATASET);
    // All batch sizes and dropouts, and a range of learning rates: 7 has no common factor with 100.
    let indexes: Vec<u32> = (0..1000).step_by(7).collect();
    for (index, loss) in indexes.iter().zip(searched(&indexes)?) {
        let expected = moons.validation_loss(Configuration::of(*index));
        assert!(
            (f64::from(loss) - expected).abs() <= 1e-5,
            "configuration {index}: {loss}, expected {expected}"
        );
    }
    Ok(())
}

#[test]
fn the_best_of_all_configurations_is_the_one_that_the_host_finds() -> Outcome {
    let moons = HalfMoons::parse(DATASET);
    let indexes: Vec<u32> = (0..1000).collect();
    let losses = searched(&indexes)?;
    let best = (0..losses.len())
        .min_by(|a, b| losses[*a].total_cmp(&losses[*b]))
        .ok_or("no losses")?;
    assert_eq!(best, 70);
    // The host computes only part of the search: no configuration near the best one has a smaller loss on the host.
    let near = (0..100).chain((100..1000).step_by(10)).filter(|index| *index != 70);
    let on_host = moons.validation_loss(Configuration::of(70));
    for index in near {
        assert!(
            moons.validation_loss(Configuration::of(index)) > on_host + 0.01,
            "configuration {index}"
        );
    }
    Ok(())
}

#[test]
fn training_again_gives_the_same_bits() -> Outcome {
    let indexes = [0, 70, 333, 999];
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(searched(&indexes)?), bits(searched(&indexes)?));
    Ok(())
}

#[test]
fn a_batch_size_that_fills_no_group_of_lanes_is_trained_as_on_the_host() -> Outcome {
    let moons = HalfMoons::parse(DATASET);
    let device = Device::with(EVAL_CONFIG)?;
    let output = device.memory.allocate(4)?;
    for batch_size in [1, 7, 33, 640] {
        let configuration = Configuration {
            learning_rate: 0.25,
            batch_size,
            dropout: 0.2,
        };
        let arguments = ArgumentList::new().pointer(output).f32(0.25).u32(batch_size).f32(0.2);
        device.launch("eval_config", 256, &arguments)?;
        let loss = f64::from(f32::from_le_bytes(device.read(output, 1)?[0]));
        let expected = moons.validation_loss(configuration);
        assert!(
            (loss - expected).abs() <= 1e-5,
            "batches of {batch_size}: {loss}, expected {expected}"
        );
    }
    Ok(())
}

fn points_inside(chunk: u32, samples_per_thread: u32, seed: u32) -> u32 {
    let points = 256 * samples_per_thread;
    let inside = |sample: &u32| {
        let mut bits = seed.wrapping_add(chunk * points + sample);
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
        bits ^= bits >> 16;
        let [x, y] = [bits & 0x7fff, bits >> 17].map(|cell| u64::from(2 * cell + 1));
        x * x + y * y < 1 << 32
    };
    (0..points).filter(inside).count() as u32
}

#[test]
fn points_inside_the_circle_are_counted_exactly() -> Outcome {
    let device = Device::with(ESTIMATE_PI)?;
    let (estimate, inside) = (device.memory.allocate(4)?, device.memory.allocate(4)?);
    let mut sum = 0.0;
    for chunk in 0..256 {
        let arguments = ArgumentList::new()
            .pointer(estimate)
            .pointer(inside)
            .u32(chunk)
            .u32(64)
            .u32(20_240_229);
        device.launch("estimate_pi", 256, &arguments)?;
        let count = u32::from_le_bytes(device.read(inside, 1)?[0]);
        assert_eq!(count, points_inside(chunk, 64, 20_240_229), "chunk {chunk}");
        let given = f64::from(f32::from_le_bytes(device.read(estimate, 1)?[0]));
        assert_eq!(given, 4.0 * f64::from(count) / 16_384.0, "chunk {chunk}");
        sum += given;
    }
    assert!((sum / 256.0 - std::f64::consts::PI).abs() < 0.003, "{}", sum / 256.0);
    Ok(())
}

#[test]
fn each_chunk_of_saxpy_reads_its_own_part_of_the_shared_vector() -> Outcome {
    let device = Device::with(SAXPY)?;
    let x = device.array((0..256_u16).map(|i| (f32::from(i) / 8.0).to_le_bytes()))?;
    let out = device.memory.allocate(4 * 32)?;
    for chunk in 0..8_u16 {
        let part = || 32 * chunk..32 * (chunk + 1);
        let y = device.array(part().map(|i| (100.0 - f32::from(i)).to_le_bytes()))?;
        let arguments = ArgumentList::new().pointer(out).pointer(x).pointer(y).f32(2.5).u32(chunk.into());
        device.launch("saxpy", 32, &arguments)?;
        device.memory.free(y)?;
        let given: Vec<f32> = device.read(out, 32)?.into_iter().map(f32::from_le_bytes).collect();
        let expected: Vec<f32> = part().map(|i| 2.5 * (f32::from(i) / 8.0) + (100.0 - f32::from(i))).collect();
        assert_eq!(given, expected, "chunk {chunk}");
    }
    Ok(())
}
