//! Neural networks, images and option prices: functions that are approximate on a GPU too.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::{Noise, assert_close};

/// Returns the error function to 1e-12: by its series for small arguments, and its continued fraction for large ones.
fn error_function(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-17 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let y = x.abs();
        let fraction = (1..=60).rev().fold(0.0, |fraction, k| f64::from(k) / 2.0 / (y + fraction));
        x.signum() * (1.0 - (-y * y).exp() / std::f64::consts::PI.sqrt() / (y + fraction))
    }
}

#[test]
fn attention_with_running_softmax_matches() {
    let device = load("numeric");
    let n = 21;
    let mut noise = Noise::new(1);
    let mut matrix = || noise.reals(n * 32, -1.5, 1.5);
    let (q, k, v) = (matrix(), matrix(), matrix());
    let (dq, dk, dv, out) = (device.upload(&q), device.upload(&k), device.upload(&v), device.zeros::<f32>(n * 32));
    let scale = 0.176_776_7f32;
    device.run(
        "attention",
        [6, 1, 1],
        [128, 1, 1],
        ArgumentList::new()
            .pointer(dq)
            .pointer(dk)
            .pointer(dv)
            .pointer(out)
            .i32(n as i32)
            .f32(scale),
    );
    let mut expected = Vec::new();
    for query in 0..n {
        let weights: Vec<f64> = (0..=query)
            .map(|j| {
                let dot: f64 = (0..32).map(|f| f64::from(q[query * 32 + f]) * f64::from(k[j * 32 + f])).sum();
                (dot * f64::from(scale)).exp()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        expected.extend((0..32).map(|f| {
            weights
                .iter()
                .enumerate()
                .map(|(j, weight)| weight * f64::from(v[j * 32 + f]))
                .sum::<f64>()
                / total
        }));
    }
    assert_close(&device.download::<f32>(out, n * 32), &expected, 1e-5, 1e-6);
}

#[test]
fn rms_norm_matches() {
    let device = load("numeric");
    let (rows, n) = (3, 200);
    let mut noise = Noise::new(2);
    let (input, weight) = (noise.reals(rows * n, -2.0, 2.0), noise.reals(n, 0.5, 1.5));
    let (din, dweight, out) = (device.upload(&input), device.upload(&weight), device.zeros::<f32>(rows * n));
    device.run(
        "rms_norm",
        [rows as u32, 1, 1],
        [64, 1, 1],
        ArgumentList::new().pointer(din).pointer(dweight).pointer(out).i32(n as i32),
    );
    let expected: Vec<f64> = input
        .chunks(n)
        .flat_map(|row| {
            let square: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            let scale = 1.0 / (square / n as f64 + 1e-5).sqrt();
            row.iter()
                .zip(&weight)
                .map(|(value, weight)| f64::from(*value) * scale * f64::from(*weight))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_close(&device.download::<f32>(out, rows * n), &expected, 2e-6, 1e-6);
}

#[test]
fn gelu_matches_in_both_forms() {
    let device = load("numeric");
    let n = 400;
    let input: Vec<f32> = (0..n).map(|k| (k as f32 - 200.0) * 0.03).collect();
    let (din, exact, fast) = (device.upload(&input), device.zeros::<f32>(n), device.zeros::<f32>(n));
    device.run(
        "gelu",
        blocks(n, 128),
        [128, 1, 1],
        ArgumentList::new().pointer(din).pointer(exact).pointer(fast).i32(n as i32),
    );
    let of = |function: fn(f64) -> f64| -> Vec<f64> { input.iter().map(|x| function(f64::from(*x))).collect() };
    assert_close(
        &device.download::<f32>(exact, n),
        &of(|x| 0.5 * x * (1.0 + error_function(x * 0.5f64.sqrt()))),
        1e-6,
        1e-6,
    );
    let tanh = |x: f64| 0.5 * x * (1.0 + (0.797_884_56 * (x + 0.044_715 * x * x * x)).tanh());
    assert_close(&device.download::<f32>(fast, n), &of(tanh), 1e-6, 1e-6);
}

#[test]
fn option_prices_match() {
    let device = load("numeric");
    let n = 150;
    let mut noise = Noise::new(4);
    let (price, strike, years) = (noise.reals(n, 5.0, 30.0), noise.reals(n, 1.0, 60.0), noise.reals(n, 0.25, 8.0));
    let (dp, ds, dy) = (device.upload(&price), device.upload(&strike), device.upload(&years));
    let (call, put) = (device.zeros::<f32>(n), device.zeros::<f32>(n));
    device.run(
        "black_scholes",
        blocks(n, 64),
        [64, 1, 1],
        ArgumentList::new()
            .pointer(dp)
            .pointer(ds)
            .pointer(dy)
            .f32(0.02)
            .f32(0.3)
            .pointer(call)
            .pointer(put)
            .i32(n as i32),
    );
    let below = |x: f64| 0.5 * (1.0 + error_function(x / 2f64.sqrt()));
    let expected: Vec<[f64; 2]> = (0..n)
        .map(|i| {
            let (s, k, t) = (f64::from(price[i]), f64::from(strike[i]), f64::from(years[i]));
            let (r, v) = (f64::from(0.02f32), f64::from(0.3f32));
            let d1 = ((s / k).ln() + (r + 0.5 * v * v) * t) / (v * t.sqrt());
            let d2 = d1 - v * t.sqrt();
            let now = k * (-r * t).exp();
            [s * below(d1) - now * below(d2), now * below(-d2) - s * below(-d1)]
        })
        .collect();
    let column = |at: usize| -> Vec<f64> { expected.iter().map(|pair| pair[at]).collect() };
    assert_close(&device.download::<f32>(call, n), &column(0), 1e-5, 2e-5);
    assert_close(&device.download::<f32>(put, n), &column(1), 1e-5, 2e-5);
}

#[test]
fn perlin_noise_matches() {
    let device = load("numeric");
    let (w, h) = (30usize, 20usize);
    let mut noise = Noise::new(5);
    let table: Vec<i32> = (0..256).map(|_| noise.below(256) as i32).collect();
    let (dtable, out) = (device.upload(&table), device.zeros::<f32>(w * h));
    device.run(
        "perlin",
        [4, 3, 1],
        [8, 8, 1],
        ArgumentList::new()
            .pointer(dtable)
            .pointer(out)
            .i32(w as i32)
            .i32(h as i32)
            .f32(0.23),
    );
    let at = |index: i32| table[(index & 255) as usize];
    let directions = |hash: i32, x: f64, y: f64, z: f64| {
        // The twelve edges of a cube, of which four occur twice.
        match hash & 15 {
            0 => x + y,
            1 => -x + y,
            2 => x - y,
            3 => -x - y,
            4 => x + z,
            5 => -x + z,
            6 => x - z,
            7 => -x - z,
            8 => y + z,
            9 => -y + z,
            10 => y - z,
            11 => -y - z,
            12 => y + x,
            13 => -y + z,
            14 => y - x,
            _ => -y - z,
        }
    };
    let fade = |t: f64| t * t * t * (t * (t * 6.0 - 15.0) + 10.0);
    let expected: Vec<f64> = (0..w * h)
        .map(|pixel| {
            let (x, y) = ((pixel % w) as f32 * 0.23, (pixel / w) as f32 * 0.23);
            let (cx, cy) = (x.floor() as i32, y.floor() as i32);
            let (x, y, z) = (f64::from(x - x.floor()), f64::from(y - y.floor()), f64::from(0.37f32));
            let mut sum = 0.0;
            for corner in 0..8i32 {
                let (i, j, k) = (corner & 1, corner >> 1 & 1, corner >> 2);
                let hash = at(at(at(cx + i) + cy + j) + k);
                let weight = |d: i32, t: f64| if d == 1 { fade(t) } else { 1.0 - fade(t) };
                let value = directions(hash, x - f64::from(i), y - f64::from(j), z - f64::from(k));
                sum += weight(i, x) * weight(j, y) * weight(k, z) * value;
            }
            sum
        })
        .collect();
    assert_close(&device.download::<f32>(out, w * h), &expected, 1e-4, 1e-5);
}

#[test]
fn rays_hit_the_nearest_sphere() {
    let device = load("numeric");
    let (w, h) = (40usize, 30usize);
    let spheres = [0.0f32, 0.0, 5.0, 1.0, 1.0, 0.5, 6.0, 1.5, -1.5, -0.4, 4.0, 0.6, 0.2, 0.1, 3.0, 0.2];
    let (dspheres, hit, depth) = (device.upload(&spheres), device.zeros::<i32>(w * h), device.zeros::<f32>(w * h));
    device.run(
        "ray_spheres",
        [5, 4, 1],
        [8, 8, 1],
        ArgumentList::new()
            .pointer(dspheres)
            .i32(4)
            .pointer(hit)
            .pointer(depth)
            .i32(w as i32)
            .i32(h as i32),
    );
    let (hit, depth) = (device.download::<i32>(hit, w * h), device.download::<f32>(depth, w * h));
    let mut sure = 0;
    for at in 0..w * h {
        let mut d = [(at % w) as f64, (at / w) as f64, 1.0];
        d[0] = (d[0] + 0.5) / w as f64 - 0.5;
        d[1] = (d[1] + 0.5) / h as f64 - 0.5;
        let length = d.iter().map(|x| x * x).sum::<f64>().sqrt();
        let hits: Vec<(f64, f64, i32)> = spheres
            .chunks(4)
            .zip(0..)
            .map(|(s, index)| {
                let dot: f64 = (0..3).map(|k| d[k] / length * f64::from(s[k])).sum();
                let square: f64 = (0..3).map(|k| f64::from(s[k]).powi(2)).sum::<f64>() - f64::from(s[3]).powi(2);
                let inside = dot * dot - square;
                (dot - inside.max(0.0).sqrt(), inside, index)
            })
            .collect();
        // In single precision, either result is correct for a ray that grazes a sphere.
        if hits.iter().any(|(_, inside, _)| inside.abs() < 1e-4) {
            continue;
        }
        sure += 1;
        let nearest = hits
            .iter()
            .filter(|(t, inside, _)| *inside > 0.0 && *t > 0.0)
            .min_by(|a, b| a.0.total_cmp(&b.0));
        match nearest {
            None => assert_eq!(hit[at], -1),
            Some((t, _, index)) => {
                assert_eq!(hit[at], *index);
                assert!((f64::from(depth[at]) - t).abs() < 2e-3 * t, "{} instead of {t}", depth[at]);
            }
        }
    }
    assert!(sure > w * h * 9 / 10);
}
