//! Barriers and pipelines of libcu++, cooperative groups, parameters by address, SIMD in a word. Results must be exact.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

fn numbers(noise: &mut Noise, count: usize) -> Vec<i32> {
    (0..count).map(|_| noise.below(2000) as i32 - 1000).collect()
}

#[test]
fn barrier_objects_synchronise_and_let_threads_drop_out() {
    let device = load("cooperation");
    let input = numbers(&mut Noise::new(1), 256);
    let (source, out) = (device.upload(&input), device.zeros::<i32>(384));
    let arguments = ArgumentList::new().pointer(out).pointer(source);
    device.run("barrier_reverse", [1, 1, 1], [256, 1, 1], arguments);
    let mut expected: Vec<i32> = input.iter().rev().copied().collect();
    let mut values = expected[..128].to_vec();
    for _ in 0..3 {
        values = (0..128).map(|at| values[at] + values[(at + 1) % 128]).collect();
    }
    expected.extend(values);
    assert_eq!(device.download::<i32>(out, 384), expected);
}

#[test]
fn pipelines_bring_every_chunk_in_order() {
    let device = load("cooperation");
    for chunks in [1, 2, 3, 9] {
        let input = numbers(&mut Noise::new(2), 128 * chunks);
        let (source, out) = (device.upload(&input), device.zeros::<i32>(128));
        let arguments = ArgumentList::new().pointer(out).pointer(source).i32(chunks as i32);
        device.run("pipeline_sums", [1, 1, 1], [128, 1, 1], arguments);
        let expected: Vec<i32> = (0..128)
            .map(|thread| {
                (0..chunks).fold(0i32, |sum, chunk| {
                    sum.wrapping_mul(3).wrapping_add(input[chunk * 128 + thread * 7 % 128])
                })
            })
            .collect();
        assert_eq!(device.download::<i32>(out, 128), expected);
    }
}

#[test]
fn groups_reduce_scan_and_split_by_label() {
    let device = load("cooperation");
    let threads = 160;
    let input: Vec<i32> = numbers(&mut Noise::new(3), threads).iter().map(|value| value.abs()).collect();
    let (source, out, elected) = (device.upload(&input), device.zeros::<i32>(4 * threads), device.zeros::<i32>(1));
    let arguments = ArgumentList::new().pointer(out).pointer(elected).pointer(source);
    device.run("tiles", [1, 1, 1], [threads as u32, 1, 1], arguments);
    let found = device.download::<i32>(out, 4 * threads);
    for (thread, value) in input.iter().enumerate() {
        let (warp, lane) = (&input[thread / 32 * 32..][..32], thread % 32);
        // Counts the equal lanes of the warp, and those of them before this thread.
        let alike = |is: &dyn Fn(i32) -> bool| {
            let count = |lanes: &[i32]| lanes.iter().filter(|value| is(**value)).count() as i32;
            (count(warp), count(&warp[..lane]))
        };
        let (odd, odd_before) = alike(&|other| other % 2 == 1);
        let (same, same_before) = alike(&|other| other % 3 == value % 3);
        let expected = [
            input[thread / 8 * 8..][..8].iter().sum(),
            warp[..=lane].iter().sum(),
            if value % 2 == 1 { odd_before + 100 * odd } else { 0 },
            same + 100 * same_before,
        ];
        assert_eq!(found[4 * thread..][..4], expected, "thread {thread}");
    }
    // One of the odd threads of each warp adds the number of odd threads.
    let odd = input.iter().filter(|value| **value % 2 == 1).count() as i32;
    assert_eq!(device.download::<i32>(elected, 1), [odd]);
}

#[test]
fn parameters_are_reached_by_address() {
    let device = load("cooperation");
    let out = device.zeros::<f32>(40);
    let arguments = (0..16)
        .fold(ArgumentList::new(), |list, at| list.i32(at * at - 50))
        .f32(1.5)
        .pointer(out);
    device.run("by_address", [1, 1, 1], [40, 1, 1], arguments);
    let expected: Vec<f32> = (0..40).map(|thread| thread % 16).map(|at| (at * at - 50) as f32 * 1.5).collect();
    assert_eq!(device.download::<f32>(out, 40), expected);
}

/// Applies an operation to each byte of two words.
fn bytes(x: u32, y: u32, operation: impl Fn(u8, u8) -> u8) -> u32 {
    let [x, y] = [x, y].map(u32::to_le_bytes);
    u32::from_le_bytes([0, 1, 2, 3].map(|at: usize| operation(x[at], y[at])))
}

/// Applies an operation to both halves of two words, as signed numbers.
fn halves(x: u32, y: u32, operation: impl Fn(i16, i16) -> i16) -> u32 {
    let half = |shift: u32| u32::from(operation((x >> shift) as i16, (y >> shift) as i16) as u16) << shift;
    half(0) | half(16)
}

#[test]
fn narrow_integers_are_computed_side_by_side() {
    let device = load("cooperation");
    let n = 500;
    let mut noise = Noise::new(5);
    let edges = [
        0,
        u32::MAX,
        0x8000_8000,
        0x7fff_7fff,
        0x8080_8080,
        0x7f7f_7f7f,
        0x0001_ffff,
        0xff00_00ff,
    ];
    let word = |noise: &mut Noise| {
        if noise.below(3) == 0 {
            edges[noise.below(8) as usize]
        } else {
            noise.next() as u32
        }
    };
    let (a, b): (Vec<u32>, Vec<u32>) = (0..n).map(|_| (word(&mut noise), word(&mut noise))).unzip();
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<u32>(16 * n));
    let arguments = ArgumentList::new().pointer(out).pointer(da).pointer(db).i32(n as i32);
    device.run("words", blocks(n, 96), [96, 1, 1], arguments);
    let found = device.download::<u32>(out, 16 * n);
    for (at, (x, y)) in a.into_iter().zip(b).enumerate() {
        let signed = |operation: fn(i8, i8) -> i8| bytes(x, y, move |x, y| operation(x as i8, y as i8) as u8);
        let z = x ^ y;
        let third = halves(x, y, i16::wrapping_add);
        let expected = [
            bytes(x, y, u8::wrapping_add),
            bytes(x, y, u8::saturating_add),
            halves(x, y, i16::saturating_add),
            bytes(x, y, u8::abs_diff),
            bytes(x, y, |x, y| (u16::from(x) + u16::from(y)).div_ceil(2) as u8),
            bytes(x, y, |x, y| if x > y { 0xff } else { 0 }),
            halves(x, y, i16::max),
            bytes(x, y, u8::min),
            (0..4).map(|at| u32::from(x.to_le_bytes()[at].abs_diff(y.to_le_bytes()[at]))).sum(),
            signed(i8::saturating_sub),
            halves(x, y, |x, y| i16::from(x == y)),
            halves(x, 0, |x, _| x.saturating_abs()),
            halves(x, y, |x, y| ((u32::from(x as u16) + u32::from(y as u16)) / 2) as i16),
            halves(x, y, |x, y| x.max(y).max(0)),
            halves(third, z, |sum, z| sum.max(z).max(0)),
            (x as i32).max(y as i32).max(7) as u32,
        ];
        assert_eq!(found[16 * at..][..16], expected, "{x:08x} {y:08x}");
    }
}
