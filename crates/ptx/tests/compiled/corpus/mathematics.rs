//! CUDA's mathematical functions in both precisions, integer intrinsics, and functions of pairs of halves.

use sahasra_ptx::ArgumentList;

use super::load;
use super::runtime::{from_half, half_table, nearest_half};
use crate::device::Noise;

/// Returns ln Γ by Stirling's series, after the argument is shifted upwards; x > 0.
fn log_gamma(x: f64) -> f64 {
    let (mut product, mut x) = (1.0, x);
    while x < 20.0 {
        product *= x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    // Bernoulli numbers divided by 2n(2n - 1).
    let series = (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y * (1.0 / 1680.0 - y / 1188.0)))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

/// Returns erf by its Maclaurin series, which loses too much precision beyond 4. There, erf is 1 in the precision of f32.
fn error_function(x: f64) -> f64 {
    if x.abs() >= 4.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// Checks the sum of terms that each have a relative error of at most `relative`.
fn assert_sum(found: f64, terms: &[f64], relative: f64, of: f64) {
    let (sum, size) = terms.iter().fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
    assert!((found - sum).abs() <= relative * size, "f({of}) is {found} instead of {sum}");
}

#[test]
fn functions_in_double_precision_match() {
    let device = load("13_fp64_math");
    let mut noise = Noise::new(13);
    let mut x: Vec<f64> = (0..700).map(|_| f64::from(noise.real(-12.0, 12.0))).collect();
    // Edge cases of argument reductions and of tables.
    x.extend([1.0, -1.0, 0.5, 2.0, 3.0, -3.0, 1e-9, -1e-9, 0.1, 5.5, 20.0, -20.0]);
    x.extend((1..30).map(|n| f64::from(n) * std::f64::consts::FRAC_PI_4 / 2.0));
    let (source, target) = (device.upload(&x), device.zeros::<f64>(x.len()));
    let arguments = ArgumentList::new().pointer(source).pointer(target).i32(x.len() as i32);
    device.run("fp64_math", [x.len().div_ceil(96) as u32, 1, 1], [96, 1, 1], arguments);
    for (v, found) in x.iter().zip(device.download::<f64>(target, x.len())) {
        let (v, size) = (*v, v.abs());
        let terms = [
            v.sin(),
            v.exp() * (size + 1.0).ln(),
            size.powf(1.7),
            size.sqrt(),
            v.cbrt(),
            v % 3.0,
            v.floor(),
            1.0 / v,
            1.0 / (size + 1.0).sqrt(),
            v.min(2.0),
            v.atan2(2.0),
            log_gamma(size + 1.0).exp(),
            v / (v * v + 1.0),
        ];
        assert_sum(found, &terms, 1e-13, v);
    }
}

#[test]
fn functions_in_single_precision_match() {
    let device = load("13_fp64_math");
    let mut noise = Noise::new(14);
    let mut x = noise.reals(700, -9.5, 9.5);
    x.extend([1.0, -1.0, 0.5, 2.0, 3.0, -3.0, 1e-6, -1e-6, 0.1, 5.5, 9.0, -9.0]);
    x.push(f32::NAN);
    let (source, target) = (device.upload(&x), device.zeros::<f32>(x.len()));
    let arguments = ArgumentList::new().pointer(source).pointer(target).i32(x.len() as i32);
    device.run("fp32_math", [x.len().div_ceil(96) as u32, 1, 1], [96, 1, 1], arguments);
    for (v, found) in x.iter().zip(device.download::<f32>(target, x.len())) {
        if v.is_nan() {
            assert!(found.is_nan());
            continue;
        }
        // Operands that the kernel computes in f32.
        let (one_more, tenth) = (f64::from(v.abs() + 1.0), f64::from(v * 0.1));
        let wide = f64::from(*v);
        let terms = [
            wide.sin(),
            wide.cos(),
            wide.tan(),
            wide.exp(),
            one_more.ln(),
            wide.abs().powf(f64::from(1.7f32)),
            one_more.log2(),
            wide.exp2(),
            wide.cbrt(),
            wide % 3.0,
            wide.round(),
            wide.trunc(),
            wide.round_ties_even(),
            wide.ceil(),
            1.0 / wide,
            wide.atan2(2.0),
            tenth.asin(),
            wide.sinh(),
            error_function(wide),
            log_gamma(one_more),
            wide.hypot(2.0),
            -wide.abs(),
            wide.clamp(0.0, 1.0),
        ];
        assert_sum(f64::from(found), &terms, 2e-6, wide);
    }
}

/// Adds the bytes of two words separately.
fn add_bytes(a: u32, b: u32) -> u32 {
    let [a, b] = [a, b].map(u32::to_le_bytes);
    u32::from_le_bytes([0, 1, 2, 3].map(|at: usize| a[at].wrapping_add(b[at])))
}

#[test]
fn integer_intrinsics_match() {
    let device = load("13_fp64_math");
    let mut noise = Noise::new(15);
    for round in 0..20 {
        // Words of all magnitudes. No divisor is zero, and no quotient overflows.
        let word = |noise: &mut Noise| ((noise.next() as i32) >> (noise.below(30))).clamp(i32::MIN + 1, i32::MAX);
        let a: Vec<i32> = (0..64)
            .map(|_| word(&mut noise))
            .map(|value| if value == 0 { 3 } else { value })
            .collect();
        let b: Vec<i64> = (0..64)
            .map(|_| (noise.next() as i64) >> noise.below(60))
            .map(|value| if value == 0 || value == i64::MIN { 5 } else { value })
            .collect();
        let u: Vec<u32> = (0..32).map(|_| noise.next() as u32 >> noise.below(31)).collect();
        let (da, db, du) = (device.upload(&a), device.upload(&b), device.upload(&u));
        let (dc, dd) = (device.zeros::<i32>(32), device.zeros::<i64>(32));
        let arguments = [da, db, dc, dd, du]
            .into_iter()
            .fold(ArgumentList::new(), |list, pointer| list.pointer(pointer));
        device.run("ints", [1, 1, 1], [32, 1, 1], arguments);
        let (c, d, after) = (
            device.download::<i32>(dc, 32),
            device.download::<i64>(dd, 32),
            device.download::<u32>(du, 32),
        );
        for i in 0..32 {
            let (x, y) = (a[i], a[i + 32]);
            let bytes: i32 = (0..4)
                .map(|at| i32::from(x.to_le_bytes()[at] as i8) * i32::from(y.to_le_bytes()[at] as i8))
                .sum();
            let low = |value: i32| i64::from(value << 8 >> 8);
            let expected = [
                x / y,
                x % y,
                x.min(y),
                x.max(y),
                x.abs(),
                ((i64::from(x) * i64::from(y)) >> 32) as i32,
                x >> (y & 31),
                x.abs_diff(y).wrapping_add(3) as i32,
                (low(x) * low(y)) as i32,
                bytes + 5,
                y << 7 | (x as u32 >> 25) as i32,
                ((i64::from(x) + i64::from(y)) >> 1) as i32,
            ];
            assert_eq!(c[i], expected.into_iter().fold(0, i32::wrapping_add), "c, round {round}: {x} {y}");

            let (p, q) = (b[i], b[i + 32]);
            let expected = [
                p / q,
                p % q,
                ((i128::from(p) * i128::from(q)) >> 64) as i64,
                p << (y & 63),
                i64::from(p.count_ones()),
                i64::from(p.leading_zeros()),
                i64::from(p.trailing_zeros()) + 1,
                p.reverse_bits(),
                (x as f32) as i64,
                (x as f32 * 1.5).round_ties_even() as i64,
                (f64::from(y) * 2.5) as i64,
            ];
            assert_eq!(
                d[i],
                expected.into_iter().fold(0, i64::wrapping_add),
                "d, round {round}: {p} {q} {x} {y}"
            );

            let expected = [
                u[i] / 7,
                u[i] % 10,
                ((u64::from(u[i]) * 12345) >> 32) as u32,
                (x as u32).abs_diff(y as u32).wrapping_add(u[i]),
                (u[i] as f32).to_bits(),
                add_bytes(x as u32, y as u32),
                u32::from(x as u8),
                u32::from(y as u16),
                (u[i] >> 5) & 0x3f,
            ];
            assert_eq!(
                after[i],
                expected.into_iter().fold(0, u32::wrapping_add),
                "u, round {round}: {x} {y}"
            );
        }
    }
}

#[test]
fn pairs_of_halves_are_rounded_step_by_step() {
    let table = half_table();
    let round = |value: f64| from_half(nearest_half(value, &table));
    let device = load("14_half_bf16");
    let mut noise = Noise::new(17);
    let n = 600;
    // Numbers from 2^-6 to 8, of both signs: no step overflows, and no divisor is close to zero.
    let halves = |noise: &mut Noise, low: u64, high: u64, signed: bool| -> Vec<u16> {
        (0..2 * n)
            .map(|_| (low + noise.below(high - low)) as u16 | if signed { noise.next() as u16 & 0x8000 } else { 0 })
            .collect()
    };
    let (x, y) = (halves(&mut noise, 0x2400, 0x4400, true), halves(&mut noise, 0x2400, 0x4800, false));
    let (dx, dy) = (device.upload(&x), device.upload(&y));
    let (dz, df) = (device.zeros::<u16>(2 * n), device.zeros::<f32>(n));
    let arguments = ArgumentList::new().pointer(dx).pointer(dy).pointer(dz).pointer(df).i32(n as i32);
    device.run("half2_ops", [5, 1, 1], [128, 1, 1], arguments);
    let (z, f) = (device.download::<u16>(dz, 2 * n), device.download::<f32>(df, n));
    for i in 0..n {
        let (a, b) = ([0, 1].map(|k| from_half(x[2 * i + k])), [0, 1].map(|k| from_half(y[2 * i + k])));
        let mut c = [0, 1].map(|k| round(round(a[k] * b[k]) + round(a[k] - b[k])).max(0.0));
        if a[0] > b[1] {
            c = c.map(|value| -value);
        }
        let c = [0, 1].map(|k| round(c[k] / round(b[k] + 2.0)));
        let found = [0, 1].map(|k| from_half(z[2 * i + k]));
        assert_eq!(found, c, "{i}: {a:?} {b:?}");
        let expected = c[0] + c[1] + a[0].exp() + b[0].abs().sqrt();
        // Both functions are rounded to halves, and the error of exp is two units of a half.
        let bound = 2f64.powi(-9) * a[0].exp() + 2f64.powi(-10) * b[0].sqrt() + 1e-6 * (c[0].abs() + c[1].abs());
        assert!((f64::from(f[i]) - expected).abs() <= bound, "{i}: {} {expected}", f[i]);
    }
}

#[test]
fn every_case_of_a_large_switch_is_taken() {
    for file in ["25_switch64", "clang/switch64"] {
        let device = load(file);
        let mut noise = Noise::new(25);
        let mut cases: Vec<i32> = (0..64).chain([64, -1, 1000, i32::MIN]).collect();
        cases.extend((0..200).map(|_| noise.below(70) as i32 - 3));
        let (codes, out) = (device.upload(&cases), device.zeros::<i32>(101));
        let arguments = ArgumentList::new().pointer(codes).pointer(out).i32(cases.len() as i32);
        device.run("sw", [1, 1, 1], [1, 1, 1], arguments);
        let mut expected = vec![0i32; 101];
        let (mut a, mut b) = (0i32, 1i32);
        for case in &cases {
            let Ok(at @ 0..64) = usize::try_from(*case) else { continue };
            let mixed = match case % 5 {
                0 => a.wrapping_add(b),
                1 => a.wrapping_sub(b),
                2 => a.wrapping_mul(b),
                3 => a ^ b,
                _ => a | b,
            };
            a = mixed.wrapping_add(case * 7 % 13);
            b = b.wrapping_add(*case);
            expected[at] = a;
        }
        expected[100] = a.wrapping_add(b);
        assert_eq!(device.download::<i32>(out, 101), expected);
    }
}
