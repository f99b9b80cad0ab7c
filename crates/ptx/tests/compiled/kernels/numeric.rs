//! Linear algebra, signals and grids, checked against double precision.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::{Noise, assert_close};

fn close(found: &[f64], expected: &[f64], error: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= error * (1.0 + expected.abs()),
            "element {at}: {found} instead of {expected}"
        );
    }
}

#[test]
fn fft_matches_the_sum_of_waves() {
    let device = load("numeric");
    let values = Noise::new(1).reals(2 * 512, -1.0, 1.0);
    let turn = |k: usize, n: f64| -2.0 * std::f64::consts::PI * k as f64 / n;
    let twiddles: Vec<f32> = (0..128)
        .flat_map(|k| [turn(k, 256.0).cos() as f32, turn(k, 256.0).sin() as f32])
        .collect();
    let (data, dtwiddles) = (device.upload(&values), device.upload(&twiddles));
    device.run(
        "fft_256",
        [2, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(data).pointer(dtwiddles),
    );
    let expected: Vec<f64> = values
        .chunks(512)
        .flat_map(|signal| {
            (0..256).flat_map(move |k| {
                let mut sum = [0.0, 0.0];
                for (j, pair) in signal.chunks(2).enumerate() {
                    let (sine, cosine) = turn(j * k % 256, 256.0).sin_cos();
                    let (re, im) = (f64::from(pair[0]), f64::from(pair[1]));
                    sum[0] += re * cosine - im * sine;
                    sum[1] += re * sine + im * cosine;
                }
                sum
            })
        })
        .collect();
    assert_close(&device.download::<f32>(data, 1024), &expected, 1e-5, 2e-5);
}

#[test]
fn sparse_product_matches() {
    let device = load("numeric");
    let (rows, columns) = (50, 200);
    let mut noise = Noise::new(2);
    let mut offsets = vec![0i32];
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for column in 0..columns {
            if noise.below(1 + row as u64) == 0 {
                places.push(column);
                values.push(f64::from(noise.real(-1.0, 1.0)));
            }
        }
        offsets.push(places.len() as i32);
    }
    let x: Vec<f64> = (0..columns).map(|_| f64::from(noise.real(-1.0, 1.0))).collect();
    let (o, c, v) = (device.upload(&offsets), device.upload(&places), device.upload(&values));
    let (dx, y) = (device.upload(&x), device.zeros::<f64>(rows));
    device.run(
        "spmv_csr",
        blocks(rows * 32, 64),
        [64, 1, 1],
        ArgumentList::new()
            .pointer(o)
            .pointer(c)
            .pointer(v)
            .pointer(dx)
            .pointer(y)
            .i32(rows as i32),
    );
    let expected: Vec<f64> = offsets
        .windows(2)
        .map(|ends| {
            (ends[0] as usize..ends[1] as usize)
                .map(|k| values[k] * x[places[k] as usize])
                .sum()
        })
        .collect();
    close(&device.download::<f64>(y, rows), &expected, 1e-13);
}

#[test]
fn lu_and_cholesky_factors_multiply_back() {
    let device = load("numeric");
    let n = 24;
    let mut noise = Noise::new(3);
    let matrix: Vec<f64> = (0..n * n)
        .map(|at| f64::from(noise.real(-1.0, 1.0)) + if at / n == at % n { 8.0 } else { 0.0 })
        .collect();
    let a = device.upload(&matrix);
    device.run("lu", [1, 1, 1], [32, 1, 1], ArgumentList::new().pointer(a).i32(n as i32));
    let f = device.download::<f64>(a, n * n);
    let product: Vec<f64> = (0..n * n)
        .map(|at| {
            let (i, j) = (at / n, at % n);
            (0..=i.min(j))
                .map(|k| (if k == i { 1.0 } else { f[i * n + k] }) * f[k * n + j])
                .sum()
        })
        .collect();
    close(&product, &matrix, 1e-13);

    let symmetric: Vec<f32> = (0..n * n)
        .map(|at| (0..n).map(|k| matrix[at / n * n + k] * matrix[at % n * n + k]).sum::<f64>() as f32)
        .collect();
    let a = device.upload(&symmetric);
    device.run("cholesky", [1, 1, 1], [32, 1, 1], ArgumentList::new().pointer(a).i32(n as i32));
    let f = device.download::<f32>(a, n * n);
    let product: Vec<f32> = (0..n * n)
        .map(|at| (0..=(at / n).min(at % n)).map(|k| f[at / n * n + k] * f[at % n * n + k]).sum())
        .collect();
    let expected: Vec<f64> = symmetric.iter().map(|value| f64::from(*value)).collect();
    assert_close(&product, &expected, 1e-5, 2e-4);
}

#[test]
fn convolutions_match() {
    let device = load("numeric");
    let (n, radius) = (500usize, 6usize);
    let mut noise = Noise::new(4);
    let (input, taps) = (noise.reals(n, -1.0, 1.0), noise.reals(2 * radius + 1, -1.0, 1.0));
    let (din, dtaps, out) = (device.upload(&input), device.upload(&taps), device.zeros::<f32>(n));
    device.run_shared(
        "convolve_1d",
        4,
        128,
        4 * (128 + 12),
        ArgumentList::new()
            .pointer(din)
            .pointer(dtaps)
            .pointer(out)
            .i32(n as i32)
            .i32(radius as i32),
    );
    let expected: Vec<f32> = (0..n)
        .map(|i| {
            taps.iter().enumerate().fold(0f32, |sum, (k, tap)| {
                let value = (i + k).checked_sub(radius).and_then(|at| input.get(at)).copied().unwrap_or(0.0);
                value.mul_add(*tap, sum)
            })
        })
        .collect();
    assert_eq!(device.download::<f32>(out, n), expected);

    let (w, h) = (40usize, 25usize);
    let image = noise.reals(w * h, -1.0, 1.0);
    let filter = noise.reals(25, -1.0, 1.0);
    let (symbol, _) = device.module.symbol("filter").expect("the filter");
    let bytes: Vec<u8> = filter.iter().flat_map(|value| value.to_le_bytes()).collect();
    device.memory.write(symbol, &bytes).expect("inside");
    let (din, out) = (device.upload(&image), device.zeros::<f32>(w * h));
    device.run(
        "convolve_2d",
        [5, 4, 1],
        [8, 8, 1],
        ArgumentList::new().pointer(din).pointer(out).i32(w as i32).i32(h as i32),
    );
    let expected: Vec<f32> = (0..w * h)
        .map(|at| {
            filter.iter().enumerate().fold(0f32, |sum, (k, weight)| {
                let place = |at: usize, offset: usize, end: usize| (at + offset).saturating_sub(2).min(end - 1);
                image[place(at / w, k / 5, h) * w + place(at % w, k % 5, w)].mul_add(*weight, sum)
            })
        })
        .collect();
    assert_eq!(device.download::<f32>(out, w * h), expected);
}

#[test]
fn batched_products_match() {
    let device = load("numeric");
    let (n, batch) = (24, 3);
    let mut noise = Noise::new(5);
    let mut matrix = || -> Vec<f64> { (0..batch * n * n).map(|_| f64::from(noise.real(-1.0, 1.0))).collect() };
    let (a, b) = (matrix(), matrix());
    let (da, db, dc) = (device.upload(&a), device.upload(&b), device.zeros::<f64>(batch * n * n));
    device.run(
        "batched_gemm",
        [3, 3, batch as u32],
        [8, 8, 1],
        ArgumentList::new().pointer(da).pointer(db).pointer(dc).i32(n as i32),
    );
    let expected: Vec<f64> = (0..batch * n * n)
        .map(|at| {
            let (base, i, j) = (at / (n * n) * n * n, at / n % n, at % n);
            (0..n).fold(0.0f64, |sum, k| a[base + i * n + k].mul_add(b[base + k * n + j], sum))
        })
        .collect();
    assert_eq!(device.download::<f64>(dc, batch * n * n), expected);
}

#[test]
fn jacobi_and_red_black_relax_the_same_equation() {
    let device = load("numeric");
    let (w, h) = (20usize, 16usize);
    let mut noise = Noise::new(6);
    let (start, right) = (noise.reals(w * h, 0.0, 1.0), noise.reals(w * h, -0.1, 0.1));
    let inner = |at: usize| !at.is_multiple_of(w) && at % w < w - 1 && at / w > 0 && at / w < h - 1;
    let relaxed = |u: &[f64], at: usize| 0.25 * (u[at - 1] + u[at + 1] + u[at - w] + u[at + w] - f64::from(right[at]));
    let dright = device.upload(&right);
    let arguments = |list: ArgumentList| list.i32(w as i32).i32(h as i32);

    let (mut from, mut to) = (device.upload(&start), device.zeros::<f32>(w * h));
    let mut u: Vec<f64> = start.iter().map(|value| f64::from(*value)).collect();
    for _ in 0..10 {
        device.run(
            "jacobi",
            [3, 2, 1],
            [8, 8, 1],
            arguments(ArgumentList::new().pointer(from).pointer(dright).pointer(to)),
        );
        std::mem::swap(&mut from, &mut to);
        u = (0..w * h).map(|at| if inner(at) { relaxed(&u, at) } else { u[at] }).collect();
    }
    assert_close(&device.download::<f32>(from, w * h), &u, 1e-5, 1e-6);

    let field = device.upload(&start);
    let mut u: Vec<f64> = start.iter().map(|value| f64::from(*value)).collect();
    for sweep in 0..10 {
        let colour = sweep % 2;
        device.run(
            "red_black",
            [3, 2, 1],
            [8, 8, 1],
            arguments(ArgumentList::new().pointer(field).pointer(dright))
                .i32(colour as i32)
                .f32(1.5),
        );
        for at in 0..w * h {
            if inner(at) && (at % w + at / w) % 2 == colour {
                u[at] += 1.5 * (relaxed(&u, at) - u[at]);
            }
        }
    }
    assert_close(&device.download::<f32>(field, w * h), &u, 1e-5, 1e-6);
}

#[test]
fn monte_carlo_counts_the_same_points() {
    let device = load("numeric");
    let (rounds, threads) = (200, 128u32);
    let inside = device.zeros::<u64>(1);
    device.run(
        "monte_carlo_pi",
        [2, 1, 1],
        [64, 1, 1],
        ArgumentList::new().u32(17).pointer(inside).i32(rounds),
    );
    let mut expected = 0;
    for thread in 0..threads {
        let mut s = 17 ^ thread.wrapping_mul(2_654_435_761);
        for _ in 0..rounds {
            let mut next = || {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 * (1.0 / 16_777_216.0)
            };
            let (x, y) = (next(), next());
            expected += u64::from(x * x + y * y < 1.0);
        }
    }
    assert_eq!(device.download::<u64>(inside, 1), [expected]);
}

#[test]
fn compensated_sums_lose_little() {
    let device = load("numeric");
    let (n, each) = (40, 300);
    let mut noise = Noise::new(8);
    let values: Vec<f32> = (0..n * each)
        .map(|k| noise.real(0.0, 1.0) * if k % 7 == 0 { 1e6 } else { 1e-3 })
        .collect();
    let (input, out) = (device.upload(&values), device.zeros::<f32>(2 * n));
    device.run(
        "kahan_sums",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(n as i32).i32(each as i32),
    );
    let found = device.download::<f32>(out, 2 * n);
    for (row, found) in values.chunks(each).zip(found.chunks(2)) {
        let truth: f64 = row.iter().map(|value| f64::from(*value)).sum();
        assert!(
            (f64::from(found[0]) - truth).abs() <= truth * 1.2e-7,
            "{} instead of {truth}",
            found[0]
        );
        let sum = f64::from(found[0]);
        let mixed = sum * f64::from(0.3f32) + sum / 7.0 + sum.sqrt();
        assert!((f64::from(found[1]) - mixed).abs() <= mixed * 4e-7);
    }
}
