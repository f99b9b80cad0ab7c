//! Handwritten kernels of `asynchronous.ptx`.

use sahasra_ptx::ArgumentList;

use super::load;
use crate::device::Noise;

#[test]
fn words_are_relayed_through_shared_memory() {
    let device = load("asynchronous");
    for threads in [1, 40, 64, 200u32] {
        let input: Vec<u32> = (0..256).map(|index| index * index + 3).collect();
        let before: Vec<u32> = (0..260).map(|index| 5000 - index).collect();
        let (source, target, sums) = (device.upload(&input), device.upload(&before), device.zeros::<u32>(200));
        let arguments = ArgumentList::new().pointer(source).pointer(target).pointer(sums);
        device.run("relay", [1, 1, 1], [threads, 1, 1], arguments);
        let mut expected = before;
        for (index, word) in input.iter().enumerate() {
            expected[index] += match index {
                0 => word + threads,
                4..=6 => index as u32 + 3,
                7 => 0,
                _ => *word,
            };
        }
        expected[256..].copy_from_slice(&input[..4]);
        assert_eq!(device.download::<u32>(target, 260), expected);
        let sum_of = |thread: u32| input[..(thread & 7) as usize * 8 + 1].iter().sum::<u32>();
        let expected: Vec<u32> = (0..200).map(|thread| if thread < threads { sum_of(thread) } else { 0 }).collect();
        assert_eq!(device.download::<u32>(sums, 200), expected);
    }
}

#[test]
fn elements_of_less_than_a_byte_are_multiplied() {
    let device = load("asynchronous");
    let mut noise = Noise::new(43);
    let mut words = || {
        (0..32)
            .map(|_| noise.below(1 << 31) as u32 * 2 + noise.below(2) as u32)
            .collect::<Vec<u32>>()
    };
    let (a, b) = (words(), words());
    let (da, db, out) = (device.upload(&a), device.upload(&b), device.zeros::<i32>(128));
    device.run(
        "narrow",
        [1, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(da).pointer(db).pointer(out),
    );
    let found = device.download::<i32>(out, 128);
    // Rows of a and columns of b are four words long.
    for row in 0..8 {
        for column in 0..8 {
            let pairs = || a[4 * row..][..4].iter().zip(&b[4 * column..][..4]);
            let nibbles = |word: u32| (0..8).map(move |index| (word >> (4 * index)) as i32 & 15);
            let products: i32 = pairs()
                .flat_map(|(a, b)| nibbles(*a).zip(nibbles(*b)))
                .map(|(a, b)| (if a < 8 { a } else { a - 16 }) * b)
                .sum();
            let differing: u32 = pairs().map(|(a, b)| (a ^ b).count_ones()).sum();
            // The fragment of a thread holds two neighbouring columns.
            let place = 2 * (4 * row + column / 2) + column % 2;
            assert_eq!(found[place], products, "row {row}, column {column}");
            assert_eq!(found[64 + 8 * row + column] as u32, differing, "row {row}, column {column}");
        }
    }
}
