//! Device memory, PTX texts and typed copies for the tests.

use std::path::PathBuf;

use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, Launch, LaunchStatistics, Memory, Module};

/// Environment variable with a folder of texts that replace those in `tests`, such as the kernels from another compiler.
const INSTEAD: &str = "SAHASRA_PTX_TEST_TEXTS";

/// Returns the PTX in a file below `tests`, which is named without its extension.
pub(crate) fn text(file: &str) -> String {
    let below = |folder: PathBuf| folder.join(file).with_extension("ptx");
    let path = std::env::var_os(INSTEAD)
        .map(|folder| below(folder.into()))
        .filter(|path| path.exists())
        .unwrap_or_else(|| below(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) trait Plain: Copy + Default {
    const BYTES: usize;
    fn to_bytes(self, into: &mut Vec<u8>);
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Plain for $type {
            const BYTES: usize = size_of::<$type>();
            fn to_bytes(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("as many bytes as the type has"))
            }
        }
    )*};
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

pub(crate) struct Device {
    pub(crate) memory: Memory,
    pub(crate) module: sahasra_ptx::LoadedModule,
}

impl Device {
    pub(crate) fn new(ptx: &str) -> Self {
        let memory = Memory::new(1 << 30);
        let module = Module::load(ptx)
            .unwrap_or_else(|error| panic!("{error}"))
            .instantiate(&memory)
            .expect("fits");
        Self { memory, module }
    }

    pub(crate) fn upload<T: Plain>(&self, values: &[T]) -> DevicePointer {
        let mut bytes = Vec::new();
        for value in values {
            value.to_bytes(&mut bytes);
        }
        let pointer = self.memory.allocate(bytes.len() as u64).expect("fits");
        self.memory.write(pointer, &bytes).expect("inside");
        pointer
    }

    pub(crate) fn zeros<T: Plain>(&self, count: usize) -> DevicePointer {
        self.memory.allocate((count * T::BYTES) as u64).expect("fits")
    }

    pub(crate) fn download<T: Plain>(&self, pointer: DevicePointer, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * T::BYTES];
        self.memory.read(pointer, &mut bytes).expect("inside");
        bytes.chunks_exact(T::BYTES).map(T::from_bytes).collect()
    }

    pub(crate) fn launch(&self, kernel: &str, launch: &Launch, arguments: &ArgumentList) -> LaunchStatistics {
        let kernel = self.module.entry(kernel).unwrap_or_else(|| panic!("no kernel {kernel}"));
        kernel
            .launch(launch, arguments.bytes(), &self.memory, &Cancel::new())
            .unwrap_or_else(|fault| panic!("{fault}"))
    }

    pub(crate) fn run(&self, kernel: &str, grid: [u32; 3], block: [u32; 3], arguments: ArgumentList) -> LaunchStatistics {
        self.launch(kernel, &Launch::new(grid, block), &arguments)
    }

    pub(crate) fn run_shared(
        &self,
        kernel: &str,
        grid: u32,
        block: u32,
        dynamic_shared_bytes: u32,
        arguments: ArgumentList,
    ) -> LaunchStatistics {
        self.launch(
            kernel,
            &Launch {
                dynamic_shared_bytes,
                ..Launch::new([grid, 1, 1], [block, 1, 1])
            },
            &arguments,
        )
    }
}

/// Reproducible pseudorandom numbers.
pub(crate) struct Noise(fastrand::Rng);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number in [low, high).
    pub(crate) fn real(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.next() >> 40) as f32 / 16_777_216.0)
    }

    pub(crate) fn reals(&mut self, count: usize, low: f32, high: f32) -> Vec<f32> {
        (0..count).map(|_| self.real(low, high)).collect()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }
}

pub(crate) fn assert_close(found: &[f32], expected: &[f64], relative: f64, absolute: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= absolute + relative * expected.abs(),
            "element {index}: {found} instead of {expected}"
        );
    }
}
