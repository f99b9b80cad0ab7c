//! Wide and random integers. Results must be exact.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

fn words(seed: u64, count: usize) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    // Many words have all bits set, so that carries propagate far.
    (0..count)
        .map(|_| if noise.below(3) == 0 { u32::MAX } else { noise.next() as u32 })
        .collect()
}

#[test]
fn carry_chains_multiply_256_bits() {
    let device = load("integers");
    let n = 70;
    let (a, b) = (words(1, 8 * n), words(2, 8 * n));
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<u32>(16 * n));
    device.run(
        "multiply_256",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().pointer(da).pointer(db).pointer(out).i32(n as i32),
    );
    let mut expected = Vec::new();
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        let mut product = [0u32; 16];
        for (i, x) in a.iter().enumerate() {
            let mut carry = 0u64;
            for (j, y) in b.iter().enumerate() {
                let sum = u64::from(*x) * u64::from(*y) + u64::from(product[i + j]) + carry;
                product[i + j] = sum as u32;
                carry = sum >> 32;
            }
            product[i + 8] = carry as u32;
        }
        expected.extend(product);
    }
    assert_eq!(device.download::<u32>(out, 16 * n), expected);
}

#[test]
fn arithmetic_in_128_bits_matches() {
    let device = load("integers");
    let n = 60;
    let (a, b) = (words(3, 4 * n), words(4, 4 * n));
    let (da, db) = (device.upload(&a), device.upload(&b));
    let (sums, products) = (device.zeros::<u32>(4 * n), device.zeros::<u32>(4 * n));
    device.run(
        "add_128",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new()
            .pointer(da)
            .pointer(db)
            .pointer(sums)
            .pointer(products)
            .i32(n as i32),
    );
    let wide = |words: &[u32]| words.iter().rev().fold(0u128, |value, word| value << 32 | u128::from(*word));
    let narrow = |value: u128| (0..4).map(move |k| (value >> (32 * k)) as u32);
    let of = |operation: fn(u128, u128) -> u128| -> Vec<u32> {
        a.chunks(4)
            .zip(b.chunks(4))
            .flat_map(|(a, b)| narrow(operation(wide(a), wide(b))))
            .collect()
    };
    assert_eq!(device.download::<u32>(sums, 4 * n), of(|a, b| a.wrapping_sub(b.wrapping_mul(3))));
    assert_eq!(device.download::<u32>(products, 4 * n), of(u128::wrapping_mul));
}

#[test]
fn philox_and_xorwow_match() {
    let device = load("integers");
    let n = 300;
    let out = device.zeros::<u32>(4 * n);
    device.run(
        "philox4x32",
        blocks(n, 64),
        [64, 1, 1],
        ArgumentList::new().u32(0xdead).pointer(out).i32(n as i32),
    );
    let expected: Vec<u32> = (0..n as u32)
        .flat_map(|i| {
            let (mut c, mut k) = ([i, 0, 7, 9], [0xdeadu32, !0xdead]);
            for _ in 0..10 {
                let (left, right) = (0xd251_1f53u64 * u64::from(c[0]), 0xcd9e_8d57u64 * u64::from(c[2]));
                c = [
                    (right >> 32) as u32 ^ c[1] ^ k[0],
                    right as u32,
                    (left >> 32) as u32 ^ c[3] ^ k[1],
                    left as u32,
                ];
                k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
            }
            c
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 4 * n), expected);

    let (n, count) = (50, 20);
    let out = device.zeros::<u32>(n * count);
    device.run(
        "xorwow",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().u32(99).pointer(out).i32(n as i32).i32(count as i32),
    );
    let found = device.download::<u32>(out, n * count);
    for i in 0..n {
        let mut v = vec![99 ^ i as u32, 362_436_069, 521_288_629, 88_675_123, 5_783_321];
        let mut d = 6_615_241u32;
        for k in 0..count {
            let t = v[0] ^ v[0] >> 2;
            let last = v[4];
            v.remove(0);
            v.push(last ^ last << 4 ^ t ^ t << 1);
            d = d.wrapping_add(362_437);
            assert_eq!(found[k * n + i], v[4].wrapping_add(d));
        }
    }
}

#[test]
fn mersenne_twister_gives_the_published_numbers() {
    let device = load("integers");
    let out = device.zeros::<u32>(624 * 2 * 2);
    device.run(
        "mersenne_twister",
        [2, 1, 1],
        [256, 1, 1],
        ArgumentList::new().u32(5489).pointer(out).i32(2),
    );
    let found = device.download::<u32>(out, 624 * 4);
    // Results for the generator's default seed.
    assert_eq!(found[..5], [3_499_211_612, 581_869_302, 3_890_346_734, 3_586_334_585, 545_404_204]);
    // The reference for the second block computes one word after another, like the original.
    let mut s = vec![5490u32];
    for k in 1..624u32 {
        let last = s[k as usize - 1];
        s.push(1_812_433_253u32.wrapping_mul(last ^ last >> 30).wrapping_add(k));
    }
    let mut expected = Vec::new();
    for at in 0..1248 {
        let y = (s[at] & 0x8000_0000) | (s[at + 1] & 0x7fff_ffff);
        s.push(s[at + 397] ^ y >> 1 ^ if y & 1 == 1 { 0x9908_b0df } else { 0 });
        let mut y = s[at + 624];
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        expected.push(y ^ y >> 18);
    }
    assert_eq!(found[1248..], expected);
}

#[test]
fn jumps_of_a_congruential_generator_match_its_steps() {
    let device = load("integers");
    let out = device.zeros::<u64>(100);
    device.run(
        "lcg_jump",
        [4, 1, 1],
        [32, 1, 1],
        ArgumentList::new().u64(12345).u64(37).pointer(out).i32(100),
    );
    let mut state = 12345u64;
    let expected: Vec<u64> = (0..100)
        .map(|_| {
            let now = state;
            for _ in 0..37 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
            }
            now
        })
        .collect();
    assert_eq!(device.download::<u64>(out, 100), expected);
}

#[test]
fn dot_products_of_bytes_match() {
    let device = load("integers");
    let (n, each) = (40, 5);
    let (a, b) = (words(6, n * each), words(7, n * each));
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<i32>(2 * n));
    device.run(
        "dot_int8",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new()
            .pointer(da)
            .pointer(db)
            .pointer(out)
            .i32(n as i32)
            .i32(each as i32),
    );
    let signed = |word: u32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
    let mut expected = Vec::new();
    for (a, b) in a.chunks(each).zip(b.chunks(each)) {
        let sum: i32 = a
            .iter()
            .zip(b)
            .map(|(a, b)| signed(*a).iter().zip(signed(*b)).map(|(a, b)| a * b).sum::<i32>())
            .sum();
        let unsigned: u32 = a[0]
            .to_le_bytes()
            .iter()
            .zip(b[0].to_le_bytes())
            .map(|(a, b)| u32::from(*a) * u32::from(b))
            .sum();
        let halves = [a[0] as i16, (a[0] >> 16) as i16].map(i32::from);
        let bytes = signed(b[0]);
        let low = halves[0] * bytes[0] + halves[1] * bytes[1] + 5;
        let high = halves[0] * bytes[2] + halves[1] * bytes[3] - 5;
        expected.extend([sum, (unsigned.wrapping_add(sum as u32) as i32).wrapping_add(low).wrapping_add(high)]);
    }
    assert_eq!(device.download::<i32>(out, 2 * n), expected);
}

#[test]
fn modular_powers_match() {
    let device = load("integers");
    let mut noise = Noise::new(8);
    let (n, modulus) = (33, 0xffff_ffff_ffff_ffc5u64);
    let base: Vec<u64> = (0..n).map(|_| noise.next()).collect();
    let exponent: Vec<u64> = (0..n).map(|k| noise.next() >> (k % 60)).collect();
    let (db, de, out) = (device.upload(&base), device.upload(&exponent), device.zeros::<u64>(n));
    device.run(
        "power_modulo",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().pointer(db).pointer(de).u64(modulus).pointer(out).i32(n as i32),
    );
    let times = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64;
    let expected: Vec<u64> = base
        .iter()
        .zip(&exponent)
        .map(|(base, exponent)| {
            // From the highest bit down, unlike in the kernel.
            (0..64).rev().fold(1, |power, bit| {
                let squared = times(power, power);
                if exponent >> bit & 1 == 1 {
                    times(squared, base % modulus)
                } else {
                    squared
                }
            })
        })
        .collect();
    assert_eq!(device.download::<u64>(out, n), expected);
}

#[test]
fn collatz_sieve_and_queens_count_right() {
    let device = load("integers");
    let start: Vec<u32> = (0..200).map(|k| 1 + k * 37).collect();
    let (input, out) = (device.upload(&start), device.zeros::<u32>(200));
    device.run(
        "collatz",
        blocks(200, 64),
        [64, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(200),
    );
    let expected: Vec<u32> = start
        .iter()
        .map(|start| {
            std::iter::successors(Some(u64::from(*start)), |x| {
                (*x != 1).then(|| if x % 2 == 0 { x / 2 } else { 3 * x + 1 })
            })
            .count() as u32
                - 1
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 200), expected);

    let limit = 5000;
    let bits = device.zeros::<u32>(limit / 32 + 1);
    device.run("sieve", [2, 1, 1], [32, 1, 1], ArgumentList::new().pointer(bits).i32(limit as i32));
    let composite = device.download::<u32>(bits, limit / 32 + 1);
    let primes = (2..limit).filter(|k| composite[k / 32] >> (k % 32) & 1 == 0).count();
    assert_eq!(primes, 669);

    let count = device.zeros::<u32>(1);
    device.run("queens", [1, 1, 1], [32, 1, 1], ArgumentList::new().i32(8).pointer(count));
    assert_eq!(device.download::<u32>(count, 1), [92]);
}

#[test]
fn bit_tricks_match() {
    let device = load("integers");
    let n = 128;
    let input = words(9, n);
    let (din, out) = (device.upload(&input), device.zeros::<u32>(n));
    device.run(
        "bit_tricks",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().pointer(din).pointer(out).i32(n as i32),
    );
    let expected: Vec<u32> = (0..n)
        .map(|i| {
            let (x, y) = (input[i], input[(i + 1) % n]);
            let first_set = if x == 0 { 0 } else { x.trailing_zeros() + 1 };
            let mut r = x.count_ones() + 100 * x.leading_zeros() + 10_000 * first_set;
            let all: Vec<u8> = [x.to_le_bytes(), y.to_le_bytes()].concat();
            let permuted = u32::from_le_bytes([5, 1, 7, 3].map(|k| all[k]));
            let both = u64::from(y) << 32 | u64::from(x);
            let left = (both << (i % 32) >> 32) as u32;
            let right = (both >> (i % 40).min(32)) as u32;
            r ^= x.reverse_bits() ^ permuted ^ left ^ right;
            let (sx, sy) = (x as i32, y as i32);
            let low = |value: u32| value & 0xff_ffff;
            let signed_low = |value: i32| value << 8 >> 8;
            for addend in [
                sx.abs_diff(sy).wrapping_add(3),
                x.abs_diff(y).wrapping_add(4),
                low(x).wrapping_mul(low(y)),
                signed_low(sx).wrapping_mul(signed_low(sy)) as u32,
                ((u64::from(x) + u64::from(y)) / 2) as u32,
                ((i64::from(sx) + i64::from(sy) + 1) >> 1) as u32,
            ] {
                r = r.wrapping_add(addend);
            }
            let (bx, by) = (x.to_le_bytes(), y.to_le_bytes());
            let each = |operation: fn(u8, u8) -> u8| u32::from_le_bytes([0, 1, 2, 3].map(|k| operation(bx[k], by[k])));
            let halves = |k: u32| ((x >> k) as i16).max((y >> k) as i16) as u16;
            r ^ each(u8::wrapping_add) ^ (u32::from(halves(16)) << 16 | u32::from(halves(0)))
        })
        .collect();
    assert_eq!(device.download::<u32>(out, n), expected);
}
