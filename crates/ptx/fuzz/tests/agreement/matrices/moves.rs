//! `ldmatrix`, `stmatrix`, `movmatrix` (PTX ISA §9.7.14.5.15 to §9.7.14.5.17).

use std::fmt::Write as _;

use super::products::vector;

/// Returns row and column of element `i` of a thread's register: row lane / 4, and two of its columns.
fn place(lane: usize, i: usize, transposed: bool) -> (usize, usize) {
    let (row, column) = (lane / 4, 2 * (lane % 4) + i);
    if transposed { (column, row) } else { (row, column) }
}

/// Returns the offset of row `row` of matrix `matrix`. Rows are in no particular order, have 16 bytes each, and do not overlap.
fn row_start(matrix: usize, row: usize, count: usize) -> usize {
    let rows = 8 * count;
    (matrix * 8 + row) * 5 % rows * 32 + 16 * (row & 1)
}

/// Returns statements that compute in `%d1` the address of the row that the thread names, by its lane. Threads that name no row get an
/// address that no access may touch.
fn addresses(count: usize) -> String {
    let rows = 8 * count;
    format!(
        "mul.lo.u32 %r1, %r30, 5; rem.u32 %r1, %r1, {rows}; shl.b32 %r1, %r1, 5; and.b32 %r2, %r30, 1; shl.b32 %r2, %r2, 4; add.u32 %r1, %r1, %r2;\n\
         setp.ge.u32 %p1, %r30, {rows}; selp.b32 %r1, 0x7ffffff1, %r1, %p1; cvt.u64.u32 %d1, %r1; add.s64 %d1, %shared, %d1;\n"
    )
}

#[test]
fn rows_of_shared_memory_become_fragments_and_fragments_rows() {
    let mut random = fastrand::Rng::with_seed(19);
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            for space in [".shared", ".shared::cta", ""] {
                let generic = if space.is_empty() { "cvta.shared.u64 %d1, %d1;\n" } else { "" };
                let trans = if transposed { ".trans" } else { "" };
                let words: Vec<u16> = (0..8 * count * 16).map(|_| random.u16(..)).collect();
                let input: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let word = |byte: usize| words[byte / 2];

                let load = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16");
                let mut text = super::beginning(0, 4 * count);
                let _ = writeln!(
                    text,
                    "mul.wide.u32 %d2, %r31, 4; mov.u64 %d3, 0;\nCOPY:\nadd.s64 %d4, %d2, %d3; add.s64 %d5, %in, %d4; add.s64 %d6, %shared, %d4;\n\
                     ld.global.u32 %r3, [%d5]; st.shared.u32 [%d6], %r3; add.s64 %d3, %d3, 128; setp.lt.u64 %p2, %d3, {}; @%p2 bra COPY;\nbar.sync 0;",
                    input.len()
                );
                text.push_str(&addresses(count));
                text.push_str(generic);
                let _ = writeln!(text, "{load} {}, [%d1];", vector(60, count, 32));
                for index in 0..count {
                    let _ = writeln!(text, "st.global.u32 [%out+{}], %r{};", 4 * index, 60 + index);
                }
                text.push_str("ret;\n}\n");
                let found = super::run(&load, &text, 32, &input, 32 * 4 * count);
                for lane in 0..32 {
                    for matrix in 0..count {
                        for i in 0..2 {
                            let (row, column) = place(lane, i, transposed);
                            let at = (lane * count + matrix) * 4 + 2 * i;
                            let got = u16::from_le_bytes([found[at], found[at + 1]]);
                            let expected = word(row_start(matrix, row, count) + 2 * column);
                            assert_eq!(got, expected, "{load}: lane {lane}, matrix {matrix}, element {i}");
                        }
                    }
                }

                let store = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16");
                let fragments: Vec<u16> = (0..32 * 2 * count).map(|_| random.u16(..)).collect();
                let input: Vec<u8> = fragments.iter().flat_map(|word| word.to_le_bytes()).collect();
                let bytes = 8 * count * 32;
                let mut text = super::beginning(4 * count, bytes / 32);
                for index in 0..count {
                    let _ = writeln!(text, "ld.global.u32 %r{}, [%in+{}];", 60 + index, 4 * index);
                }
                text.push_str(&addresses(count));
                text.push_str(generic);
                let _ = writeln!(text, "{store} [%d1], {};\nbar.sync 0;", vector(60, count, 32));
                let _ = writeln!(text, "mul.wide.u32 %d2, %r31, {}; add.s64 %d2, %shared, %d2;", bytes / 32);
                for at in (0..bytes / 32).step_by(4) {
                    let _ = writeln!(text, "ld.shared.u32 %r3, [%d2+{at}]; st.global.u32 [%out+{at}], %r3;");
                }
                text.push_str("ret;\n}\n");
                let found = super::run(&store, &text, 32, &input, bytes);
                let mut expected = vec![0u8; bytes];
                for lane in 0..32 {
                    for matrix in 0..count {
                        for i in 0..2 {
                            let (row, column) = place(lane, i, transposed);
                            let at = row_start(matrix, row, count) + 2 * column;
                            expected[at..at + 2].copy_from_slice(&fragments[(lane * count + matrix) * 2 + i].to_le_bytes());
                        }
                    }
                }
                assert_eq!(found, expected, "{store}");
            }
        }
    }
}

#[test]
fn movmatrix_transposes_in_registers() {
    let mut random = fastrand::Rng::with_seed(20);
    let form = "movmatrix.sync.aligned.m8n8.trans.b16";
    for warps in [1, 2, 3] {
        let fragments: Vec<u16> = (0..64 * warps).map(|_| random.u16(..)).collect();
        let input: Vec<u8> = fragments.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut text = super::beginning(4, 4);
        let _ = writeln!(
            text,
            "ld.global.u32 %r1, [%in]; {form} %r2, %r1; st.global.u32 [%out], %r2; ret;\n}}"
        );
        let found = super::run(form, &text, 32 * warps as u32, &input, 128 * warps);
        for warp in 0..warps {
            for lane in 0..32 {
                for i in 0..2 {
                    let (row, column) = place(lane, i, true);
                    let expected = fragments[warp * 64 + row * 8 + column];
                    let at = warp * 128 + lane * 4 + 2 * i;
                    assert_eq!(u16::from_le_bytes([found[at], found[at + 1]]), expected, "lane {lane}, element {i}");
                }
            }
        }
    }
}
