//! Kernels of the corpus of the PTX engine, on the CPU and on the GPU, byte for byte.

use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sahasra_cuda_device::contract::MEMORY_BYTES;
use sahasra_cuda_device::{CpuDevice, Device, Extent, FunctionDescription, LaunchRequest, ModuleId, Operation, Properties, Region};

use super::contract::device;

/// Variable with the folder of the corpus, where it is not that of this repository.
const CORPUS: &str = "SAHASRA_TEST_CORPUS";
/// Memory behind each parameter that may be a pointer, in bytes.
const BUFFER: u64 = 1 << 20;
/// Value of parameters that are no pointers.
const NUMBER: u32 = 64;
/// Time for a kernel on the CPU. One that waits for something else is left out.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Parts of texts whose results hardware need not have bit for bit: approximations, matrices of floating-point numbers, times, addresses.
const INEXACT: [&str; 5] = [".approx", "mma", "%clock", "globaltimer", "malloc"];
/// Kernels that must be compared at least.
const FEWEST: usize = 20;

/// PTX texts in a folder, in the order of their names.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            texts(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push(path);
        }
    }
}

fn request(index: u32, function: &FunctionDescription, properties: &Properties) -> LaunchRequest {
    let first = properties.addresses.start;
    let mut parameters = vec![0; function.parameter_bytes as usize];
    for (number, place) in function.parameters.iter().enumerate() {
        let target = &mut parameters[place.offset as usize..(place.offset + place.bytes) as usize];
        match target.len() {
            8 => target.copy_from_slice(&(first + number as u64 * BUFFER).to_le_bytes()),
            4 => target.copy_from_slice(&NUMBER.to_le_bytes()),
            _ => target.fill(1),
        }
    }
    LaunchRequest {
        module: ModuleId(1),
        function: index,
        grid: [2, 1, 1],
        block: function.required_block.unwrap_or([64.min(function.max_threads), 1, 1]),
        dynamic_shared_bytes: 16 << 10,
        // More would count as memory.
        stack_bytes: properties.stack_bytes as u32,
        cooperative: false,
        parameters: parameters.into(),
    }
}

/// What a kernel leaves in its memory, or `None` if it does not run to its end.
fn outcome(device: &dyn Device, text: &str, name: &str) -> Option<Vec<u8>> {
    let queue = device.open().ok()?;
    let first = device.properties().addresses.start;
    let description = queue.load(ModuleId(1), &[text.as_bytes()]).ok()?;
    let index = description.functions.iter().position(|function| function.name == name)?;
    let function = &description.functions[index];
    let bytes = function.parameters.len() as u64 * BUFFER;
    if bytes == 0 || bytes > MEMORY_BYTES - (4 << 20) {
        return None;
    }
    // Small numbers, as indices and as parts of numbers.
    let words: Vec<u8> = (0..bytes / 4).flat_map(|at| (at as u32 * 7 % 61).to_le_bytes()).collect();
    queue.submit(Operation::Map { address: first, bytes });
    queue.write(Region::linear(first), Extent::linear(bytes), &words);
    let ticket = queue.submit(Operation::Launch(Box::new(request(index as u32, function, device.properties()))));
    let end = Instant::now() + TIMEOUT;
    while !queue.is_done(ticket).ok()? {
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let mut memory = vec![0; bytes as usize];
    queue.read(Region::linear(first), Extent::linear(bytes), &mut memory).ok()?;
    Some(memory)
}

#[test]
fn kernels_leave_on_the_gpu_what_they_leave_on_the_cpu() {
    let Some((gpu, _alone)) = device() else { return };
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx/tests/corpus");
    let folder = std::env::var_os(CORPUS).map_or_else(own, PathBuf::from);
    let mut files = Vec::new();
    texts(&folder, &mut files);
    let cpu = |threads| CpuDevice::new(MEMORY_BYTES, NonZero::new(threads).unwrap());
    let (mut compared, mut different) = (0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let Ok(outline) = sahasra_ptx::Outline::of(&text) else { continue };
        if INEXACT.iter().any(|part| text.contains(part)) {
            continue;
        }
        for entry in outline.entries {
            // The same with one thread and with several: the order of blocks does not matter.
            let Some(expected) = outcome(&cpu(1), &text, &entry.name) else {
                continue;
            };
            if outcome(&cpu(4), &text, &entry.name).as_ref() != Some(&expected) {
                continue;
            }
            compared += 1;
            if outcome(&gpu, &text, &entry.name).as_ref() != Some(&expected) {
                different.push(format!("{} of {}", entry.name, file.display()));
            }
        }
    }
    writeln!(std::io::stderr(), "{compared} kernels compared").unwrap();
    assert!(different.is_empty(), "different on the GPU: {different:#?}");
    assert!(compared >= FEWEST, "{compared} kernels compared");
}
