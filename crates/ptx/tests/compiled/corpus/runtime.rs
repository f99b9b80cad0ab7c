//! Calls, `printf`, assertions and the heap, arithmetic of 16-bit floats, and the widest integer kernel.

use sahasra_ptx::{ArgumentList, Cancel, FaultKind, Launch, Output};

use super::load;
use crate::device::{Device, Noise};

fn ackermann(m: i32, n: i32) -> i32 {
    match (m, n) {
        (0, n) => n + 1,
        (m, 0) => ackermann(m - 1, 1),
        (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
    }
}

#[test]
fn recursion_function_pointers_structs_and_virtual_functions_work() {
    let device = load("18_calls");
    let threads = 70;
    let structs: Vec<f32> = (0..threads).flat_map(|t| [t as f32, 1.0, -2.0, f32::from_bits(t as u32)]).collect();
    let (o, f, v) = (device.zeros::<i32>(threads), device.zeros::<f32>(threads), device.upload(&structs));
    device.run(
        "calls",
        [1, 1, 1],
        [threads as u32, 1, 1],
        ArgumentList::new().pointer(o).pointer(f).pointer(v),
    );
    let factorial = |n: i32| (1..=n).product::<i32>();
    let expected: Vec<i32> = (0..threads as i32).map(|t| factorial(t & 7) + ackermann(2, t & 3)).collect();
    assert_eq!(device.download::<i32>(o, threads), expected);
    let expected: Vec<f32> = (0..threads)
        .map(|t| {
            let w = t as f32;
            let first = [w + 2.0, w * 2.0, w - 2.0][t % 3];
            first + if t & 1 == 1 { w * w } else { w * (w * f32::from_bits(0x4048_f5c3)) }
        })
        .collect();
    for (found, expected) in device.download::<f32>(f, threads).iter().zip(&expected) {
        assert!((found - expected).abs() <= 2e-6 * expected.abs(), "{found} {expected}");
    }
    let found = device.download::<f32>(v, 4 * threads);
    for t in 0..threads {
        assert_eq!(found[4 * t..4 * t + 3], [t as f32 * 1.5, 1.5, -3.0]);
        assert_eq!(found[4 * t + 3].to_bits(), t as u32 + 1);
    }
}

#[test]
fn deep_recursion_faults_at_the_end_of_the_stack() {
    let device = load("18_calls");
    let kernel = device.module.entry("calls").expect("the kernel");
    let (o, f, v) = (device.zeros::<i32>(8), device.zeros::<f32>(8), device.zeros::<f32>(32));
    let launch = Launch {
        stack_bytes: 64,
        ..Launch::new([1, 1, 1], [8, 1, 1])
    };
    let arguments = ArgumentList::new().pointer(o).pointer(f).pointer(v);
    let fault = kernel
        .launch(&launch, arguments.bytes(), &device.memory, &Cancel::new())
        .expect_err("overflows");
    assert_eq!(fault.kind, FaultKind::StackOverflow { limit: 64 });
    assert!(fault.instruction.starts_with("call"), "{fault}");
}

fn printer(device: &Device, values: &[i32]) -> (Result<(), sahasra_ptx::Fault>, String) {
    let a = device.upload(values);
    let output = Output::default();
    let launch = Launch {
        output: Some(output.clone()),
        ..Launch::new([1, 1, 1], [values.len() as u32, 1, 1])
    };
    let kernel = device.module.entry("printer").expect("the kernel");
    let arguments = ArgumentList::new().pointer(a).f32(1.25);
    let outcome = kernel
        .launch(&launch, arguments.bytes(), &device.memory, &Cancel::new())
        .map(|_| ());
    (outcome, String::from_utf8(output.take()).expect("text"))
}

#[test]
fn printed_text_is_collected_and_failed_assertions_have_a_location() {
    let device = load("15_printf_assert");
    let (outcome, text) = printer(&device, &[5, -0x1_0000, 7, 8]);
    let fault = outcome.expect_err("the assertion fails");
    let FaultKind::AssertFailed(reason) = &fault.kind else {
        panic!("{fault}")
    };
    assert!(reason.contains("a[i]>=0") && reason.contains(" in "), "{reason}");
    assert_eq!(fault.thread, Some([1, 0, 0]));
    assert_eq!(
        text,
        "t 0 f 1.250000 s hi ll 5\nt 1 f 1.250000 s hi ll -65536\nt 2 f 1.250000 s hi ll 7\n"
    );
    let (outcome, _) = printer(&device, &[5, 99]);
    assert_eq!(outcome.expect_err("traps").kind, FaultKind::Trap);
    assert!(printer(&device, &[1, 2, 3, 4]).0.is_ok());
}

#[test]
fn the_heap_allocates_frees_and_is_limited() {
    let device = load("15_printf_assert");
    let before = device.memory.used();
    let pointers = device.zeros::<u64>(32);
    device.run("heap", [1, 1, 1], [32, 1, 1], ArgumentList::new().pointer(pointers));
    let found = device.download::<u64>(pointers, 32);
    for (thread, pointer) in found.iter().enumerate().step_by(2) {
        let value = device.download::<i32>(sahasra_ptx::DevicePointer(*pointer), 1);
        assert_eq!(value, [thread as i32]);
    }
    // The odd threads have freed their allocations.
    assert_eq!(device.memory.used() - before, 256 + 16 * 256);
    device.memory.set_heap_limit(0);
    let kernel = device.module.entry("heap").expect("the kernel");
    let launch = Launch::new([1, 1, 1], [1, 1, 1]);
    let arguments = ArgumentList::new().pointer(pointers);
    let fault = kernel
        .launch(&launch, arguments.bytes(), &device.memory, &Cancel::new())
        .expect_err("malloc returned null");
    assert_eq!(fault.kind, FaultKind::NullAccess);
}

#[test]
fn barrier_counts_and_wide_products_match() {
    let device = load("24_cuda_atomic_misc");
    let out = device.zeros::<i64>(128);
    device.run("misc", [1, 1, 1], [64, 1, 1], ArgumentList::new().pointer(out).i32(37));
    let found = device.download::<i64>(out, 128);
    let least = |t: i64| 37 + 1 + (t % 32) + (t >> 3 & 31) + ((t + 0xffff_ffff) & 0xffff_ffff) + i64::from(t > 0);
    for t in 0..64 {
        // The difference is the clock, which is at least 0 and below a million steps.
        let clock = found[t] - least(t as i64);
        assert!((0..1_000_000).contains(&clock), "{t}: {clock}");
        assert_eq!(found[64 + t], ((i128::from(found[t]) * 37) >> 40) as i64);
    }
    let (p, o) = (device.upload(&[100i32]), device.zeros::<i32>(1));
    device.run("cudaatomic", [1, 1, 1], [1, 1, 1], ArgumentList::new().pointer(p).pointer(o));
    // The addition changes 100 to 101, so the exchange, which expects 100, finds 101.
    assert_eq!((device.download::<i32>(p, 1)[0], device.download::<i32>(o, 1)[0]), (100, 202));
}

/// Returns the f16 of a value that is exact in f16.
fn half(value: f64) -> u16 {
    (0..=0xffffu32)
        .map(|bits| bits as u16)
        .find(|bits| from_half(*bits) == value)
        .expect("an f16")
}

pub(crate) fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 => return if fraction == 0.0 { f64::INFINITY } else { f64::NAN },
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// Returns all finite f16 with their values, in ascending order.
pub(crate) fn half_table() -> Vec<(f64, u16)> {
    let mut table: Vec<(f64, u16)> = (0..0x7c00u16)
        .flat_map(|bits| [bits, bits | 0x8000])
        .map(|bits| (from_half(bits), bits))
        .collect();
    table.sort_by(|a, b| a.0.total_cmp(&b.0));
    table
}

/// Returns the nearest f16 (ties to even), found in the table of all f16.
pub(crate) fn nearest_half(value: f64, table: &[(f64, u16)]) -> u16 {
    let above = table.partition_point(|(other, _)| *other < value).min(table.len() - 1);
    let below = above.saturating_sub(1);
    let distance = |at: usize| (table[at].0 - value).abs();
    if distance(below) < distance(above) || (distance(below) == distance(above) && table[below].1 & 1 == 0) {
        table[below].1
    } else {
        table[above].1
    }
}

#[test]
fn half_precision_fused_products_are_rounded_once() {
    let table = half_table();
    let device = load("14_half_bf16");
    let mut noise = Noise::new(14);
    let n = 500;
    let values = |noise: &mut Noise| -> Vec<u16> {
        (0..n)
            .map(|_| (noise.below(0x3000) + 0x2000) as u16 | (noise.next() as u16 & 0x8000))
            .collect()
    };
    let (x, y) = (values(&mut noise), values(&mut noise));
    let a = half(1.0625);
    let (dx, dy) = (device.upload(&x), device.upload(&y));
    let mut bytes = (n as u32).to_le_bytes().to_vec();
    bytes.extend(a.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(dx.0.to_le_bytes());
    bytes.extend(dy.0.to_le_bytes());
    let kernel = device.module.entry("half_axpy").expect("the kernel");
    kernel
        .launch(&Launch::new([4, 1, 1], [128, 1, 1]), &bytes, &device.memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{fault}"));
    for (index, found) in device.download::<u16>(dy, n).into_iter().enumerate() {
        let exact = 1.0625 * from_half(x[index]) + from_half(y[index]);
        let expected = nearest_half(exact, &table);
        assert!(
            found == expected || from_half(found) == from_half(expected),
            "{index}: {found:x} {expected:x}"
        );
    }
}

#[test]
fn brain_floats_round_through_two_fused_steps() {
    let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    let round = |exact: f64| {
        // Exact sums of so few bits are not rounded twice on the way through f32: the operands are small integers.
        let single = exact as f32;
        let bits = single.to_bits();
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    };
    let device = load("14_half_bf16");
    let mut noise = Noise::new(16);
    let n = 200;
    let values: Vec<u16> = (0..2 * n).map(|_| round(f64::from(noise.below(64) as u32) - 32.0)).collect();
    let (x, y) = (device.upload(&values[..n]), device.upload(&values[n..]));
    let z = device.zeros::<u16>(n);
    let arguments = ArgumentList::new().pointer(x).pointer(y).pointer(z).i32(n as i32);
    device.run("bf16_ops", [2, 1, 1], [128, 1, 1], arguments);
    for (index, found) in device.download::<u16>(z, n).into_iter().enumerate() {
        let (a, b) = (f64::from(value(values[index])), f64::from(value(values[n + index])));
        let product = round(a * b);
        let c = round(a * b + f64::from(value(product)));
        let expected = round(f64::from(value(c)) + a.max(b));
        assert_eq!(value(found), value(expected), "{index}: {a} {b}");
    }
}
