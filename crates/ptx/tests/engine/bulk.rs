//! Bulk copies and reductions between global and shared memory, and their completion.

use sahasra_ptx::{ArgumentList, Cancel, Fault, FaultKind, Launch, Memory, Module};

const THREADS: usize = 96;
/// Bytes of the input, of the shared arrays, and of the output.
const BYTES: usize = 1024;

/// Runs one block. `%rd1` and `%rd2` point to input and output, `%p1` holds for the first thread, and `wait` waits for the first phase of
/// the barrier `full`.
fn run(body: &str, input: &[u8], output: &[u8]) -> Result<Vec<u8>, Fault> {
    let wait = "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [full], 0; @!%p2 bra WAIT;\n";
    let text = format!(
        ".version 8.6\n.target sm_100\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>;\n\
         .shared .align 16 .b8 tile[{BYTES}]; .shared .align 16 .b8 second[{BYTES}]; .shared .align 8 .b64 full;\n\
         ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;\n\
         @%p1 mbarrier.init.shared::cta.b64 [full], 1; fence.mbarrier_init.release.cluster; bar.sync 0;\n\
         {}\nret;\n}}\n",
        body.replace("wait;", wait)
    );
    let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let memory = Memory::new(1 << 20);
    let [source, target] = [input, output].map(|bytes| {
        let pointer = memory.allocate(bytes.len() as u64).expect("fits");
        memory.write(pointer, bytes).expect("inside");
        pointer
    });
    let mut launch = Launch::new([1, 1, 1], [THREADS as u32, 1, 1]);
    launch.step_limit = Some(1 << 20);
    let arguments = ArgumentList::new().pointer(source).pointer(target);
    let kernel = module.entry("k").expect("the kernel");
    kernel.launch(&launch, arguments.bytes(), &memory, &Cancel::new())?;
    let mut found = vec![0; output.len()];
    memory.read(target, &mut found).expect("inside");
    Ok(found)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|index| (index * 7 + index / 256 + seed) as u8).collect()
}

/// Statements that fill shared memory from the input, 16 bytes at a time and thread by thread.
const FILL: &str = "setp.ge.u32 %p3, %r1, 64; @%p3 bra FILLED; mul.wide.u32 %rd3, %r1, 16; add.u64 %rd4, %rd1, %rd3; ld.global.v2.u64 {%rd5, %rd6}, [%rd4];\n\
     mov.u64 %rd4, tile; add.u64 %rd4, %rd4, %rd3; st.shared.v2.u64 [%rd4], {%rd5, %rd6};\nFILLED: fence.proxy.async.shared::cta; bar.sync 0;\n";

/// Statements that copy shared memory to the output, one byte at a time.
fn store(array: &str) -> String {
    format!(
        "mov.u32 %r10, %r1;\nSTORE: cvt.u64.u32 %rd10, %r10; mov.u64 %rd11, {array}; add.u64 %rd11, %rd11, %rd10; ld.shared.u8 %h1, [%rd11];\n\
         add.u64 %rd11, %rd2, %rd10; st.global.u8 [%rd11], %h1; add.u32 %r10, %r10, {THREADS}; setp.lt.u32 %p5, %r10, {BYTES}; @%p5 bra STORE;"
    )
}

#[test]
fn copies_to_shared_memory_complete_at_a_barrier() {
    let input = pattern(1);
    for (copy, operands) in [
        ("shared::cta.global.mbarrier::complete_tx::bytes", ""),
        ("shared::cluster.global.mbarrier::complete_tx::bytes", ""),
        ("shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", ", %rd9"),
        (
            "shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint",
            ", %h3, %rd9",
        ),
    ] {
        // The second copy has its size and its addresses in registers, the latter of 32 bits.
        let body = format!(
            "mov.u64 %rd9, 0; mov.u16 %h3, 1; mov.u32 %r3, {}; mov.u32 %r4, tile; mov.u32 %r5, full;
            @!%p1 bra DONE;
            mbarrier.arrive.expect_tx.shared::cta.b64 %rd8, [full], {BYTES};
            cp.async.bulk.{copy} [tile], [%rd1], 256, [full]{operands};
            cp.async.bulk.{copy} [%r4+256], [%rd1+256], %r3, [%r5]{operands};
            DONE: wait; {}",
            BYTES - 256,
            store("tile")
        );
        assert_eq!(run(&body, &input, &[0; BYTES]).expect("runs"), input, "{copy}");
    }
}

#[test]
fn a_barrier_waits_for_all_bytes() {
    let body = format!(
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd8, [full], {BYTES};
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd1], 512, [full]; wait;"
    );
    let fault = run(&body, &pattern(2), &[0; 16]).expect_err("half of the bytes are missing");
    assert!(matches!(fault.kind, FaultKind::StepLimit(_)), "{fault}");
}

#[test]
fn copies_from_shared_memory_are_complete_after_their_group() {
    let input = pattern(3);
    let body = format!(
        "{FILL} @!%p1 bra DONE; cp.async.bulk.prefetch.L2.global [%rd1], 512;
        cp.async.bulk.global.shared::cta.bulk_group [%rd2+512], [tile], 512;
        mov.u64 %rd9, 0; cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd2], [tile+512], 512, %rd9;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0; DONE:"
    );
    let found = run(&body, &input, &[0; BYTES]).expect("runs");
    assert_eq!((&found[..512], &found[512..]), (&input[512..], &input[..512]));
    let masked = format!("{FILL} mov.u16 %h2, 0x8421; @%p1 cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd2], [tile], 64, %h2;");
    let found = run(&masked, &input, &[0xee; BYTES]).expect("runs");
    for (index, byte) in found.into_iter().enumerate() {
        let copied = index < 64 && matches!(index % 16, 0 | 5 | 10 | 15);
        assert_eq!(byte, if copied { input[index] } else { 0xee }, "{index}");
    }
}

#[test]
fn copies_within_shared_memory_complete_at_a_barrier() {
    let input = pattern(4);
    let body = format!(
        "{FILL} @!%p1 bra DONE; mbarrier.arrive.expect_tx.shared::cta.b64 %rd8, [full], {BYTES};
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [second], [tile], {BYTES}, [full];
        DONE: wait; {}",
        store("second")
    );
    assert_eq!(run(&body, &input, &[0; BYTES]).expect("runs"), input);
}

#[test]
fn copies_check_their_addresses_and_size() {
    let copy = |to: &str, from: &str, bytes: &str| {
        format!("mov.u32 %r3, {bytes}; @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [{to}], [{from}], %r3, [full];")
    };
    let fault = |body: &str| run(body, &pattern(0), &[0; 16]).expect_err(body);
    for (body, address) in [
        (copy("tile+8", "%rd1", "16"), true),
        (copy("tile", "%rd1+4", "16"), true),
        (copy("tile", "%rd1", "24"), false),
    ] {
        let fault = fault(&body);
        assert_eq!(
            (&fault.kind, fault.address.is_some()),
            (&FaultKind::Misaligned { alignment: 16 }, address),
            "{fault}"
        );
        assert!(fault.instruction.contains("cp.async.bulk"), "{fault}");
    }
    for body in [
        copy("tile", "%rd1+16", "1024"),
        copy("tile", "%rd1", "4096"),
        copy("full+2048", "%rd1", "16"),
    ] {
        assert!(matches!(fault(&body).kind, FaultKind::OutOfBounds { .. }), "{body}");
    }
    let text = ".version 8.6 .target sm_100 .address_size 64 .entry k(.param .u64 p) { .reg .b64 %rd<2>; .shared .align 16 .b8 s[64];
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [s], 24; ret; }";
    assert!(
        Module::load(text)
            .expect_err("no multiple of 16")
            .to_string()
            .contains("multiple of 16")
    );
}

#[test]
fn bulk_stores_clear_shared_memory() {
    let input = pattern(5);
    let body = |stores: &str| {
        format!(
            "{FILL} mov.u32 %r3, 24; mov.u64 %rd7, tile; cvta.shared.u64 %rd8, %rd7; {stores} bar.sync 0; {}",
            store("tile")
        )
    };
    let found = run(
        &body("@%p1 st.bulk.weak.shared::cta [%rd7+8], 16, 0; @%p1 st.bulk [%rd8+512], %r3, 0; @%p1 st.bulk.weak [tile+1016], 8, 0;"),
        &input,
        &[0; BYTES],
    )
    .expect("runs");
    for (index, byte) in found.into_iter().enumerate() {
        let cleared = matches!(index, 8..24 | 512..536 | 1016..1024);
        assert_eq!(byte, if cleared { 0 } else { input[index] }, "{index}");
    }
    let fault = |store: &str| run(&body(store), &input, &[0; BYTES]).expect_err(store).kind.clone();
    assert_eq!(fault("@%p1 st.bulk [%rd8+4], 8, 0;"), FaultKind::Misaligned { alignment: 8 });
    assert_eq!(fault("@%p1 st.bulk [%rd8], 12, 0;"), FaultKind::Misaligned { alignment: 8 });
    assert!(matches!(fault("@%p1 st.bulk [%rd1], 8, 0;"), FaultKind::OutOfBounds { .. }));
    assert!(matches!(
        fault("@%p1 st.bulk [%rd8], 0x100000000, 0;"),
        FaultKind::OutOfBounds { .. }
    ));
}

/// One element of a reduction: its type, and the result of the operation by the ISA.
fn reduced(operation: &str, scalar: &str, old: u64, operand: u64) -> u64 {
    let bits = scalar
        .trim_start_matches(|letter: char| letter.is_ascii_alphabetic())
        .parse::<u32>()
        .expect("bits");
    let mask = u64::MAX >> (64 - bits);
    let signed = |value: u64| i128::from((value << (64 - bits)) as i64 >> (64 - bits));
    let ordered = |value: u64| {
        if scalar.starts_with('s') {
            signed(value)
        } else {
            i128::from(value)
        }
    };
    mask & match (operation, scalar) {
        ("add", "f32") => u64::from((f32::from_bits(old as u32) + f32::from_bits(operand as u32)).to_bits()),
        ("add", "f64") => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        ("add", "f16") => half(value(old, 10, 15) + value(operand, 10, 15), 10, 15),
        ("add", "bf16") => half(value(old, 7, 127) + value(operand, 7, 127), 7, 127),
        ("min" | "max", "f16" | "bf16") => {
            let (fraction, bias) = if scalar == "f16" { (10, 15) } else { (7, 127) };
            if (value(old, fraction, bias) < value(operand, fraction, bias)) == (operation == "min") {
                old
            } else {
                operand
            }
        }
        ("add", _) => old.wrapping_add(operand),
        ("min", _) => ordered(old).min(ordered(operand)) as u64,
        ("max", _) => ordered(old).max(ordered(operand)) as u64,
        ("inc", _) => {
            if old >= operand {
                0
            } else {
                old + 1
            }
        }
        ("dec", _) => {
            if old == 0 || old > operand {
                operand
            } else {
                old - 1
            }
        }
        ("and", _) => old & operand,
        ("or", _) => old | operand,
        ("xor", _) => old ^ operand,
        other => panic!("{other:?}"),
    }
}

/// Value of a normal number or zero of 16 bits.
fn value(bits: u64, fraction: u32, bias: i32) -> f64 {
    let (magnitude, sign) = (bits & 0x7fff, if bits >> 15 != 0 { -1.0 } else { 1.0 });
    if magnitude == 0 {
        return 0.0;
    }
    let whole = f64::from((magnitude & ((1 << fraction) - 1)) as u32) / f64::from(1 << fraction) + 1.0;
    sign * whole * 2f64.powi((magnitude >> fraction) as i32 - bias)
}

/// Bits of a number that 16 bits represent exactly.
fn half(number: f64, fraction: u32, bias: i32) -> u64 {
    if number == 0.0 {
        return 0;
    }
    let exponent = number.abs().log2().floor() as i32;
    let scaled = (number.abs() / 2f64.powi(exponent) - 1.0) * f64::from(1 << fraction);
    assert_eq!(scaled.fract(), 0.0, "{number} is not exact");
    u64::from(number < 0.0) << 15 | ((exponent + bias) as u64) << fraction | scaled as u64
}

/// Returns element `index` of an operand: edges of integers, or small whole numbers.
fn element(scalar: &str, index: usize) -> u64 {
    const EDGES: [u64; 9] = [0, 1, 2, 0x7fff_ffff, 0x8000_0000, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0, 77];
    let small = (index * 5 % 23) as i32 - 11;
    match scalar {
        "f16" => half(f64::from(small), 10, 15),
        "bf16" => half(f64::from(small), 7, 127),
        "f32" => u64::from((small as f32 / 3.0).to_bits()),
        "f64" => (f64::from(small) / 3.0).to_bits(),
        _ => EDGES[index % 9].rotate_left(if index.is_multiple_of(2) { 0 } else { 32 }),
    }
}

#[test]
fn reductions_apply_their_operation_to_each_element() {
    let mut forms: Vec<(&str, &str, bool)> = Vec::new();
    for scalar in ["u32", "s32", "u64", "f32", "f64", "f16", "bf16"] {
        forms.push(("add", scalar, false));
    }
    for scalar in ["u32", "s32", "u64", "s64", "f16", "bf16"] {
        forms.extend([("min", scalar, false), ("max", scalar, false)]);
    }
    for scalar in ["b32", "b64"] {
        forms.extend([("and", scalar, false), ("or", scalar, false), ("xor", scalar, false)]);
    }
    forms.extend([("inc", "u32", false), ("dec", "u32", false)]);
    for (operation, scalar) in [
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("min", "s32"),
        ("max", "u32"),
        ("inc", "u32"),
        ("dec", "u32"),
        ("and", "b32"),
        ("xor", "b32"),
    ] {
        forms.push((operation, scalar, true));
    }
    for (operation, scalar, shared) in forms {
        let bits = scalar
            .trim_start_matches(|letter: char| letter.is_ascii_alphabetic())
            .parse::<usize>()
            .expect("bits");
        let bytes = bits / 8;
        let list = |step: usize, start: usize| {
            (0..BYTES / bytes)
                .map(|index| element(scalar, index * step + start))
                .collect::<Vec<u64>>()
        };
        let (old, operands) = (list(1, 0), list(7, 3));
        let packed = |list: &[u64]| {
            list.iter()
                .flat_map(|word| word.to_le_bytes()[..bytes].to_vec())
                .collect::<Vec<u8>>()
        };
        let name = match (operation, scalar) {
            ("add", "f16" | "bf16") => format!("add.noftz.{scalar}"),
            _ => format!("{operation}.{scalar}"),
        };
        let body = if shared {
            // The destination is first filled from the output.
            format!(
                "{FILL} @!%p1 bra DONE; mbarrier.arrive.expect_tx.shared::cta.b64 %rd8, [full], {};
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [second], [%rd2], {BYTES}, [full];
                cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{name} [second], [tile], {BYTES}, [full];
                DONE: wait; {}",
                2 * BYTES,
                store("second")
            )
        } else {
            format!(
                "{FILL} @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [%rd2], [tile], {BYTES};
                cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
            )
        };
        let found = run(&body, &packed(&operands), &packed(&old)).expect("runs");
        for (index, (old, operand)) in old.into_iter().zip(operands).enumerate() {
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(&found[index * bytes..][..bytes]);
            let mask = u64::MAX >> (64 - bits);
            let (old, operand) = (old & mask, operand & mask);
            let expected = reduced(operation, scalar, old, operand);
            assert_eq!(
                u64::from_le_bytes(word),
                expected,
                "{name} of {old:#x} and {operand:#x} (shared {shared})"
            );
        }
    }
}

#[test]
fn stores_and_reductions_complete_at_a_barrier() {
    let body = format!(
        "mov.u64 %rd3, tile; cvta.shared.u64 %rd3, %rd3; mov.u64 %rd4, full; cvta.shared.u64 %rd4, %rd4; mov.u32 %r3, 0xabc;
        @!%p1 bra DONE; st.shared.u32 [tile+64], 40; st.shared.u64 [tile+72], 1; mov.u64 %rd6, 0xffffffff;
        mbarrier.arrive.expect_tx.shared::cta.b64 %rd8, [full], {};
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [tile], %r3, [full];
        st.async.mbarrier::complete_tx::bytes.v4.u32 [%rd3+16], {{%r3, 2, 3, 4}}, [%rd4];
        st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [tile+32], {{%rd6, 5}}, [full];
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [tile+64], 2, [full];
        red.async.relaxed.cluster.mbarrier::complete_tx::bytes.add.u64 [%rd3+72], %rd6, [%rd4];
        DONE: wait; {}",
        4 + 16 + 16 + 4 + 8,
        store("tile")
    );
    let found = run(&body, &pattern(0), &[0; BYTES]).expect("runs");
    let words: Vec<u32> = found.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut expected = [0; 20];
    (expected[0], expected[4], expected[5], expected[6], expected[7]) = (0xabc, 0xabc, 2, 3, 4);
    (expected[8], expected[10], expected[16], expected[19]) = (u32::MAX, 5, 42, 1);
    assert_eq!(words[..20], expected);
}
