//! Compiled kernels on the engine and on the reference machine, from the same memory: the same bits after.

use std::path::Path;

use sahasra_ptx::{Cancel, DevicePointer, Launch, Memory, Module};
use sahasra_ptx_fuzz::machine::{self, GlobalMemory, Shape};

/// An argument: a buffer of random bytes (its length, and how many low bits of each word count) or a number.
enum Argument {
    Buffer(usize, u32),
    Word(u32),
    Long(u64),
}

use Argument::{Buffer, Long, Word};

fn agree(file: &str, kernel: &str, grid: u32, block: u32, arguments: &[Argument]) {
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
    for (index, (pointer, length)) in buffers.into_iter().enumerate() {
        let mut found = vec![0; length];
        memory.read(DevicePointer(pointer.0), &mut found).expect("inside");
        let expected = reference.region(pointer.0).expect("the buffer");
        let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(place, None, "{file}, {kernel}: buffer {index} differs at this byte");
    }
}

fn both(file: &str, kernel: &str, grid: u32, block: u32, arguments: &[Argument]) {
    for compiler in ["nvrtc129_c80", "nvrtc135_c100"] {
        agree(&format!("{compiler}/{file}"), kernel, grid, block, arguments);
    }
}

#[test]
fn ciphers_and_hashes_agree() {
    both("crypto", "crc32", 2, 20, &[Buffer(200, 32), Word(19), Buffer(40, 32), Word(37)]);
    both("crypto", "keccak_f1600", 1, 4, &[Buffer(200, 32), Word(4)]);
    both("crypto", "chacha20", 1, 40, &[Buffer(8, 32), Word(5), Buffer(640, 32), Word(37)]);
    both(
        "crypto",
        "xxhash64_short",
        1,
        40,
        &[Buffer(160, 32), Long(9), Buffer(80, 32), Word(40)],
    );
    both(
        "crypto",
        "aes128",
        1,
        20,
        &[Buffer(4, 32), Buffer(80, 32), Buffer(80, 32), Word(20)],
    );
}

#[test]
fn whole_numbers_agree() {
    both(
        "integers",
        "multiply_256",
        1,
        40,
        &[Buffer(320, 32), Buffer(320, 32), Buffer(640, 32), Word(40)],
    );
    both(
        "integers",
        "add_128",
        1,
        40,
        &[Buffer(160, 32), Buffer(160, 32), Buffer(160, 32), Buffer(160, 32), Word(40)],
    );
    both(
        "integers",
        "lcg_jump",
        1,
        40,
        &[Long(77), Long(1_234_567), Buffer(80, 32), Word(40)],
    );
    both(
        "integers",
        "dot_int8",
        1,
        33,
        &[Buffer(99, 32), Buffer(99, 32), Buffer(66, 32), Word(33), Word(3)],
    );
    both("integers", "bit_tricks", 1, 70, &[Buffer(70, 32), Buffer(70, 32), Word(70)]);
    both("integers", "philox4x32", 2, 33, &[Word(7), Buffer(264, 32), Word(66)]);
    both("integers", "queens", 1, 32, &[Word(6), Buffer(1, 1)]);
}

#[test]
fn modular_powers_agree() {
    both(
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
    both("sorting", "radix_sort", 2, 256, &[Buffer(512, 32)]);
    both(
        "sorting",
        "merge_runs",
        1,
        100,
        &[Buffer(100, 8), Buffer(100, 32), Word(1), Word(100)],
    );
    both("sorting", "reduce_redux", 1, 64, &[Buffer(64, 32), Buffer(12, 32), Word(60)]);
    both("sorting", "histogram_match", 1, 96, &[Buffer(24, 32), Buffer(256, 4), Word(90)]);
    both(
        "sorting",
        "run_lengths",
        1,
        32,
        &[Buffer(50, 9), Buffer(200, 32), Buffer(1, 32), Word(200)],
    );
}

#[test]
fn texts_and_grids_agree() {
    both(
        "strings",
        "levenshtein",
        1,
        20,
        &[Buffer(100, 2), Buffer(100, 2), Word(20), Buffer(20, 32), Word(20)],
    );
    both("strings", "base64", 1, 32, &[Buffer(24, 32), Buffer(32, 32), Word(32)]);
    both("strings", "count_words", 2, 33, &[Buffer(15, 32), Word(60), Buffer(6, 32)]);
    both("graphs", "life_words", 1, 40, &[Buffer(80, 32), Buffer(80, 32), Word(40)]);
}
