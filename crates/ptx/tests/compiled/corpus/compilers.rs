//! Kernels as Triton, tinygrad and numba generate them.

use sahasra_ptx::{ArgumentList, Launch};

use super::load;
use super::runtime::{from_half, half_table, nearest_half};
use super::tensor::{half, sixteenths};
use crate::device::{Device, Noise, assert_close, text};

#[test]
fn tritons_sum_does_not_write_past_the_end() {
    let device = load("triton/add");
    let mut noise = Noise::new(30);
    let (x, y) = (noise.reals(3000, -9.0, 9.0), noise.reals(3000, -9.0, 9.0));
    let (dx, dy, out) = (device.upload(&x), device.upload(&y), device.zeros::<f32>(3000));
    let arguments = ArgumentList::new().pointer(dx).pointer(dy).pointer(out).u32(2900).u64(0).u64(0);
    device.run("add", [3, 1, 1], [128, 1, 1], arguments);
    let expected: Vec<f32> = (0..3000).map(|at| if at < 2900 { x[at] + y[at] } else { 0.0 }).collect();
    assert_eq!(device.download::<f32>(out, 3000), expected);
}

#[test]
fn tritons_softmax_matches() {
    let device = load("triton/softmax");
    let (rows, stride, columns) = (7, 1000, 901);
    let input = Noise::new(31).reals(rows * stride, -6.0, 6.0);
    let (out, source) = (device.zeros::<f32>(rows * stride), device.upload(&input));
    let arguments = ArgumentList::new()
        .pointer(out)
        .pointer(source)
        .u32(stride as u32)
        .u32(columns as u32)
        .u64(0)
        .u64(0);
    device.run_shared("softmax", rows as u32, 128, 64, arguments);
    let mut expected = Vec::new();
    for row in input.chunks(stride) {
        let highest = row[..columns].iter().copied().fold(f32::MIN, f32::max);
        let powers: Vec<f64> = row[..columns]
            .iter()
            .map(|value| (f64::from(*value) - f64::from(highest)).exp())
            .collect();
        let sum: f64 = powers.iter().sum();
        expected.extend(powers.iter().map(|power| power / sum));
        expected.extend(std::iter::repeat_n(0.0, stride - columns));
    }
    assert_close(&device.download::<f32>(out, rows * stride), &expected, 1e-5, 1e-8);
}

#[test]
fn numbas_reduction_adds_exponentials() {
    let device = load("numba/reduce");
    let n = 1000;
    let input = Noise::new(32).reals(n, -5.0, 5.0);
    let (source, out) = (device.upload(&input), device.upload(&[0.25f32]));
    let name = device.module.module().entries().next().expect("one kernel").name().to_owned();
    let array = |list: ArgumentList, data, items| list.u64(0).u64(0).i64(items).i64(4).pointer(data).i64(items).i64(4);
    let arguments = array(array(ArgumentList::new(), source, n as i64), out, 1);
    device.run(&name, [4, 1, 1], [256, 1, 1], arguments);
    let expected = 0.25 + input.iter().map(|value| f64::from(*value).exp()).sum::<f64>();
    assert_close(&device.download::<f32>(out, 1), &[expected], 1e-5, 0.0);
}

/// Tinygrad leaves version and target to the program that loads its text.
fn tinygrad(file: &str) -> Device {
    let ptx = text(&format!("corpus/tinygrad/{file}"));
    Device::new(&ptx.replace("VERSION", "7.5").replace("TARGET", "sm_80"))
}

#[test]
fn tinygrads_row_sums_of_a_rectified_product_match() {
    let device = tinygrad("k0");
    let mut noise = Noise::new(26);
    let (a, b) = (noise.reals(64 * 64, -1.0, 1.0), noise.reals(64 * 64, -1.0, 1.0));
    let (out, da, db) = (device.zeros::<f32>(64), device.upload(&a), device.upload(&b));
    device.run(
        "r_64_16_64_4",
        [64, 1, 1],
        [16, 1, 1],
        ArgumentList::new().pointer(out).pointer(da).pointer(db),
    );
    for (row, found) in device.download::<f32>(out, 64).into_iter().enumerate() {
        let element = |column: usize| {
            (0..64)
                .map(|k| f64::from(a[row * 64 + k]) * f64::from(b[k * 64 + column]))
                .sum::<f64>()
        };
        let expected: f64 = (0..64).map(|column| element(column).max(0.0)).sum();
        assert!(
            (f64::from(found) - expected).abs() < 1e-4 * expected.max(1.0),
            "{row}: {found} {expected}"
        );
    }
}

/// Runs the three kernels of a softmax over rows of 100: maxima, sums of exponentials, quotients.
#[test]
fn tinygrads_softmax_matches_step_by_step() {
    let input = Noise::new(27).reals(3200, -5.0, 5.0);
    let maxima: Vec<f32> = input.chunks(100).map(|row| row.iter().copied().fold(f32::MIN, f32::max)).collect();
    let power = |at: usize| (f64::from(input[at]) - f64::from(maxima[at / 100])).exp();
    let sums: Vec<f64> = (0..32).map(|row| (0..100).map(|at| power(100 * row + at)).sum()).collect();

    let device = tinygrad("k1");
    let (out, source) = (device.zeros::<f32>(32), device.upload(&input));
    device.run("r_32_25_4", [1, 1, 1], [32, 1, 1], ArgumentList::new().pointer(out).pointer(source));
    assert_eq!(device.download::<f32>(out, 32), maxima);

    let device = tinygrad("k2");
    let (out, source, highest) = (device.zeros::<f32>(32), device.upload(&input), device.upload(&maxima));
    let arguments = ArgumentList::new().pointer(out).pointer(source).pointer(highest);
    device.run("r_32_25_4", [1, 1, 1], [32, 1, 1], arguments);
    assert_close(&device.download::<f32>(out, 32), &sums, 1e-5, 0.0);

    let device = tinygrad("k3");
    let (out, source, highest) = (device.zeros::<f32>(3200), device.upload(&input), device.upload(&maxima));
    let totals = device.upload(&sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>());
    let arguments = ArgumentList::new().pointer(out).pointer(source).pointer(highest).pointer(totals);
    device.run("E_25_32_4", [25, 1, 1], [32, 1, 1], arguments);
    let expected: Vec<f64> = (0..3200).map(|at| power(at) / sums[at / 100]).collect();
    assert_close(&device.download::<f32>(out, 3200), &expected, 1e-5, 0.0);
}

#[test]
fn tinygrads_exponentials_of_sines_match() {
    let device = tinygrad("k4");
    let input = Noise::new(28).reals(1000, -3.1, 3.1);
    let (out, source) = (device.zeros::<f32>(1000), device.upload(&input));
    let arguments = ArgumentList::new().pointer(out).pointer(source);
    device.run("E_125_2_4", [125, 1, 1], [2, 1, 1], arguments);
    let expected: Vec<f64> = input.iter().map(|value| f64::from(*value).sin().exp()).collect();
    // sin.approx has an error of 2^-20.5 in this range.
    assert_close(&device.download::<f32>(out, 1000), &expected, 2e-6, 0.0);
}

#[test]
fn tinygrads_product_of_halves_is_rounded_once() {
    let device = tinygrad("k5");
    let table = half_table();
    let mut noise = Noise::new(29);
    let (a, b) = (sixteenths(&mut noise, 4096), sixteenths(&mut noise, 4096));
    let halves = |values: &[f64]| values.iter().map(|value| half(*value)).collect::<Vec<_>>();
    let (out, da, db) = (device.zeros::<u16>(4096), device.upload(&halves(&a)), device.upload(&halves(&b)));
    let launch = Launch::new([1, 1, 1], [32, 2, 1]);
    device.launch(
        "r_32_2_2_2_4_4_4_2",
        &launch,
        &ArgumentList::new().pointer(out).pointer(da).pointer(db),
    );
    for (at, found) in device.download::<u16>(out, 4096).into_iter().enumerate() {
        // The sum is exact in f32.
        let sum: f64 = (0..64).map(|k| a[at / 64 * 64 + k] * b[k * 64 + at % 64]).sum();
        let expected = from_half(nearest_half(sum, &table));
        assert_eq!(from_half(found), expected, "row {}, column {}", at / 64, at % 64);
    }
}
