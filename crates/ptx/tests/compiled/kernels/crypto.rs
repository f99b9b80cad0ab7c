//! Ciphers, hashes and checksums. Results must be exact, and match published values.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| noise.next() as u8).collect()
}

#[test]
fn crc32_matches() {
    let device = load("crypto");
    let (n, length) = (77, 19);
    let mut data = bytes(1, n * length);
    data[..9].copy_from_slice(b"123456789");
    let (input, out) = (device.upload(&data), device.zeros::<u32>(n));
    device.run(
        "crc32",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new().pointer(input).i32(length as i32).pointer(out).i32(n as i32),
    );
    // Computed by polynomial division with the message bits reversed, unlike in the kernel.
    let expected: Vec<u32> = data
        .chunks(length)
        .map(|message| {
            let mut bits: Vec<bool> = message
                .iter()
                .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1))
                .collect();
            bits.extend([false; 32]);
            bits.iter_mut().take(32).for_each(|bit| *bit = !*bit);
            for at in 0..bits.len() - 32 {
                if bits[at] {
                    for (power, bit) in bits[at + 1..at + 33].iter_mut().enumerate() {
                        *bit ^= 0x04c1_1db7u32 >> (31 - power) & 1 == 1;
                    }
                }
            }
            !bits[bits.len() - 32..]
                .iter()
                .enumerate()
                .fold(0u32, |crc, (place, bit)| crc | u32::from(*bit) << place)
        })
        .collect();
    assert_eq!(device.download::<u32>(out, n), expected);
}

#[test]
fn keccak_of_zeros_is_the_published_state() {
    let device = load("crypto");
    let states = device.zeros::<u64>(25 * 3);
    let arguments = || ArgumentList::new().pointer(states).i32(3);
    device.run("keccak_f1600", [1, 1, 1], [32, 1, 1], arguments());
    let found = device.download::<u64>(states, 75);
    assert_eq!(found[..3], [0xf125_8f79_40e1_dde7, 0x84d5_ccf9_33c0_478a, 0xd598_261e_a65a_a9ee]);
    assert_eq!(found[..25], found[50..]);
    // Second permutation of the published test.
    device.run("keccak_f1600", [1, 1, 1], [32, 1, 1], arguments());
    assert_eq!(device.download::<u64>(states, 1), [0x2d5c_954d_f96e_cb3c]);
}

#[test]
fn chacha20_matches() {
    let device = load("crypto");
    let key: Vec<u32> = (0..8u32).map(|k| 0x0302_0100 + k * 0x0404_0404).collect();
    let (nonce, n) = (0x4a00_0000u32, 45);
    let (dkey, out) = (device.upload(&key), device.zeros::<u32>(16 * n));
    device.run(
        "chacha20",
        blocks(n, 16),
        [16, 1, 1],
        ArgumentList::new().pointer(dkey).u32(nonce).pointer(out).i32(n as i32),
    );
    let expected: Vec<u32> = (0..n as u32)
        .flat_map(|counter| {
            let mut start = vec![0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
            start.extend(&key);
            start.extend([counter, nonce, nonce.wrapping_mul(3), !nonce]);
            let mut s = start.clone();
            for round in 0..20 {
                for column in 0..4 {
                    let place = |row: usize| row * 4 + (column + if round % 2 == 1 { row } else { 0 }) % 4;
                    let (a, b, c, d) = (place(0), place(1), place(2), place(3));
                    for (x, y, z, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
                        s[x] = s[x].wrapping_add(s[y]);
                        s[z] = (s[z] ^ s[x]).rotate_left(turn);
                    }
                }
            }
            s.iter().zip(start).map(|(end, start)| end.wrapping_add(start)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 16 * n), expected);
}

#[test]
fn aes128_gives_the_published_cipher_text() {
    let device = load("crypto");
    // Example of FIPS 197, appendix C.1, among other blocks.
    let key: Vec<u8> = (0..16).collect();
    let mut plain = bytes(4, 16 * 40);
    for block in [0, 39] {
        for k in 0..16 {
            plain[block * 16 + k] = (k * 0x11) as u8;
        }
    }
    let (dkey, input, out) = (device.upload(&key), device.upload(&plain), device.zeros::<u8>(16 * 40));
    device.run(
        "aes128",
        [2, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(dkey).pointer(input).pointer(out).i32(40),
    );
    let found = device.download::<u8>(out, 16 * 40);
    let expected = [
        0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8, 0xcd, 0xb7, 0x80, 0x70, 0xb4, 0xc5, 0x5a,
    ];
    assert_eq!(found[..16], expected);
    assert_eq!(found[39 * 16..], expected);
    assert_ne!(found[16..32], expected);
}

#[test]
fn xxhash64_matches() {
    const P: [u64; 5] = [
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
    ];
    let device = load("crypto");
    let mut noise = Noise::new(5);
    let words: Vec<u64> = (0..200).map(|_| noise.next()).collect();
    let (input, out) = (device.upload(&words), device.zeros::<u64>(100));
    device.run(
        "xxhash64_short",
        [4, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(input).u64(99).pointer(out).i32(100),
    );
    let expected: Vec<u64> = words
        .chunks(2)
        .map(|pair| {
            let mut hash = pair.iter().fold(99u64.wrapping_add(P[4]).wrapping_add(16), |hash, word| {
                let word = word.wrapping_mul(P[1]).rotate_left(31).wrapping_mul(P[0]);
                (hash ^ word).rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3])
            });
            hash = (hash ^ hash >> 33).wrapping_mul(P[1]);
            hash = (hash ^ hash >> 29).wrapping_mul(P[2]);
            hash ^ hash >> 32
        })
        .collect();
    assert_eq!(device.download::<u64>(out, 100), expected);
}
