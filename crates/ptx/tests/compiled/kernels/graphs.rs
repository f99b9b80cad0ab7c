//! Graphs and grids of integers. Results must be exact.

use sahasra_ptx::ArgumentList;

use super::{blocks, load};
use crate::device::Noise;

#[test]
fn floyd_warshall_finds_shortest_paths() {
    let device = load("graphs");
    let n = 40;
    let mut noise = Noise::new(1);
    let far = 1_000_000;
    let start: Vec<i32> = (0..n * n)
        .map(|at| {
            if at / n == at % n {
                0
            } else if noise.below(5) == 0 {
                1 + noise.below(50) as i32
            } else {
                far
            }
        })
        .collect();
    let distance = device.upload(&start);
    for k in 0..n {
        device.run(
            "floyd_warshall",
            [5, 5, 1],
            [8, 8, 1],
            ArgumentList::new().pointer(distance).i32(n as i32).i32(k as i32),
        );
    }
    // Relaxes every edge until nothing changes.
    let mut expected = start.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for from in 0..n {
            for middle in 0..n {
                for to in 0..n {
                    let through = expected[from * n + middle] + start[middle * n + to];
                    if through < expected[from * n + to] {
                        expected[from * n + to] = through;
                        changed = true;
                    }
                }
            }
        }
    }
    assert_eq!(device.download::<i32>(distance, n * n), expected);
}

#[test]
fn breadth_first_search_gives_levels() {
    let device = load("graphs");
    let n = 300;
    let mut noise = Noise::new(2);
    let neighbours: Vec<Vec<i32>> = (0..n)
        .map(|_| (0..noise.below(4)).map(|_| noise.below(n as u64) as i32).collect())
        .collect();
    let mut offsets = vec![0i32];
    let targets: Vec<i32> = neighbours.iter().flatten().copied().collect();
    neighbours
        .iter()
        .for_each(|list| offsets.push(offsets[offsets.len() - 1] + list.len() as i32));
    let mut level = vec![-1; n];
    level[0] = 0;
    let (doffsets, dtargets, dlevel) = (device.upload(&offsets), device.upload(&targets), device.upload(&level));
    let (mut frontier, mut next) = (device.upload(&vec![0i32; n]), device.zeros::<i32>(n));
    let (mut size, mut depth) = (1, 1);
    while size > 0 {
        let next_size = device.zeros::<i32>(1);
        device.run(
            "bfs_step",
            blocks(size as usize, 64),
            [64, 1, 1],
            ArgumentList::new()
                .pointer(doffsets)
                .pointer(dtargets)
                .pointer(dlevel)
                .pointer(frontier)
                .i32(size)
                .pointer(next)
                .pointer(next_size)
                .i32(depth),
        );
        size = device.download::<i32>(next_size, 1)[0];
        std::mem::swap(&mut frontier, &mut next);
        depth += 1;
    }
    let mut queue = std::collections::VecDeque::from([0usize]);
    while let Some(node) = queue.pop_front() {
        for other in &neighbours[node] {
            if level[*other as usize] == -1 {
                level[*other as usize] = level[node] + 1;
                queue.push_back(*other as usize);
            }
        }
    }
    assert_eq!(device.download::<i32>(dlevel, n), level);
}

#[test]
fn components_are_named_by_their_least_member() {
    let device = load("graphs");
    let (n, count) = (400, 300);
    let mut noise = Noise::new(3);
    let edges: Vec<i32> = (0..2 * count).map(|_| noise.below(n as u64) as i32).collect();
    let (dedges, parent) = (device.upload(&edges), device.upload(&(0..n as i32).collect::<Vec<_>>()));
    device.run(
        "connect",
        blocks(count, 64),
        [64, 1, 1],
        ArgumentList::new().pointer(dedges).pointer(parent).i32(count as i32),
    );
    device.run(
        "flatten",
        blocks(n, 64),
        [64, 1, 1],
        ArgumentList::new().pointer(parent).i32(n as i32),
    );
    let mut label: Vec<i32> = (0..n as i32).collect();
    for _ in 0..n {
        for edge in edges.chunks(2) {
            let least = label[edge[0] as usize].min(label[edge[1] as usize]);
            label[edge[0] as usize] = least;
            label[edge[1] as usize] = least;
        }
    }
    assert_eq!(device.download::<i32>(parent, n), label);
}

#[test]
fn life_in_words_matches_cells() {
    let device = load("graphs");
    let rows = 40;
    let mut noise = Noise::new(4);
    let cells: Vec<u64> = (0..rows).map(|_| noise.next() & noise.next()).collect();
    let (input, out) = (device.upload(&cells), device.zeros::<u64>(rows));
    device.run(
        "life_words",
        [2, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(rows as i32),
    );
    let alive = |x: usize, y: usize| cells[y % rows] >> (x % 64) & 1 == 1;
    let expected: Vec<u64> = (0..rows)
        .map(|y| {
            (0..64).fold(0, |word, x| {
                let around = [
                    (63, 1),
                    (0, 1),
                    (1, 1),
                    (63, 0),
                    (1, 0),
                    (63, rows - 1),
                    (0, rows - 1),
                    (1, rows - 1),
                ];
                let count = around.iter().filter(|(dx, dy)| alive(x + dx, y + dy)).count();
                word | u64::from(count == 3 || count == 2 && alive(x, y)) << x
            })
        })
        .collect();
    assert_eq!(device.download::<u64>(out, rows), expected);
}

#[test]
fn k_means_assigns_and_sums() {
    let device = load("graphs");
    let (n, k) = (500, 7);
    let mut noise = Noise::new(5);
    let points: Vec<i32> = (0..2 * n).map(|_| noise.below(20_000) as i32 - 5000).collect();
    let centres: Vec<i32> = (0..2 * k).map(|_| noise.below(20_000) as i32 - 5000).collect();
    let (dpoints, dcentres) = (device.upload(&points), device.upload(&centres));
    let (labels, sums) = (device.zeros::<i32>(n), device.zeros::<i64>(3 * k));
    device.run(
        "k_means",
        blocks(n, 96),
        [96, 1, 1],
        ArgumentList::new()
            .pointer(dpoints)
            .pointer(dcentres)
            .i32(k as i32)
            .pointer(labels)
            .pointer(sums)
            .i32(n as i32),
    );
    let mut expected_sums = vec![0i64; 3 * k];
    let expected: Vec<i32> = points
        .chunks(2)
        .map(|point| {
            let square = |j: usize| (0..2).map(|d| i64::from(point[d] - centres[2 * j + d]).pow(2)).sum::<i64>();
            let label = (0..k).min_by_key(|j| square(*j)).unwrap_or(0);
            for d in 0..2 {
                expected_sums[3 * label + d] += i64::from(point[d]);
            }
            expected_sums[3 * label + 2] += 1;
            label as i32
        })
        .collect();
    assert_eq!(device.download::<i32>(labels, n), expected);
    assert_eq!(device.download::<i64>(sums, 3 * k), expected_sums);
}

#[test]
fn transpose_moves_every_element() {
    let device = load("graphs");
    let (w, h) = (70, 45);
    let values = Noise::new(6).reals(w * h, -1.0, 1.0);
    let (input, out) = (device.upload(&values), device.zeros::<f32>(w * h));
    device.run(
        "transpose",
        [3, 2, 1],
        [32, 8, 1],
        ArgumentList::new().pointer(input).pointer(out).i32(w as i32).i32(h as i32),
    );
    let expected: Vec<f32> = (0..w * h).map(|at| values[at % h * w + at / h]).collect();
    assert_eq!(device.download::<f32>(out, w * h), expected);
}
