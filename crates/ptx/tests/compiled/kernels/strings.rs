//! Strings and hash tables. Results must be exact.

use std::collections::HashMap;

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

fn letters(seed: u64, count: usize, kinds: u64) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| b'a' + noise.below(kinds) as u8).collect()
}

#[test]
fn smith_waterman_scores_local_alignments() {
    let device = load("strings");
    let (pairs, length) = (3, 60);
    let (a, b) = (letters(1, pairs * length, 4), letters(2, pairs * length, 4));
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<i32>(pairs));
    device.run(
        "smith_waterman",
        [pairs as u32, 1, 1],
        [64, 1, 1],
        ArgumentList::new().pointer(da).pointer(db).i32(length as i32).pointer(out),
    );
    let expected: Vec<i32> = a
        .chunks(length)
        .zip(b.chunks(length))
        .map(|(a, b)| {
            let mut rows = vec![vec![0i32; length + 1]; length + 1];
            let mut best = 0;
            for i in 1..=length {
                for j in 1..=length {
                    let step = if a[i - 1] == b[j - 1] { 3 } else { -2 };
                    rows[i][j] = [0, rows[i - 1][j - 1] + step, rows[i - 1][j] - 1, rows[i][j - 1] - 1]
                        .into_iter()
                        .max()
                        .unwrap_or(0);
                    best = best.max(rows[i][j]);
                }
            }
            best
        })
        .collect();
    assert_eq!(device.download::<i32>(out, pairs), expected);
}

#[test]
fn levenshtein_distances_match() {
    let device = load("strings");
    let (n, length) = (45, 20);
    let (a, b) = (letters(3, n * length, 3), letters(4, n * length, 3));
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<i32>(n));
    device.run(
        "levenshtein",
        blocks(n, 32),
        [32, 1, 1],
        ArgumentList::new()
            .pointer(da)
            .pointer(db)
            .i32(length as i32)
            .pointer(out)
            .i32(n as i32),
    );
    let expected: Vec<i32> = a
        .chunks(length)
        .zip(b.chunks(length))
        .map(|(a, b)| {
            let mut table = vec![vec![0i32; length + 1]; length + 1];
            for i in 0..=length {
                for j in 0..=length {
                    table[i][j] = if i == 0 || j == 0 {
                        (i + j) as i32
                    } else {
                        let replaced = table[i - 1][j - 1] + i32::from(a[i - 1] != b[j - 1]);
                        replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                    };
                }
            }
            table[length][length]
        })
        .collect();
    assert_eq!(device.download::<i32>(out, n), expected);
}

#[test]
fn string_search_finds_every_occurrence() {
    let device = load("strings");
    let text = letters(5, 3000, 3);
    let pattern = b"ab?a";
    let (dtext, dpattern) = (device.upload(&text), device.upload(pattern));
    let (count, first) = (device.zeros::<i32>(1), device.upload(&[i32::MAX]));
    device.run(
        "string_search",
        [3, 1, 1],
        [64, 1, 1],
        ArgumentList::new()
            .pointer(dtext)
            .i32(3000)
            .pointer(dpattern)
            .i32(4)
            .pointer(count)
            .pointer(first),
    );
    let places: Vec<usize> = text
        .windows(4)
        .enumerate()
        .filter(|(_, window)| window.iter().zip(pattern).all(|(found, wanted)| *wanted == b'?' || found == wanted))
        .map(|(place, _)| place)
        .collect();
    assert_eq!(device.download::<i32>(count, 1), [places.len() as i32]);
    assert_eq!(device.download::<i32>(first, 1), [places[0] as i32]);
}

#[test]
fn bloom_filter_forgets_nothing() {
    let device = load("strings");
    let (n, mask) = (200, (1u32 << 13) - 1);
    let keys: Vec<u32> = (0..n).map(|k| k * 7919 + 3).collect();
    let asked: Vec<u32> = (0..n * 2).map(|k| (k / 2) * 7919 + 3 + k % 2).collect();
    let (dkeys, dasked) = (device.upload(&keys), device.upload(&asked));
    let (bits, found) = (device.zeros::<u32>(256), device.zeros::<u8>(asked.len()));
    device.run(
        "bloom_insert",
        blocks(keys.len(), 64),
        [64, 1, 1],
        ArgumentList::new().pointer(dkeys).pointer(bits).u32(mask).i32(n as i32),
    );
    device.run(
        "bloom_query",
        blocks(asked.len(), 64),
        [64, 1, 1],
        ArgumentList::new()
            .pointer(dasked)
            .pointer(bits)
            .u32(mask)
            .pointer(found)
            .i32(asked.len() as i32),
    );
    let mixed = |x: u32| {
        let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
        let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
        x ^ x >> 16
    };
    let places = |key: u32| {
        let h = mixed(key);
        let step = mixed(h) | 1;
        (0..4u32).map(move |k| {
            let place = h.wrapping_add(step.wrapping_mul(k));
            ((place & mask) / 32 * 32 + place % 32) as usize
        })
    };
    let mut set = vec![false; 8192];
    keys.iter().flat_map(|key| places(*key)).for_each(|place| set[place] = true);
    let expected: Vec<u8> = asked.iter().map(|key| u8::from(places(*key).all(|place| set[place]))).collect();
    assert_eq!(device.download::<u8>(found, asked.len()), expected);
    assert!(expected.iter().step_by(2).all(|found| *found == 1));
}

#[test]
fn hash_table_adds_values_of_equal_keys() {
    let device = load("strings");
    let mut noise = Noise::new(7);
    let (n, mask) = (600, 1023u32);
    let keys: Vec<u32> = (0..n).map(|_| 1 + noise.below(300) as u32).collect();
    let values: Vec<u32> = (0..n).map(|_| 1 + noise.below(1000) as u32).collect();
    let asked: Vec<u32> = (1..400).collect();
    let (dkeys, dvalues, table) = (device.upload(&keys), device.upload(&values), device.zeros::<u64>(1024));
    device.run(
        "hash_insert",
        blocks(n, 128),
        [128, 1, 1],
        ArgumentList::new()
            .pointer(dkeys)
            .pointer(dvalues)
            .pointer(table)
            .u32(mask)
            .i32(n as i32),
    );
    let (dasked, out) = (device.upload(&asked), device.zeros::<u32>(asked.len()));
    device.run(
        "hash_lookup",
        blocks(asked.len(), 128),
        [128, 1, 1],
        ArgumentList::new()
            .pointer(dasked)
            .pointer(table)
            .u32(mask)
            .pointer(out)
            .i32(asked.len() as i32),
    );
    let mut sums: HashMap<u32, u32> = HashMap::new();
    keys.iter()
        .zip(&values)
        .for_each(|(key, value)| *sums.entry(*key).or_default() += value);
    let expected: Vec<u32> = asked.iter().map(|key| sums.get(key).copied().unwrap_or(0)).collect();
    assert_eq!(device.download::<u32>(out, asked.len()), expected);
}

#[test]
fn base64_and_word_counts_match() {
    let device = load("strings");
    let input = b"Many hands make light work, and 1024 VRAM slices more!";
    let groups = input.len() / 3;
    let (din, out) = (device.upload(input), device.zeros::<u8>(4 * groups));
    device.run(
        "base64",
        [1, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(din).pointer(out).i32(groups as i32),
    );
    assert_eq!(
        device.download::<u8>(out, 4 * groups),
        b"TWFueSBoYW5kcyBtYWtlIGxpZ2h0IHdvcmssIGFuZCAxMDI0IFZSQU0gc2xpY2VzIG1vcmUh"
    );

    let text = b"one two  three\nfour\nabcdefgh abcdefghijklmnopqrstuvwxyz-abcdefghi";
    let (din, counts) = (device.upload(text), device.zeros::<u32>(6));
    device.run(
        "count_words",
        [2, 1, 1],
        [33, 1, 1],
        ArgumentList::new().pointer(din).i32(text.len() as i32).pointer(counts),
    );
    let expected: Vec<u32> = (0..2)
        .flat_map(|block| {
            let part = block * 33..block * 33 + 33;
            let letter = |i: usize| i < text.len() && text[i] > b' ';
            let words = part.clone().filter(|i| letter(*i) && (*i == 0 || !letter(i - 1))).count() as u32;
            let line = part.clone().any(|i| text.get(i) == Some(&b'\n'));
            [words, u32::from(line), u32::from(part.clone().all(letter))]
        })
        .collect();
    assert_eq!(device.download::<u32>(counts, 6), expected);
}
