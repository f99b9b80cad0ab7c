//! Runs programs on the engine and on the reference machine, from the same memory. Both must leave the same bits.

use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, Launch, Memory, Module};

use crate::forms;
use crate::generator::{Generated, PLACE, Vocabulary};
use crate::machine::{self, GlobalMemory, MachineError, Shape};
use crate::model::Model;
use crate::{single, table};

/// Step limit, beyond which a program counts as endless.
const STEPS: u64 = 20_000_000;

/// Failure of a program's run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The engine rejects the program, or the program fails on the engine.
    #[error("the engine: {0}")]
    Engine(String),
    /// The reference machine rejects the program, or the program fails there.
    #[error("the reference machine: {0}")]
    Machine(#[from] MachineError),
    /// The engine and the reference machine leave different bytes.
    #[error("byte {offset} of {region} is {found:#04x} instead of {expected:#04x}")]
    Bytes {
        /// Name of the memory region.
        region: &'static str,
        /// Offset in the region in bytes.
        offset: usize,
        /// Byte that the engine left.
        found: u8,
        /// Byte that the reference machine left.
        expected: u8,
    },
}

/// Returns the forms with exact results that the engine accepts.
pub fn vocabulary() -> Vocabulary {
    let mut forms = Vec::new();
    for form in forms::all() {
        let Some(model) = Model::of(&form) else { continue };
        if !model.is_exact() || single::is_carrying(&form) {
            continue;
        }
        let immediates: Vec<u64> = model.immediates.iter().map(|_| 1).collect();
        if Module::load(&single::kernel(&form, &model, &immediates)).is_ok() {
            forms.push((form, model));
        }
    }
    Vocabulary { forms: weighted(forms) }
}

/// Repeats forms of opcodes other than comparisons and conversions, which have most of the forms, so that each opcode is frequent.
fn weighted(forms: Vec<(String, Model)>) -> Vec<(String, Model)> {
    let mut found = Vec::new();
    for (form, model) in forms {
        let copies = match form.split('.').next() {
            Some("setp" | "set" | "cvt") => 0,
            Some("add" | "sub" | "mul" | "fma" | "mad" | "min" | "max") => 4,
            _ => 9,
        };
        found.extend((0..copies).filter_map(|_| Model::of(&form).map(|model| (form.clone(), model))));
        found.push((form, model));
    }
    found
}

/// Memory of a run: areas of the threads, accumulators, inputs.
struct Regions {
    memory: Memory,
    pointers: [DevicePointer; 3],
    sizes: [u64; 3],
}

const NAMES: [&str; 3] = ["the threads' places", "the accumulators", "the inputs"];

fn regions(program: &Generated, inputs: &[u8]) -> Result<Regions, Difference> {
    let memory = Memory::new(1 << 24);
    let refused = |error: sahasra_ptx::MemoryError| Difference::Engine(error.to_string());
    let sizes = [u64::from(program.threads() * PLACE), program.sum_bytes(), inputs.len() as u64];
    let mut pointers = [DevicePointer(0); 3];
    for (pointer, size) in pointers.iter_mut().zip(sizes) {
        *pointer = memory.allocate(size).map_err(refused)?;
    }
    memory.write(pointers[2], inputs).map_err(refused)?;
    Ok(Regions { memory, pointers, sizes })
}

fn engine(program: &Generated, text: &str, regions: &Regions) -> Result<Vec<Vec<u8>>, Difference> {
    let module = Module::load(text).map_err(|error| Difference::Engine(error.to_string()))?;
    let instance = module
        .instantiate(&regions.memory)
        .map_err(|error| Difference::Engine(error.to_string()))?;
    let kernel = instance.entry("k").ok_or_else(|| Difference::Engine("no kernel".into()))?;
    let [places, sums, input] = regions.pointers;
    let arguments = ArgumentList::new().pointer(places).pointer(sums).pointer(input);
    let launch = Launch {
        step_limit: Some(STEPS),
        ..Launch::new([program.grid, 1, 1], [program.block[0], program.block[1], 1])
    };
    kernel
        .launch(&launch, arguments.bytes(), &regions.memory, &Cancel::new())
        .map_err(|fault| Difference::Engine(fault.to_string()))?;
    regions
        .pointers
        .iter()
        .zip(regions.sizes)
        .map(|(pointer, size)| {
            let mut bytes = vec![0; size as usize];
            regions
                .memory
                .read(*pointer, &mut bytes)
                .map(|()| bytes)
                .map_err(|error| Difference::Engine(error.to_string()))
        })
        .collect()
}

/// Hashes all bytes, word by word.
fn hash(regions: &[Vec<u8>]) -> u64 {
    let words = regions.iter().flat_map(|bytes| bytes.chunks(8));
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        // The high bits of a product do not affect the low bits of later products, so they are mixed into the low bits.
        let mixed: u64 = (hash ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

/// Returns a hash of the memory that the engine leaves, for comparison with processes on other instruction sets.
pub fn digest(program: &Generated, seed: u64) -> Result<u64, Difference> {
    let regions = regions(program, &table::of(seed))?;
    let left = engine(program, &program.text(), &regions)?;
    Ok(hash(&left))
}

/// Runs a program on the engine and the reference machine. Returns the engine's digest if they agree.
pub fn check(program: &Generated, seed: u64) -> Result<u64, Difference> {
    let text = program.text();
    let inputs = table::of(seed);
    let regions = regions(program, &inputs)?;
    let mut machine_memory = GlobalMemory::default();
    for (index, (pointer, size)) in regions.pointers.iter().zip(regions.sizes).enumerate() {
        machine_memory.add(pointer.0, if index == 2 { inputs.clone() } else { vec![0; size as usize] });
    }
    let found = engine(program, &text, &regions)?;
    let reference = machine::parse(&text)?;
    let shape = Shape {
        grid: [program.grid, 1, 1],
        block: [program.block[0], program.block[1], 1],
        dynamic_shared: 0,
        step_limit: STEPS,
    };
    let arguments: Vec<u8> = regions.pointers.iter().flat_map(|pointer| pointer.0.to_le_bytes()).collect();
    machine::run(&reference, "k", shape, &arguments, &mut machine_memory)?;
    for ((pointer, found), region) in regions.pointers.iter().zip(&found).zip(NAMES) {
        let expected = machine_memory.region(pointer.0).unwrap_or_default();
        if let Some(offset) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            return Err(Difference::Bytes {
                region,
                offset,
                found: found[offset],
                expected: expected[offset],
            });
        }
    }
    Ok(hash(&found))
}

/// Returns the smallest program found that still differs in the same way.
pub fn shrink(program: &Generated, seed: u64, difference: &Difference) -> (Generated, Difference) {
    let mut best = (program.clone(), difference.clone());
    let same = |found: &Difference| std::mem::discriminant(found) == std::mem::discriminant(difference);
    loop {
        let smaller = best.0.smaller().into_iter().find_map(|candidate| match check(&candidate, seed) {
            Err(found) if same(&found) => Some((candidate, found)),
            _ => None,
        });
        match smaller {
            Some(found) => best = found,
            None => return best,
        }
    }
}
