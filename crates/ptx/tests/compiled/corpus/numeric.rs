//! Floating point kernels.

use sahasra_ptx::{ArgumentList, Launch};

use super::load;
use crate::device::{Noise, assert_close};

fn saxpy_expected(n: usize, a: f32, x: &[f32], y: &[f32]) -> Vec<f32> {
    y.iter()
        .zip(x)
        .enumerate()
        .map(|(index, (y, x))| if index < n { a.mul_add(*x, *y) } else { *y })
        .collect()
}

#[test]
fn saxpy_is_exact_and_does_not_write_past_the_end() {
    let device = load("01_saxpy");
    let mut noise = Noise::new(1);
    let (x, y) = (noise.reals(5000, -9.0, 9.0), noise.reals(5000, -9.0, 9.0));
    for (kernel, grid, block) in [("saxpy", 40, 128), ("saxpy", 5, 1000), ("saxpy_grid_stride", 3, 96)] {
        let (dx, dy) = (device.upload(&x), device.upload(&y));
        device.run(
            kernel,
            [grid, 1, 1],
            [block, 1, 1],
            ArgumentList::new().i32(4990).f32(1.7).pointer(dx).pointer(dy),
        );
        let covered = if kernel == "saxpy" {
            4990.min((grid * block) as usize)
        } else {
            4990
        };
        assert_eq!(device.download::<f32>(dy, 5000), saxpy_expected(covered, 1.7, &x, &y));
    }
}

#[test]
fn saxpy_of_clang_and_numba_run_too() {
    let mut noise = Noise::new(2);
    let (x, y) = (noise.reals(256, -9.0, 9.0), noise.reals(256, -9.0, 9.0));
    let device = load("clang/saxpy");
    let (dx, dy) = (device.upload(&x), device.upload(&y));
    // This kernel uses shared memory: thread i of a block of 64 reads the value that thread i + 1 stored.
    device.run(
        "saxpy",
        [4, 1, 1],
        [64, 1, 1],
        ArgumentList::new().i32(250).f32(0.5).pointer(dx).pointer(dy),
    );
    let expected: Vec<f32> = (0..256)
        .map(|i| {
            if i < 250 {
                0.5f32.mul_add(x[i / 64 * 64 + (i + 1) % 64], y[i])
            } else {
                y[i]
            }
        })
        .collect();
    assert_eq!(device.download::<f32>(dy, 256), expected);

    let device = load("numba/saxpy");
    let (dx, dy) = (device.upload(&x), device.upload(&y));
    let name = device.module.module().entries().next().expect("one kernel").name().to_owned();
    // Numba passes arrays as meminfo, parent, item count, item size, data, shape, stride.
    let array = |list: ArgumentList, data| list.u64(0).u64(0).i64(256).i64(4).pointer(data).i64(256).i64(4);
    let arguments = array(array(ArgumentList::new().i32(250).f32(0.5), dx), dy);
    device.run(&name, [2, 1, 1], [128, 1, 1], arguments);
    assert_eq!(device.download::<f32>(dy, 256), saxpy_expected(250, 0.5, &x, &y));
}

#[test]
fn tiled_matrix_product_is_exact() {
    let device = load("05_matmul_tiled");
    let n = 80;
    let mut noise = Noise::new(5);
    let (a, b) = (noise.reals(n * n, -1.0, 1.0), noise.reals(n * n, -1.0, 1.0));
    let (da, db, dc) = (device.upload(&a), device.upload(&b), device.zeros::<f32>(n * n));
    device.run(
        "matmul",
        [5, 5, 1],
        [16, 16, 1],
        ArgumentList::new().pointer(da).pointer(db).pointer(dc).i32(n as i32),
    );
    let expected: Vec<f32> = (0..n * n)
        .map(|at| (0..n).fold(0f32, |sum, k| a[at / n * n + k].mul_add(b[k * n + at % n], sum)))
        .collect();
    assert_eq!(device.download::<f32>(dc, n * n), expected);
}

#[test]
fn stencil_matches() {
    let device = load("06_stencil");
    let (w, h) = (50, 37);
    let input = Noise::new(6).reals(w * h, -1.0, 1.0);
    let (source, target) = (device.upload(&input), device.zeros::<f32>(w * h));
    device.run(
        "stencil2d",
        [4, 5, 1],
        [16, 8, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(w as i32).i32(h as i32),
    );
    let expected: Vec<f64> = (0..w * h)
        .map(|at| {
            let (x, y) = (at % w, at / w);
            if x < 1 || y < 1 || x >= w - 1 || y >= h - 1 {
                return 0.0;
            }
            let p = |dx: isize, dy: isize| f64::from(input[(at as isize + dy * w as isize + dx) as usize]);
            0.5 * p(0, 0) + 0.125 * (p(-1, 0) + p(1, 0) + p(0, -1) + p(0, 1))
        })
        .collect();
    assert_close(&device.download::<f32>(target, w * h), &expected, 1e-6, 1e-6);
}

#[test]
fn game_of_life_wraps_around() {
    let device = load("06_stencil");
    let (w, h) = (33, 21);
    let mut noise = Noise::new(7);
    let input: Vec<u8> = (0..w * h).map(|_| u8::from(noise.below(3) == 0)).collect();
    let (source, target) = (device.upload(&input), device.zeros::<u8>(w * h));
    device.run(
        "life",
        [5, 3, 1],
        [8, 8, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(w as i32).i32(h as i32),
    );
    let expected: Vec<u8> = (0..w * h)
        .map(|at| {
            let (x, y) = (at % w, at / w);
            let mut neighbours = 0;
            for dy in [h - 1, 0, 1] {
                for dx in [w - 1, 0, 1] {
                    if (dx, dy) != (0, 0) {
                        neighbours += input[(y + dy) % h * w + (x + dx) % w];
                    }
                }
            }
            u8::from(neighbours == 3 || (neighbours == 2 && input[at] == 1))
        })
        .collect();
    assert_eq!(device.download::<u8>(target, w * h), expected);
}

fn xorshift(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

#[test]
fn monte_carlo_counts_the_same_points() {
    let device = load("07_mcpi");
    let count = device.zeros::<u64>(1);
    device.run(
        "mcpi_xorshift",
        [3, 1, 1],
        [100, 1, 1],
        ArgumentList::new().pointer(count).i32(200).u32(12345),
    );
    let mut expected = 0u64;
    for thread in 0..300u32 {
        let mut state = 12345 ^ (thread + 1).wrapping_mul(2_654_435_761);
        state = if state == 0 { 1 } else { state };
        for _ in 0..200 {
            let x = xorshift(&mut state) as f32 * 2.328_306_4e-10;
            let y = xorshift(&mut state) as f32 * 2.328_306_4e-10;
            expected += u64::from(x.mul_add(x, y * y) <= 1.0);
        }
    }
    let found = device.download::<u64>(count, 1)[0];
    // The compiler selects the product to fuse, so a point within an ulp of the circle may differ.
    assert!(found.abs_diff(expected) <= 1, "{found} instead of {expected}");
}

#[test]
fn philox_normals_match() {
    let device = load("07_mcpi");
    let n = 200;
    let seed = 0x1234_5678_9abc_def0u64;
    let out = device.zeros::<f32>(4 * n);
    device.run(
        "philox_normal",
        [2, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(out).i32(n as i32).u64(seed),
    );
    let mut expected = Vec::new();
    for thread in 0..n as u32 {
        let mut c = [thread, 0, 0, 0];
        let mut k = [seed as u32, (seed >> 32) as u32];
        for _ in 0..10 {
            let p0 = u64::from(0xD251_1F53u32) * u64::from(c[0]);
            let p1 = u64::from(0xCD9E_8D57u32) * u64::from(c[2]);
            c = [
                (p1 >> 32) as u32 ^ c[1] ^ k[0],
                p1 as u32,
                (p0 >> 32) as u32 ^ c[3] ^ k[1],
                p0 as u32,
            ];
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        let unit = 2.328_306_4e-10f32;
        let u0 = f64::from((c[0] as f32 + 1.0) * unit);
        let u1 = f64::from(std::f32::consts::TAU * (c[1] as f32 * unit));
        let u2 = f64::from((c[2] as f32 + 1.0) * unit);
        let u3 = f64::from(std::f32::consts::TAU * (c[3] as f32 * unit));
        let (a, b) = ((-2.0 * u0.ln()).sqrt(), (-2.0 * u2.ln()).sqrt());
        expected.extend([a * u1.cos(), a * u1.sin(), b * u3.cos(), b * u3.sin()]);
    }
    assert_close(&device.download::<f32>(out, 4 * n), &expected, 2e-5, 2e-5);
}

#[test]
fn training_loop_matches_a_host_computation() {
    let device = load("08_mlp_train");
    const HIDDEN: usize = 64;
    let mut noise = Noise::new(8);
    let n = 12;
    let x = noise.reals(2 * n, -1.0, 1.0);
    let y: Vec<f32> = (0..n).map(|i| f32::from(x[2 * i] * x[2 * i + 1] > 0.0)).collect();
    let (w1, w2) = (noise.reals(2 * HIDDEN, -0.7, 0.7), noise.reals(HIDDEN, -0.3, 0.3));
    let b1 = vec![0f32; HIDDEN];
    let device_arrays = [&x, &y, &w1, &b1, &w2, &vec![0f32]].map(|values| device.upload(values));
    let loss = device.zeros::<f32>(1);
    let (epochs, rate) = (15, 0.2f32);
    let arguments = device_arrays
        .iter()
        .fold(ArgumentList::new(), |list, pointer| list.pointer(*pointer))
        .i32(n as i32)
        .i32(epochs)
        .f32(rate)
        .pointer(loss);
    device.run("mlp_train", [1, 1, 1], [HIDDEN as u32, 1, 1], arguments);

    let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
    let (x, y, mut w1, mut b1, mut w2, mut b2, rate) = (wide(&x), wide(&y), wide(&w1), wide(&b1), wide(&w2), 0f64, f64::from(rate));
    let mut total = 0.0;
    for _ in 0..epochs {
        total = 0.0;
        for i in 0..n {
            let (x0, x1) = (x[2 * i], x[2 * i + 1]);
            let a: Vec<f64> = (0..HIDDEN).map(|t| (w1[2 * t] * x0 + w1[2 * t + 1] * x1 + b1[t]).tanh()).collect();
            let sum: f64 = a.iter().zip(&w2).map(|(a, w)| a * w).sum();
            let d = 1.0 / (1.0 + (-(sum + b2)).exp()) - y[i];
            b2 -= rate * d;
            total += d * d;
            for t in 0..HIDDEN {
                let g = d * w2[t] * (1.0 - a[t] * a[t]);
                w2[t] -= rate * d * a[t];
                w1[2 * t] -= rate * g * x0;
                w1[2 * t + 1] -= rate * g * x1;
                b1[t] -= rate * g;
            }
        }
    }
    assert_close(&device.download::<f32>(device_arrays[2], 2 * HIDDEN), &w1, 1e-4, 1e-4);
    assert_close(&device.download::<f32>(device_arrays[4], HIDDEN), &w2, 1e-4, 1e-4);
    assert_close(&device.download::<f32>(loss, 1), &[total / n as f64], 1e-4, 1e-5);
}

#[test]
fn mandelbrot_is_exact_in_both_precisions() {
    let device = load("09_mandelbrot");
    let (w, h, most) = (70usize, 45usize, 100);
    let out = device.zeros::<i32>(w * h);
    // The list is not a parameter of the closure, because rustc 1.95 passes the same list to two calls of a closure if it is a constant
    // (rust-lang/rust#155241).
    let base = || ArgumentList::new().pointer(out).i32(w as i32).i32(h as i32);
    let (x0, y0, dx, dy) = (-2.1f32, -1.2f32, 0.045f32, 0.055f32);
    device.run(
        "mandel_f32",
        [5, 3, 1],
        [16, 16, 1],
        base().f32(x0).f32(y0).f32(dx).f32(dy).i32(most),
    );
    let expected: Vec<i32> = (0..w * h)
        .map(|at| {
            let (cx, cy) = (((at % w) as f32).mul_add(dx, x0), ((at / w) as f32).mul_add(dy, y0));
            let (mut a, mut b, mut aa, mut bb, mut i) = (0f32, 0f32, 0f32, 0f32, 0);
            while aa + bb < 4.0 && i < most {
                // Contracted as the compilers do: 2ab + cy is fused, and the squares are shared.
                let t = cx + (aa - bb);
                b = (a + a).mul_add(b, cy);
                a = t;
                (aa, bb) = (a * a, b * b);
                i += 1;
            }
            i
        })
        .collect();
    assert_eq!(device.download::<i32>(out, w * h), expected);

    let (x0, y0, dx, dy) = (f64::from(x0), f64::from(y0), f64::from(dx), f64::from(dy));
    device.run(
        "mandel_f64",
        [5, 3, 1],
        [16, 16, 1],
        base().f64(x0).f64(y0).f64(dx).f64(dy).i32(most),
    );
    let expected: Vec<i32> = (0..w * h)
        .map(|at| {
            let (cx, cy) = (((at % w) as f64).mul_add(dx, x0), ((at / w) as f64).mul_add(dy, y0));
            let (mut a, mut b, mut aa, mut bb, mut i) = (0f64, 0f64, 0f64, 0f64, 0);
            while aa + bb < 4.0 && i < most {
                let t = cx + (aa - bb);
                b = (a + a).mul_add(b, cy);
                a = t;
                (aa, bb) = (a * a, b * b);
                i += 1;
            }
            i
        })
        .collect();
    assert_eq!(device.download::<i32>(out, w * h), expected);
}

#[test]
fn softmax_and_layer_norm_match() {
    let device = load("12_softmax_layernorm");
    let (rows, columns) = (5usize, 77usize);
    let mut noise = Noise::new(12);
    let input = noise.reals(rows * columns, -4.0, 4.0);
    let (source, target) = (device.upload(&input), device.zeros::<f32>(rows * columns));
    device.run(
        "softmax",
        [rows as u32, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(columns as i32),
    );
    let mut expected = Vec::new();
    for row in input.chunks(columns) {
        let highest = row.iter().copied().fold(f32::MIN, f32::max);
        let powers: Vec<f64> = row.iter().map(|value| f64::from(value - highest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        expected.extend(powers.iter().map(|power| power / sum));
    }
    assert_close(&device.download::<f32>(target, rows * columns), &expected, 1e-5, 1e-7);

    let (gain, bias) = (noise.reals(columns, 0.5, 1.5), noise.reals(columns, -0.5, 0.5));
    let (gains, biases) = (device.upload(&gain), device.upload(&bias));
    let arguments = ArgumentList::new()
        .pointer(source)
        .pointer(gains)
        .pointer(biases)
        .pointer(target)
        .i32(columns as i32)
        .f32(1e-5);
    device.run("layernorm_gelu", [rows as u32, 1, 1], [32, 1, 1], arguments);
    let mut expected = Vec::new();
    for row in input.chunks(columns) {
        let mean = row.iter().copied().map(f64::from).sum::<f64>() / columns as f64;
        let square = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / columns as f64;
        let scale = 1.0 / (square - mean * mean + 1e-5).sqrt();
        expected.extend(row.iter().enumerate().map(|(at, value)| {
            let x = (f64::from(*value) - mean) * scale * f64::from(gain[at]) + f64::from(bias[at]);
            0.5 * x * (1.0 + error_function(x * std::f64::consts::FRAC_1_SQRT_2))
        }));
    }
    assert_close(&device.download::<f32>(target, rows * columns), &expected, 2e-5, 2e-6);
}

/// Returns erf by its Maclaurin series, with enough terms for |x| < 5.
fn error_function(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn n_body_accelerations_match() {
    let device = load("21_nbody");
    let n = 256;
    let bodies = Noise::new(21).reals(4 * n, -1.0, 1.0);
    let (p, a) = (device.upload(&bodies), device.zeros::<f32>(4 * n));
    device.run(
        "nbody",
        [2, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(p).pointer(a).i32(n as i32).f32(0.01),
    );
    let body = |i: usize| [0, 1, 2, 3].map(|k| f64::from(bodies[4 * i + k]));
    let mut expected = Vec::new();
    for i in 0..n {
        let me = body(i);
        let mut sum = [0f64; 3];
        for j in 0..n {
            let other = body(j);
            let d = [0, 1, 2].map(|k| other[k] - me[k]);
            let k = other[3] / (d.iter().map(|d| d * d).sum::<f64>() + f64::from(0.01f32)).powf(1.5);
            for axis in 0..3 {
                sum[axis] += d[axis] * k;
            }
        }
        expected.extend([sum[0], sum[1], sum[2], 0.0]);
    }
    assert_close(&device.download::<f32>(a, 4 * n), &expected, 1e-3, 2e-2);
}

#[test]
fn results_do_not_depend_on_the_number_of_host_threads() {
    let device = load("09_mandelbrot");
    let out = [device.zeros::<i32>(64 * 64), device.zeros::<i32>(64 * 64)];
    for (threads, out) in [1, 4].into_iter().zip(out) {
        let launch = Launch {
            threads: threads.try_into().expect("not zero"),
            ..Launch::new([8, 8, 1], [8, 8, 1])
        };
        let arguments = ArgumentList::new()
            .pointer(out)
            .i32(64)
            .i32(64)
            .f32(-2.0)
            .f32(-1.3)
            .f32(0.05)
            .f32(0.04)
            .i32(80);
        device.launch("mandel_f32", &launch, &arguments);
    }
    assert_eq!(device.download::<i32>(out[0], 64 * 64), device.download::<i32>(out[1], 64 * 64));
}
