//! Sorting, selection and counting. Results must be exact.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

fn integers(seed: u64, count: usize, bound: u64) -> Vec<i32> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| noise.below(bound) as i32).collect()
}

#[test]
fn radix_sort_sorts_each_block() {
    let device = load("sorting");
    let mut noise = Noise::new(1);
    let mut keys: Vec<u32> = (0..512).map(|k| noise.next() as u32 >> (k % 30)).collect();
    let pointer = device.upload(&keys);
    device.run("radix_sort", [2, 1, 1], [256, 1, 1], ArgumentList::new().pointer(pointer));
    keys.chunks_mut(256).for_each(<[u32]>::sort_unstable);
    assert_eq!(device.download::<u32>(pointer, 512), keys);
}

#[test]
fn merging_runs_sorts() {
    let device = load("sorting");
    let n = 1000;
    let values = integers(2, n, 300);
    let (mut from, mut to) = (device.upload(&values), device.zeros::<i32>(n));
    let mut run = 1;
    while run < n {
        device.run(
            "merge_runs",
            blocks(n, 128),
            [128, 1, 1],
            ArgumentList::new().pointer(from).pointer(to).i32(run as i32).i32(n as i32),
        );
        std::mem::swap(&mut from, &mut to);
        run *= 2;
    }
    let mut expected = values;
    expected.sort_unstable();
    assert_eq!(device.download::<i32>(from, n), expected);
}

#[test]
fn scan_over_blocks_is_exclusive_and_complete() {
    let device = load("sorting");
    let n = 1000;
    let values = integers(3, n, 100);
    let (input, out, totals) = (device.upload(&values), device.zeros::<i32>(n), device.zeros::<i32>(8));
    device.run_shared(
        "scan_blocks",
        8,
        128,
        512,
        ArgumentList::new().pointer(input).pointer(out).pointer(totals).i32(n as i32),
    );
    device.run(
        "add_offsets",
        [8, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(out).pointer(totals).i32(n as i32),
    );
    let expected: Vec<i32> = (0..n).map(|end| values[..end].iter().sum()).collect();
    assert_eq!(device.download::<i32>(out, n), expected);
}

#[test]
fn compaction_keeps_the_elements_that_pass() {
    let device = load("sorting");
    let n = 777;
    let values = integers(4, n, 10_000);
    let (input, out, count) = (device.upload(&values), device.zeros::<i32>(n), device.zeros::<i32>(1));
    device.run(
        "compact",
        blocks(n, 96),
        [96, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).pointer(count).i32(n as i32),
    );
    let mut expected: Vec<i32> = values.into_iter().filter(|value| value % 3 == 0).collect();
    assert_eq!(device.download::<i32>(count, 1), [expected.len() as i32]);
    let mut found = device.download::<i32>(out, expected.len());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn histogram_by_equal_lanes_counts() {
    let device = load("sorting");
    let n = 1000;
    let values: Vec<u8> = integers(5, n, 40).into_iter().map(|value| (value * value % 256) as u8).collect();
    let (input, bins) = (device.upload(&values), device.zeros::<u32>(256));
    device.run(
        "histogram_match",
        blocks(n, 96),
        [96, 1, 1],
        ArgumentList::new().pointer(input).pointer(bins).i32(n as i32),
    );
    let mut expected = vec![0u32; 256];
    values.iter().for_each(|value| expected[usize::from(*value)] += 1);
    assert_eq!(device.download::<u32>(bins, 256), expected);
}

#[test]
fn top_k_finds_the_largest_of_each_row() {
    let device = load("sorting");
    let (rows, columns) = (5, 300);
    let values = Noise::new(6).reals(rows * columns, -50.0, 50.0);
    let (input, out) = (device.upload(&values), device.zeros::<f32>(rows * 8));
    device.run(
        "top_k",
        [rows as u32, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(columns as i32),
    );
    let expected: Vec<f32> = values
        .chunks(columns)
        .flat_map(|row| {
            let mut row = row.to_vec();
            row.sort_by(|a, b| b.total_cmp(a));
            row.truncate(8);
            row
        })
        .collect();
    assert_eq!(device.download::<f32>(out, rows * 8), expected);
}

#[test]
fn run_lengths_are_found_in_order() {
    let device = load("sorting");
    let mut noise = Noise::new(7);
    let mut text: Vec<u8> = Vec::new();
    while text.len() < 500 {
        text.extend(vec![noise.below(3) as u8; noise.below(40) as usize]);
    }
    let (input, starts, count) = (device.upload(&text), device.zeros::<u32>(text.len()), device.zeros::<i32>(1));
    device.run(
        "run_lengths",
        [1, 1, 1],
        [32, 1, 1],
        ArgumentList::new()
            .pointer(input)
            .pointer(starts)
            .pointer(count)
            .i32(text.len() as i32),
    );
    let mut expected: Vec<u32> = Vec::new();
    for (at, byte) in text.iter().enumerate() {
        if at == 0 || text[at - 1] != *byte {
            expected.push((at as u32) << 8 | u32::from(*byte));
        }
    }
    assert_eq!(device.download::<i32>(count, 1), [expected.len() as i32]);
    assert_eq!(device.download::<u32>(starts, expected.len()), expected);
}

#[test]
fn warp_reductions_match() {
    let device = load("sorting");
    let n = 250;
    let mut noise = Noise::new(8);
    let values: Vec<u32> = (0..n).map(|_| noise.next() as u32).collect();
    let (input, out) = (device.upload(&values), device.zeros::<u32>(8 * 6));
    device.run(
        "reduce_redux",
        [4, 1, 1],
        [64, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(n),
    );
    let mut padded = values;
    padded.resize(256, 0);
    let expected: Vec<u32> = padded
        .chunks(32)
        .flat_map(|warp| {
            let sum = warp.iter().fold(0u32, |sum, value| sum.wrapping_add(*value));
            let all = warp
                .iter()
                .enumerate()
                .fold(u32::MAX, |all, (lane, value)| all & (value | 1 << lane));
            let most = warp.iter().map(|value| *value as i32).max().unwrap_or(0);
            let any = warp.iter().fold(0, |any, value| any | value);
            let odd = warp.iter().fold(0, |odd, value| odd ^ value);
            [sum, warp.iter().copied().min().unwrap_or(0), all, most as u32, any, odd]
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 48), expected);
}

#[test]
fn named_barriers_pair_producers_with_consumers() {
    let device = load("sorting");
    let rounds = 9;
    let mut noise = Noise::new(9);
    let values: Vec<u32> = (0..64 * rounds).map(|_| noise.next() as u32).collect();
    let (input, out) = (device.upload(&values), device.zeros::<u32>(64));
    device.run(
        "producer_consumer",
        [1, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(rounds as i32),
    );
    let expected: Vec<u32> = (0..64)
        .map(|t| {
            (0..rounds).fold(0u32, |sum, r| {
                let made = values[r * 64 + 63 - t].wrapping_mul(3).wrapping_add(r as u32);
                sum.wrapping_add(made ^ r as u32)
            })
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 64), expected);
}
