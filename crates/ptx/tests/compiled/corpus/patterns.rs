//! Reductions, scans, sorts, atomics, warp operations, memory spaces.

use sahasra_ptx::{ArgumentList, Launch};

use super::load;
use crate::device::{Noise, assert_close};

#[test]
fn a_barrier_met_from_two_sides_separates_store_and_load() {
    let device = load("barrier_layout");
    for threads in [32, 20, 17] {
        let out = device.zeros::<u32>(32);
        device.run("k", [1, 1, 1], [threads, 1, 1], ArgumentList::new().pointer(out));
        // Threads 16 and up store 100 + index. Then every thread reads the value of the thread 16 away.
        let expected: Vec<u32> = (0..32)
            .map(|i| {
                if i < threads && i < 16 && (i ^ 16) < threads {
                    100 + (i ^ 16)
                } else {
                    0
                }
            })
            .collect();
        assert_eq!(device.download::<u32>(out, 32), expected);
    }
}

#[test]
fn shared_memory_reduction_sums() {
    let device = load("02_reduce_shared");
    let n = 10_000;
    let input: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
    let (source, target) = (device.upload(&input), device.zeros::<f32>(4));
    device.run(
        "reduce_shared",
        [4, 1, 1],
        [256, 1, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(n),
    );
    let expected: Vec<f64> = (0..4usize)
        .map(|block| (0..n as usize).filter(|i| i / 256 % 4 == block).map(|i| f64::from(input[i])).sum())
        .collect();
    // The inputs are small integers, so every order of additions is exact.
    assert_close(&device.download::<f32>(target, 4), &expected, 0.0, 0.0);
}

#[test]
fn warp_shuffle_reduction_sums() {
    let device = load("03_reduce_warp");
    let input: Vec<f32> = (0..5000).map(|i| (i % 5) as f32).collect();
    let (source, target) = (device.upload(&input), device.zeros::<f32>(1));
    device.run(
        "reduce_warp",
        [3, 1, 1],
        [192, 1, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(5000),
    );
    assert_eq!(device.download::<f32>(target, 1), [input.iter().sum::<f32>()]);
}

#[test]
fn votes_matches_and_shuffles_follow_the_isa() {
    let device = load("03_reduce_warp");
    let mut noise = Noise::new(3);
    let threads = 160usize;
    let input: Vec<i32> = (0..threads).map(|i| if i < 32 { 3 } else { noise.below(12) as i32 - 4 }).collect();
    let (source, target) = (device.upload(&input), device.zeros::<u32>(threads));
    device.run(
        "warp_votes",
        [1, 1, 1],
        [threads as u32, 1, 1],
        ArgumentList::new().pointer(source).pointer(target),
    );
    let mut expected = Vec::new();
    for warp in input.chunks(32) {
        let ballot = (0..32).fold(0u32, |bits, lane| bits | u32::from(warp[lane] > 0) << lane);
        let mut r: Vec<u32> = (0..32).map(|lane| (ballot & ((1u32 << lane) - 1)).count_ones()).collect();
        let sum = warp.iter().fold(0u32, |sum, value| sum.wrapping_add(*value as u32));
        for lane in 0..32 {
            if warp.contains(&7) {
                r[lane] += 1000;
            }
            if ballot == u32::MAX {
                r[lane] += 2000;
            }
            r[lane] = r[lane].wrapping_add((0..32).fold(0, |bits, other| bits | u32::from(warp[other] == warp[lane]) << other));
            r[lane] ^= sum;
        }
        let before = r.clone();
        for lane in 0..32usize {
            let up = if lane >= 2 { before[lane - 2] } else { before[lane] };
            let within = before[lane & !7 | 3];
            r[lane] = before[lane].wrapping_add(before[lane ^ 1]).wrapping_add(up).wrapping_add(within);
        }
        let odd = warp.iter().filter(|value| *value & 1 != 0).count() as u32;
        for lane in 0..32 {
            if warp[lane] & 1 != 0 {
                r[lane] = r[lane].wrapping_add(odd);
            }
            let first = if ballot == 0 { 0 } else { ballot.trailing_zeros() + 1 };
            let total = r[lane]
                .wrapping_add(first)
                .wrapping_add(ballot.leading_zeros())
                .wrapping_add(r[lane].reverse_bits())
                .wrapping_add(r[lane]);
            expected.push(total);
        }
    }
    assert_eq!(device.download::<u32>(target, threads), expected);
}

#[test]
fn histogram_counts_every_byte() {
    let device = load("04_histogram");
    let mut noise = Noise::new(4);
    let data: Vec<u8> = (0..20_000).map(|_| (noise.below(256) & noise.below(256)) as u8).collect();
    let mut expected = vec![0u32; 256];
    for byte in &data {
        expected[usize::from(*byte)] += 1;
    }
    for threads in [1, 4] {
        let (source, target) = (device.upload(&data), device.zeros::<u32>(256));
        let launch = Launch {
            threads: threads.try_into().expect("not zero"),
            ..Launch::new([6, 1, 1], [128, 1, 1])
        };
        device.launch(
            "histogram",
            &launch,
            &ArgumentList::new().pointer(source).pointer(target).i32(data.len() as i32),
        );
        assert_eq!(device.download::<u32>(target, 256), expected);
    }
}

#[test]
fn atomics_return_the_old_value_and_store_the_new_one() {
    let device = load("04_histogram");
    let threads = 70usize;
    let mut a = vec![50, 20, 0, 0, -1, 0, 0, 0, 0, 0];
    a.resize(10 + threads, 0);
    let (ints, longs, single, double) = (
        device.upload(&a),
        device.upload(&[0u64, 0, 0]),
        device.zeros::<f32>(1),
        device.zeros::<f64>(1),
    );
    device.run(
        "atomics_all",
        [1, 1, 1],
        [threads as u32, 1, 1],
        ArgumentList::new().pointer(ints).pointer(longs).pointer(single).pointer(double),
    );
    let found = device.download::<i32>(ints, 10 + threads);
    assert_eq!(found[0], 0);
    assert_eq!(found[1], 69);
    assert!((0..70).contains(&found[2]));
    assert_eq!(found[4], 0, "and of all indices");
    assert_eq!(found[5], 127, "or of all indices");
    assert_eq!(found[6], (0..70).fold(0, |x, t| x ^ t));
    assert_eq!(found[7], (0..70).fold(0, |x, _| if x >= 5 { 0 } else { x + 1 }));
    assert_eq!(found[8], (0..70).fold(0, |x: i32, _| if x == 0 || x > 5 { 5 } else { x - 1 }));
    assert_eq!(found[9], -(0..70).sum::<i32>());
    let longs = device.download::<u64>(longs, 3);
    assert_eq!(longs[0], (0..70).sum::<u64>());
    assert_eq!(longs[2], (0..70).fold(0u64, |x, _| x.wrapping_mul(3).wrapping_add(1)));
    assert_eq!(device.download::<f32>(single, 1), [105.0]);
    assert_eq!(device.download::<f64>(double, 1), [175.0]);
}

#[test]
fn bitonic_sort_sorts_each_block() {
    let device = load("10_bitonic");
    for size in [32usize, 128, 1024] {
        let mut noise = Noise::new(10);
        let mut data: Vec<i32> = (0..2 * size).map(|_| noise.next() as i32 >> 16).collect();
        let pointer = device.upload(&data);
        device.run_shared("bitonic", 2, size as u32, 4 * size as u32, ArgumentList::new().pointer(pointer));
        data.chunks_mut(size).for_each(<[i32]>::sort_unstable);
        assert_eq!(device.download::<i32>(pointer, 2 * size), data);
    }
}

#[test]
fn block_scan_is_exclusive_and_reports_totals() {
    let device = load("11_scan");
    let n = 1000usize;
    let mut noise = Noise::new(11);
    let input: Vec<i32> = (0..n).map(|_| noise.below(100) as i32).collect();
    let (source, target, sums) = (device.upload(&input), device.zeros::<i32>(n), device.zeros::<i32>(4));
    let arguments = ArgumentList::new().pointer(source).pointer(target).pointer(sums).i32(n as i32);
    device.run_shared("scan_block", 4, 128, 1024, arguments);
    let mut expected = Vec::new();
    let mut totals = Vec::new();
    for block in input.chunks(256) {
        let mut sum = 0;
        for value in block {
            expected.push(sum);
            sum += value;
        }
        totals.push(sum);
    }
    assert_eq!(device.download::<i32>(target, n), expected);
    assert_eq!(device.download::<i32>(sums, 4), totals);
}

#[test]
fn constant_and_dynamic_shared_memory_are_initialised_and_placed() {
    let device = load("16_dyn_shared_const");
    let n = 96usize;
    let input = Noise::new(16).reals(n, -1.0, 1.0);
    let (source, target) = (device.upload(&input), device.zeros::<f32>(n));
    device.run_shared(
        "dynsh",
        1,
        n as u32,
        12 * n as u32,
        ArgumentList::new().pointer(source).pointer(target).i32(n as i32),
    );
    let expected: Vec<f64> = (0..n)
        .map(|t| {
            let sum: f64 = (0..8).map(|i| (i + 1) as f64 * f64::from(input[(t + i) % n])).sum();
            sum + 2.0 * f64::from(input[n - 1 - t]) + [1.0, 2.0, 3.0, 4.0][t & 3]
        })
        .collect();
    assert_close(&device.download::<f32>(target, n), &expected, 1e-5, 1e-5);
    let (counter, bytes) = device.module.symbol("counter").expect("a variable");
    assert_eq!((bytes, device.download::<i32>(counter, 1)), (4, vec![6]));
}

#[test]
fn local_arrays_belong_to_their_thread() {
    let device = load("17_local_array");
    let threads = 70usize;
    let mut noise = Noise::new(17);
    let mut input: Vec<i32> = (0..32 * threads).map(|_| noise.below(1000) as i32).collect();
    let (source, target) = (device.upload(&input), device.zeros::<i32>(32 * threads));
    device.run(
        "local_array",
        [1, 1, 1],
        [threads as u32, 1, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(5),
    );
    let mut expected = Vec::new();
    for mine in input.chunks_mut(32) {
        mine.sort_unstable();
        expected.extend((0..32).map(|i| mine[(i + 5) & 31]));
    }
    assert_eq!(device.download::<i32>(target, 32 * threads), expected);
}

#[test]
fn interpreted_programs_diverge_and_agree() {
    let device = load("19_switch");
    let mut noise = Noise::new(19);
    let code: Vec<i32> = (0..300).map(|_| noise.below(12) as i32).filter(|op| *op != 9).collect();
    let threads = 128usize;
    let (source, target) = (device.upload(&code), device.zeros::<i32>(threads));
    // The kernel does not get the last element, because an operand past the end would be a fault.
    let n = code.len() as i32 - 1;
    device.run(
        "switch_vm",
        [2, 1, 1],
        [64, 1, 1],
        ArgumentList::new().pointer(source).pointer(target).i32(n),
    );
    let expected: Vec<i32> = (0..threads as i32)
        .map(|thread| {
            let (mut a, mut b, mut pc) = (thread, 1i32, 0i32);
            while pc < n {
                let op = code[pc as usize];
                pc += 1;
                match op {
                    0 => a = a.wrapping_add(b),
                    1 => a = a.wrapping_sub(b),
                    2 => a = a.wrapping_mul(b),
                    3 => (a, b) = (b, a),
                    4 => {
                        b = code[pc as usize];
                        pc += 1;
                    }
                    5 => a ^= b,
                    6 => pc += a & 1,
                    7 => a >>= 1,
                    8 => b = b.wrapping_mul(3).wrapping_add(1),
                    _ => a = a.wrapping_neg(),
                }
            }
            a
        })
        .collect();
    assert_eq!(device.download::<i32>(target, threads), expected);
}

#[test]
fn vector_loads_and_stores_keep_their_elements_apart() {
    let device = load("20_vecload");
    let n = 100usize;
    let mut noise = Noise::new(20);
    let a = noise.reals(4 * n, -1.0, 1.0);
    let c: Vec<i32> = (0..2 * n).map(|_| noise.next() as i32).collect();
    let e: Vec<f64> = (0..2 * n).map(|_| f64::from(noise.real(-2.0, 2.0))).collect();
    let g: Vec<u8> = (0..4 * n).map(|_| noise.next() as u8).collect();
    let s: Vec<i16> = (0..2 * n).map(|_| noise.next() as i16).collect();
    let (da, dc, de, dg, ds) = (
        device.upload(&a),
        device.upload(&c),
        device.upload(&e),
        device.upload(&g),
        device.upload(&s),
    );
    let (b, d, f, h) = (
        device.zeros::<f32>(4 * n),
        device.zeros::<i32>(4 * n),
        device.zeros::<f64>(2 * n),
        device.zeros::<u8>(4 * n),
    );
    let arguments = [da, b, dc, d, de, f, dg, h, ds]
        .into_iter()
        .fold(ArgumentList::new(), ArgumentList::pointer)
        .i32(n as i32);
    device.run("veccopy", [2, 1, 1], [64, 1, 1], arguments);
    for i in 0..n {
        let mut v = a[4 * i..4 * i + 4].to_vec();
        v[0] += v[3];
        assert_eq!(device.download::<f32>(b.offset(16 * i as u64), 4), v);
        let q = [c[2 * i] ^ c[2 * i + 1], c[2 * i + 1]];
        let found = device.download::<i32>(d.offset(8 * i as u64), 2);
        // Every thread also races on the first two integers.
        assert_eq!(if i == 0 { found[1] } else { found[0] }, if i == 0 { q[1] } else { q[0] });
        assert_eq!(found[1], q[1]);
        assert_eq!(
            device.download::<i32>(d.offset(8 * (i + n) as u64), 2),
            [i32::from(s[2 * i]), i32::from(s[2 * i + 1])]
        );
        assert_eq!(
            device.download::<f64>(f.offset(16 * i as u64), 2),
            [e[2 * i] * e[2 * i + 1], e[2 * i + 1]]
        );
        let u = &g[4 * i..4 * i + 4];
        assert_eq!(
            device.download::<u8>(h.offset(4 * i as u64), 4),
            [u[0].wrapping_add(u[1]), u[1], u[3] >> 1, u[3]]
        );
    }
    assert_eq!(device.download::<i32>(d, 1)[0], c[1].wrapping_add(1));
}

#[test]
fn hashing_finds_the_same_minimum() {
    let device = load("22_hash_sha256");
    const K: [u32; 64] = {
        let mut k = [0u32; 64];
        let given = [
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
            0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        ];
        let mut i = 0;
        while i < 16 {
            k[i] = given[i];
            i += 1;
        }
        k
    };
    let header: Vec<u32> = (0..15).map(|i| 0x9e37_79b9u32.wrapping_mul(i + 1)).collect();
    let (source, best) = (device.upload(&header), device.upload(&[u32::MAX]));
    let iterations = 3;
    device.run(
        "sha256_mine",
        [2, 1, 1],
        [80, 1, 1],
        ArgumentList::new().pointer(source).pointer(best).i32(iterations),
    );
    let mut expected = u32::MAX;
    for id in 0..160u32 {
        for q in 0..iterations as u32 {
            let mut w = header.clone();
            w.push(id.wrapping_mul(iterations as u32).wrapping_add(q));
            let mut v = [
                0x6a09e667u32,
                0xbb67ae85,
                0x3c6ef372,
                0xa54ff53a,
                0x510e527f,
                0x9b05688c,
                0x1f83d9ab,
                0x5be0cd19,
            ];
            for i in 0..64 {
                let [a, b, c, d, e, f, g, h] = v;
                let t1 = h
                    .wrapping_add(e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25))
                    .wrapping_add((e & f) ^ (!e & g))
                    .wrapping_add(K[i])
                    .wrapping_add(w[i & 15]);
                let t2 = (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22)).wrapping_add((a & b) ^ (a & c) ^ (b & c));
                v = [t1.wrapping_add(t2), a, b, c, d.wrapping_add(t1), e, f, g];
                let (s0, s1) = (w[(i + 1) & 15], w[(i + 14) & 15]);
                w[i & 15] = w[i & 15]
                    .wrapping_add(s0.rotate_right(7) ^ s0.rotate_right(18) ^ (s0 >> 3))
                    .wrapping_add(w[(i + 9) & 15])
                    .wrapping_add(s1.rotate_right(17) ^ s1.rotate_right(19) ^ (s1 >> 10));
            }
            expected = expected.min(v[0]);
        }
    }
    assert_eq!(device.download::<u32>(best, 1), [expected]);
}
