//! Kernels of `transfers.cu`.

use sahasra_ptx::ArgumentList;

use super::load;

#[test]
fn tiles_pass_through_shared_memory() {
    let device = load("transfers");
    let (blocks, tile) = (3usize, 1024);
    for threads in [32, 160, 256u32] {
        let input: Vec<u32> = (0..(blocks * tile) as u32).map(|index| index.wrapping_mul(2_654_435_761)).collect();
        let (out, source) = (device.zeros::<u32>((blocks + 1) * tile), device.upload(&input));
        device.run(
            "tiles",
            [blocks as u32, 1, 1],
            [threads, 1, 1],
            ArgumentList::new().pointer(out).pointer(source),
        );
        let found = device.download::<u32>(out, (blocks + 1) * tile);
        for (index, word) in found.into_iter().enumerate() {
            let (block, within) = (index / tile, index % tile);
            let expected = if block < blocks {
                let other = input[block * tile + tile - 1 - within];
                input[index].wrapping_mul(3).wrapping_add(other)
            } else {
                (0..blocks).fold(0u32, |sum, block| sum.wrapping_add(input[block * tile + within]))
            };
            assert_eq!(word, expected, "word {index}, {threads} threads");
        }
    }
}

#[test]
fn a_cluster_of_one_block_maps_its_own_memory() {
    let device = load("transfers");
    for (threads, rounds) in [(1, 3), (64, 1), (100, 4), (256, 7u32)] {
        let out = device.zeros::<u32>(256);
        device.run("ring", [1, 1, 1], [threads, 1, 1], ArgumentList::new().pointer(out).u32(rounds));
        let mut values: Vec<u32> = (0..threads).collect();
        for _ in 0..rounds {
            values.rotate_left(1);
            values.iter_mut().for_each(|value| *value = 2 * *value + 1);
        }
        assert_eq!(
            device.download::<u32>(out, threads as usize),
            values,
            "{threads} threads, {rounds} rounds"
        );
    }
}

#[test]
fn vectors_of_floats_are_added_atomically() {
    let device = load("transfers");
    let sums = device.zeros::<f32>(32);
    device.run("vectors", [1, 1, 1], [320, 1, 1], ArgumentList::new().pointer(sums));
    let expected: Vec<f32> = (0..8)
        .flat_map(|slot| {
            let sum: u32 = (0..40).map(|index| slot + 8 * index).sum();
            let sum = sum as f32;
            [sum, 40.0, 2.0 * sum, -sum]
        })
        .collect();
    assert_eq!(device.download::<f32>(sums, 32), expected);
}
