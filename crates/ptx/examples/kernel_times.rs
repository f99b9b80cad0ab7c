//! Measures kernels of the corpus on this engine, on one thread by default. This is the counterpart of `bench/c/reference.c`, with the same
//! data and the same checks. Also measures loading of modules and an empty launch. The PTX is from NVRTC 12.9 for sm_80.
//!
//! ```text
//! cargo run --release --example kernel_times -- \
//!     [--level baseline|v3|avx512] [--threads N] [NAME...]
//! ```
//!
//! Prints one JSON object per line: name, variant, value (the best), unit, median, worst, runs, check (a number that depends on every
//! result; for loading a module, the bytes of its text).

use std::error::Error;
use std::hint::black_box;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sahasra_ptx::{
    ArgumentList, Cancel, DevicePointer, InstructionSet, Kernel, Launch, LoadedModule, Memory, Module, instruction_set,
    limit_instruction_set,
};

const MILLION: usize = 1 << 20;
/// Modules of about 100 kB: mathematical functions in f64, tensor cores and asynchronous copies, atomics of libcu++.
const MODULES: [&str; 3] = ["13_fp64_math", "23_coop_async_mma", "24_cuda_atomic_misc"];

type Outcome<T> = Result<T, Box<dyn Error>>;

/// One benchmark: the launch, and the function that computes a number from its result.
struct Benchmark<'a> {
    name: &'static str,
    kernel: Kernel,
    launch: Launch,
    arguments: ArgumentList,
    check: Box<dyn Fn() -> Outcome<f64> + 'a>,
    /// Restores the data before each run; not timed.
    reset: Box<dyn Fn() -> Outcome<()> + 'a>,
}

struct Data {
    x: Vec<f32>,
    y: Vec<f32>,
    bytes: Vec<u8>,
}

/// Returns the same data as the C program.
fn data() -> Data {
    let mut state = 1u32;
    let mut data = Data {
        x: Vec::new(),
        y: Vec::new(),
        bytes: Vec::new(),
    };
    for _ in 0..MILLION {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        data.x.push((state >> 8) as f32 / (1 << 24) as f32);
        data.y.push((state & 0xffff) as f32 / (1 << 16) as f32);
        data.bytes.push((state >> 24) as u8);
    }
    data
}

struct Device {
    memory: Memory,
}

impl Device {
    fn text(&self, file: &str) -> Outcome<String> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/corpus")
            .join(file)
            .with_extension("ptx");
        Ok(std::fs::read_to_string(path)?)
    }

    fn module(&self, file: &str) -> Outcome<LoadedModule> {
        Ok(Module::load(&self.text(file)?)?.instantiate(&self.memory)?)
    }

    fn kernel(&self, file: &str, name: &str) -> Outcome<Kernel> {
        self.module(file)?.entry(name).ok_or_else(|| format!("{file} has no {name}").into())
    }

    fn bytes(&self, bytes: &[u8]) -> Outcome<DevicePointer> {
        let pointer = self.memory.allocate(bytes.len() as u64)?;
        self.memory.write(pointer, bytes)?;
        Ok(pointer)
    }

    fn floats(&self, values: &[f32]) -> Outcome<DevicePointer> {
        self.bytes(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    fn float(&self, pointer: DevicePointer, index: usize) -> Outcome<f64> {
        let mut bytes = [0; 4];
        self.memory.read(pointer.offset(4 * index as u64), &mut bytes)?;
        Ok(f64::from(f32::from_le_bytes(bytes)))
    }

    fn integers(&self, pointer: DevicePointer, count: usize) -> Outcome<Vec<u32>> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(pointer, &mut bytes)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }
}

fn benchmarks<'a>(device: &'a Device, data: &Data) -> Outcome<Vec<Benchmark<'a>>> {
    let nothing = || -> Box<dyn Fn() -> Outcome<()> + 'a> { Box::new(|| Ok(())) };
    let mut found = Vec::new();

    let (x, y) = (device.floats(&data.x)?, device.floats(&data.y)?);
    found.push(Benchmark {
        name: "saxpy_1m",
        kernel: device.kernel("01_saxpy", "saxpy")?,
        launch: Launch::new([4096, 1, 1], [256, 1, 1]),
        arguments: ArgumentList::new().i32(MILLION as i32).f32(0.5).pointer(x).pointer(y),
        check: Box::new(move || device.float(y, 12345)),
        reset: nothing(),
    });

    let (a, b, c) = (
        device.floats(&data.x[..65536])?,
        device.floats(&data.y[..65536])?,
        device.memory.allocate(4 * 65536)?,
    );
    found.push(Benchmark {
        name: "matmul_256",
        kernel: device.kernel("05_matmul_tiled", "matmul")?,
        launch: Launch::new([16, 16, 1], [16, 16, 1]),
        arguments: ArgumentList::new().pointer(a).pointer(b).pointer(c).i32(256),
        check: Box::new(move || device.float(c, 256 * 100 + 17)),
        reset: nothing(),
    });

    let counts = device.memory.allocate(4 * 512 * 512)?;
    let step = 3.0f32 / 512.0;
    found.push(Benchmark {
        name: "mandelbrot_512",
        kernel: device.kernel("09_mandelbrot", "mandel_f32")?,
        launch: Launch::new([32, 32, 1], [16, 16, 1]),
        arguments: ArgumentList::new()
            .pointer(counts)
            .i32(512)
            .i32(512)
            .f32(-2.0)
            .f32(-1.5)
            .f32(step)
            .f32(step)
            .i32(256),
        check: Box::new(move || Ok(device.integers(counts, 512 * 512)?.iter().map(|count| f64::from(*count)).sum())),
        reset: nothing(),
    });

    let sum = device.memory.allocate(4)?;
    let input = device.floats(&data.x)?;
    found.push(Benchmark {
        name: "reduce_1m",
        kernel: device.kernel("02_reduce_shared", "reduce_shared")?,
        launch: Launch::new([1, 1, 1], [256, 1, 1]),
        arguments: ArgumentList::new().pointer(input).pointer(sum).i32(MILLION as i32),
        check: Box::new(move || device.float(sum, 0)),
        reset: nothing(),
    });

    let table = device.memory.allocate(4 * 256)?;
    let bytes = device.bytes(&data.bytes)?;
    found.push(Benchmark {
        name: "histogram_1m",
        kernel: device.kernel("04_histogram", "histogram")?,
        launch: Launch::new([32, 1, 1], [256, 1, 1]),
        arguments: ArgumentList::new().pointer(bytes).pointer(table).i32(MILLION as i32),
        check: Box::new(move || {
            let counts = device.integers(table, 256)?;
            Ok((0u32..).zip(counts).map(|(byte, count)| f64::from(byte) * f64::from(count)).sum())
        }),
        reset: Box::new(move || Ok(device.memory.fill(table, 0, 4 * 256)?)),
    });

    let bodies: Vec<f32> = (0..1024)
        .flat_map(|body| [0, 1024, 2048, 3072].map(|part| data.x[part + body]))
        .collect();
    let (positions, accelerations) = (device.floats(&bodies)?, device.memory.allocate(16 * 1024)?);
    found.push(Benchmark {
        name: "nbody_1024",
        kernel: device.kernel("21_nbody", "nbody")?,
        launch: Launch::new([8, 1, 1], [128, 1, 1]),
        arguments: ArgumentList::new().pointer(positions).pointer(accelerations).i32(1024).f32(0.01),
        check: Box::new(move || device.float(accelerations, 4 * 777)),
        reset: nothing(),
    });

    let (rows, out) = (device.floats(&data.x[..256 * 1024])?, device.memory.allocate(4 * 256 * 1024)?);
    found.push(Benchmark {
        name: "softmax_256x1024",
        kernel: device.kernel("12_softmax_layernorm", "softmax")?,
        launch: Launch::new([256, 1, 1], [32, 1, 1]),
        arguments: ArgumentList::new().pointer(rows).pointer(out).i32(1024),
        check: Box::new(move || device.float(out, 1024 * 3 + 5)),
        reset: nothing(),
    });

    let header = device.bytes(&(0..15u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
    let best = device.memory.allocate(4)?;
    found.push(Benchmark {
        name: "sha256_16k",
        kernel: device.kernel("22_hash_sha256", "sha256_mine")?,
        launch: Launch::new([16, 1, 1], [256, 1, 1]),
        arguments: ArgumentList::new().pointer(header).pointer(best).i32(4),
        check: Box::new(move || Ok(f64::from(device.integers(best, 1)?[0]))),
        reset: Box::new(move || Ok(device.memory.fill(best, 0xff, 4)?)),
    });
    Ok(found)
}

fn measure(benchmark: &Benchmark<'_>, device: &Device, threads: NonZero<usize>, variant: &str) -> Outcome<()> {
    let cancel = Cancel::new();
    let launch = Launch {
        threads,
        ..benchmark.launch.clone()
    };
    let run = || -> Outcome<Duration> {
        (benchmark.reset)()?;
        let start = Instant::now();
        benchmark
            .kernel
            .launch(&launch, benchmark.arguments.bytes(), &device.memory, &cancel)?;
        Ok(start.elapsed())
    };
    run()?;
    let check = (benchmark.check)()?;
    report(benchmark.name, variant, "ms", repeat(run)?, check);
    Ok(())
}

/// Runs a warm-up, then returns the milliseconds of each run.
fn repeat(run: impl Fn() -> Outcome<Duration>) -> Outcome<Vec<f64>> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        run()?;
    }
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 15 || (times.len() < 400 && start.elapsed() < Duration::from_millis(400)) {
        times.push(run()?.as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Measures loading from PTX text to code, on one thread.
fn measure_load(file: &str, device: &Device, variant: &str) -> Outcome<()> {
    let text = device.text(file)?;
    let run = || {
        let start = Instant::now();
        let module = black_box(Module::load(black_box(&text))?);
        let elapsed = start.elapsed();
        drop(module);
        Ok(elapsed)
    };
    report(&format!("load_{file}"), variant, "ms", repeat(run)?, text.len() as f64);
    Ok(())
}

fn report(name: &str, variant: &str, unit: &str, mut times: Vec<f64>, check: f64) {
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"name\": \"{name}\", \"variant\": \"{variant}\", \"value\": {:.6}, \"unit\": \"{unit}\", \"median\": {:.6}, \"worst\": {:.6}, \"runs\": {}, \"check\": {check}}}",
        times[0],
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

/// Measures a warm launch of one block of one thread that does nothing.
fn measure_empty(device: &Device, variant: &str) -> Outcome<()> {
    let module = Module::load(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }")?;
    let kernel = module.entry("empty").ok_or("no kernel")?;
    let (launch, cancel) = (Launch::new([1, 1, 1], [1, 1, 1]), Cancel::new());
    let batch = 1000;
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..batch {
            kernel.launch(&launch, &[], &device.memory, &cancel)?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
    }
    report("empty_launch", variant, "us", times, 0.0);
    Ok(())
}

fn main() -> Outcome<()> {
    let mut names = Vec::new();
    let mut threads = NonZero::<usize>::MIN;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--instruction-set" => {
                let level = match arguments.next().as_deref() {
                    Some("baseline") => InstructionSet::Baseline,
                    Some("v3") => InstructionSet::V3,
                    Some("avx512") => InstructionSet::Avx512,
                    other => return Err(format!("unknown instruction set {other:?}: expected baseline, v3 or avx512").into()),
                };
                if !limit_instruction_set(level) {
                    return Err("the instruction set cannot be limited".into());
                }
            }
            "--threads" => threads = arguments.next().ok_or("--threads needs a number")?.parse()?,
            name => names.push(name.to_owned()),
        }
    }
    let variant = match instruction_set() {
        InstructionSet::Baseline => "baseline",
        InstructionSet::V3 => "v3",
        InstructionSet::Avx512 => "avx512",
    };
    let device = Device {
        memory: Memory::new(1 << 30),
    };
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    for benchmark in benchmarks(&device, &data())? {
        if wanted(benchmark.name) {
            measure(&benchmark, &device, threads, variant)?;
        }
    }
    for file in MODULES {
        if wanted(&format!("load_{file}")) {
            measure_load(file, &device, variant)?;
        }
    }
    if wanted("empty_launch") {
        measure_empty(&device, variant)?;
    }
    Ok(())
}
