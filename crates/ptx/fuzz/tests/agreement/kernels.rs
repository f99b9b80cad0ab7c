//! Compiled kernels on the engine and on the reference machine, from the same memory: both must leave the same bits.

use std::path::Path;

use sahasra_ptx::{Cancel, DevicePointer, Launch, Memory, Module};
use sahasra_ptx_fuzz::machine::{self, GlobalMemory, Shape};

/// Argument: a buffer of random bytes (its length, and the number of low bits of each word that are used) or a number.
enum Argument {
    Buffer(usize, u32),
    Word(u32),
    Long(u64),
}

use Argument::{Buffer, Long, Word};

/// Runs a kernel. Returns, for each buffer, the bytes that the engine left, and those that the reference machine left.
fn launch(file: &str, kernel: &str, grid: u32, block: u32, arguments: &[Argument]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/kernels")
        .join(file)
        .with_extension("ptx");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let memory = Memory::new(1 << 24);
    let instance = Module::load(&text)
        .unwrap_or_else(|error| panic!("{error}"))
        .instantiate(&memory)
        .expect("fits");
    let mut random = fastrand::Rng::with_seed(77);
    let (mut packed, mut buffers, mut reference) = (Vec::new(), Vec::new(), GlobalMemory::default());
    for argument in arguments {
        match argument {
            Buffer(words, bits) => {
                let mut bytes = Vec::new();
                for _ in 0..*words {
                    let extreme = random.u8(..4) == 0;
                    let word = if extreme { u32::MAX } else { random.u32(..) } >> (32 - bits);
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
                let pointer = memory.allocate(bytes.len() as u64).expect("fits");
                memory.write(pointer, &bytes).expect("inside");
                packed.resize(packed.len().next_multiple_of(8), 0);
                packed.extend_from_slice(&pointer.0.to_le_bytes());
                reference.add(pointer.0, bytes);
                buffers.push((pointer, *words * 4));
            }
            Word(value) => packed.extend_from_slice(&value.to_le_bytes()),
            Long(value) => {
                packed.resize(packed.len().next_multiple_of(8), 0);
                packed.extend_from_slice(&value.to_le_bytes());
            }
        }
    }
    instance
        .entry(kernel)
        .unwrap_or_else(|| panic!("no kernel {kernel}"))
        .launch(&Launch::new([grid, 1, 1], [block, 1, 1]), &packed, &memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let program = machine::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let shape = Shape {
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared: 0,
        step_limit: 50_000_000,
    };
    machine::run(&program, kernel, shape, &packed, &mut reference).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    let left = |(pointer, length): (DevicePointer, usize)| {
        let mut found = vec![0; length];
        memory.read(pointer, &mut found).expect("inside");
        (found, reference.region(pointer.0).expect("the buffer").to_vec())
    };
    buffers.into_iter().map(left).collect()
}

fn agree(file: &str, kernel: &str, grid: u32, block: u32, arguments: &[Argument]) {
    for (index, (found, expected)) in launch(file, kernel, grid, block, arguments).into_iter().enumerate() {
        let place = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(place, None, "{file}, {kernel}: buffer {index} differs at this byte");
    }
}

#[test]
fn ciphers_and_hashes_agree() {
    agree("crypto", "crc32", 2, 20, &[Buffer(200, 32), Word(19), Buffer(40, 32), Word(37)]);
    agree("crypto", "keccak_f1600", 1, 4, &[Buffer(200, 32), Word(4)]);
    agree("crypto", "chacha20", 1, 40, &[Buffer(8, 32), Word(5), Buffer(640, 32), Word(37)]);
    agree(
        "crypto",
        "xxhash64_short",
        1,
        40,
        &[Buffer(160, 32), Long(9), Buffer(80, 32), Word(40)],
    );
    agree(
        "crypto",
        "aes128",
        1,
        20,
        &[Buffer(4, 32), Buffer(80, 32), Buffer(80, 32), Word(20)],
    );
}

#[test]
fn whole_numbers_agree() {
    agree(
        "integers",
        "multiply_256",
        1,
        40,
        &[Buffer(320, 32), Buffer(320, 32), Buffer(640, 32), Word(40)],
    );
    agree(
        "integers",
        "add_128",
        1,
        40,
        &[Buffer(160, 32), Buffer(160, 32), Buffer(160, 32), Buffer(160, 32), Word(40)],
    );
    agree(
        "integers",
        "lcg_jump",
        1,
        40,
        &[Long(77), Long(1_234_567), Buffer(80, 32), Word(40)],
    );
    agree(
        "integers",
        "dot_int8",
        1,
        33,
        &[Buffer(99, 32), Buffer(99, 32), Buffer(66, 32), Word(33), Word(3)],
    );
    agree("integers", "bit_tricks", 1, 70, &[Buffer(70, 32), Buffer(70, 32), Word(70)]);
    agree("integers", "philox4x32", 2, 33, &[Word(7), Buffer(264, 32), Word(66)]);
    agree("integers", "queens", 1, 32, &[Word(6), Buffer(1, 1)]);
}

#[test]
fn modular_powers_agree() {
    agree(
        "integers",
        "power_modulo",
        1,
        33,
        &[
            Buffer(66, 32),
            Buffer(66, 32),
            Long(0xffff_ffff_ffff_ffc5),
            Buffer(66, 32),
            Word(33),
        ],
    );
}

#[test]
fn sorts_and_selections_agree() {
    agree("sorting", "radix_sort", 2, 256, &[Buffer(512, 32)]);
    agree(
        "sorting",
        "merge_runs",
        1,
        100,
        &[Buffer(100, 8), Buffer(100, 32), Word(1), Word(100)],
    );
    agree("sorting", "reduce_redux", 1, 64, &[Buffer(64, 32), Buffer(12, 32), Word(60)]);
    agree("sorting", "histogram_match", 1, 96, &[Buffer(24, 32), Buffer(256, 4), Word(90)]);
    agree(
        "sorting",
        "run_lengths",
        1,
        32,
        &[Buffer(50, 9), Buffer(200, 32), Buffer(1, 32), Word(200)],
    );
}

#[test]
fn texts_and_grids_agree() {
    agree(
        "strings",
        "levenshtein",
        1,
        20,
        &[Buffer(100, 2), Buffer(100, 2), Word(20), Buffer(20, 32), Word(20)],
    );
    agree("strings", "base64", 1, 32, &[Buffer(24, 32), Buffer(32, 32), Word(32)]);
    agree("strings", "count_words", 2, 33, &[Buffer(15, 32), Word(60), Buffer(6, 32)]);
    agree("graphs", "life_words", 1, 40, &[Buffer(80, 32), Buffer(80, 32), Word(40)]);
}

fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn f64_of(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns the results of a thread of `floats` of which only one value is correct. Every NaN becomes the same one, because the ISA does not
/// specify which NaN an operation gives.
fn exact(left: &[u8]) -> Vec<u64> {
    let single = |bytes: &[u8]| {
        let value = f32_of(bytes);
        u64::from(if value.is_nan() { f32::NAN } else { value }.to_bits())
    };
    let double = |bytes: &[u8]| {
        let value = f64_of(bytes);
        if value.is_nan() { f64::NAN } else { value }.to_bits()
    };
    let integers = left[60..72]
        .iter()
        .chain(&left[312..336])
        .chain(&left[352..368])
        .map(|byte| u64::from(*byte));
    let singles = left[..60].chunks_exact(4).chain(left[368..380].chunks_exact(4)).map(single);
    integers.chain(singles).chain(left[96..312].chunks_exact(8).map(double)).collect()
}

/// Returns the other results of a thread of `floats`.
fn approximate(left: &[u8]) -> Vec<f64> {
    let singles = left[72..96].chunks_exact(4).chain([&left[380..]]);
    let singles = singles.map(|bytes| f64::from(f32_of(bytes)));
    singles.chain(left[336..352].chunks_exact(8).map(f64_of)).collect()
}

#[test]
fn floating_point_in_untyped_registers_agrees() {
    // Any bits, then numbers of ordinary magnitude.
    for (mask, bits) in [(u32::MAX, 0), (0x81ff_ffff, 0x3f00_0000)] {
        let arguments = [Buffer(2400, 32), Buffer(19_200, 32), Word(mask), Word(bits)];
        let (found, expected) = launch("forms", "floats", 1, 200, &arguments).remove(1);
        for (thread, (found, expected)) in found.chunks_exact(384).zip(expected.chunks_exact(384)).enumerate() {
            assert_eq!(exact(found), exact(expected), "thread {thread} with {mask:x}");
            for (found, expected) in approximate(found).into_iter().zip(approximate(expected)) {
                let error = (found - expected).abs();
                // For rcp and rsqrt in .f64, only the upper 20 bits of the fraction count (PTX ISA §9.7.3).
                assert!(
                    error <= 2e-6 * expected.abs().max(1.0),
                    "thread {thread}: {found} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn forms_that_no_other_kernel_has_agree() {
    agree("forms", "whole", 1, 96, &[Buffer(384, 32), Buffer(3072, 32)]);
    agree(
        "forms",
        "memory",
        1,
        64,
        &[Buffer(1024, 32), Buffer(5120, 32), Word(0x1234), Word(0xc0ff_ee11)],
    );
    agree("forms", "atomics", 1, 64, &[Buffer(1024, 32), Buffer(1280, 32), Buffer(8, 32)]);
}
