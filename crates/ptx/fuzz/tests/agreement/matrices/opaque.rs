//! `wmma`: matrices are loaded, multiplied and stored, independently of the layout of the fragments.

use std::fmt::Write as _;

use sahasra_ptx_fuzz::model::matrix::{Element, Matrix, Operand, Product, parse_shape};

use super::products::{Values, accepts, element, vector, write_element};

/// Shape, types of d, a (and b), c, and registers of the fragments of d, a, b, c (PTX ISA §9.7.14.4.1).
type Case = (&'static str, [&'static str; 3], [usize; 4]);

fn cases() -> Vec<Case> {
    let mut found = Vec::new();
    for (shape, single, bytes) in [
        ("m16n16k16", [4, 4], [2, 2]),
        ("m32n8k16", [8, 2], [4, 1]),
        ("m8n32k16", [2, 8], [1, 4]),
    ] {
        for d in ["f16", "f32"] {
            for c in ["f16", "f32"] {
                let held = |name: &str| if name == "f16" { 4 } else { 8 };
                found.push((shape, [d, "f16", c], [held(d), 8, 8, held(c)]));
            }
        }
        found.push((shape, ["f32", "bf16", "f32"], [8, single[0], single[1], 8]));
        found.push((shape, ["s32", "s8", "s32"], [8, bytes[0], bytes[1], 8]));
        found.push((shape, ["s32", "u8", "s32"], [8, bytes[0], bytes[1], 8]));
    }
    found.push(("m16n16k8", ["f32", "tf32", "f32"], [8, 4, 4, 8]));
    found.push(("m8n8k4", ["f64", "f64", "f64"], [2, 1, 1, 2]));
    found.push(("m8n8k32", ["s32", "s4", "s32"], [2, 1, 1, 2]));
    found.push(("m8n8k32", ["s32", "u4", "s32"], [2, 1, 1, 2]));
    found.push(("m8n8k128", ["s32", "b1", "s32"], [2, 1, 1, 2]));
    found
}

/// Size of an element in memory in bits.
fn bits(element: Element) -> usize {
    element.bits() as usize
}

/// Places of the four matrices: starts in bytes, distances between rows or columns in elements.
#[derive(Clone, Copy)]
struct Placed {
    starts: [usize; 4],
    strides: [usize; 4],
    /// Size of the matrices A, B and C.
    input_bytes: usize,
}

/// Text of a kernel that loads A, B and C, multiplies, and stores D.
fn kernel(case: Case, product: &Product, by_rows: [bool; 4], kinds: &str, shared: bool, placed: Placed) -> String {
    let (shape_word, [d, a, c], counts) = case;
    let Placed {
        starts,
        strides,
        input_bytes,
    } = placed;
    let layout = |rows: bool| if rows { "row" } else { "col" };
    let mut text = super::beginning(0, 0);
    let (space, base) = if shared { (".shared", "%shared") } else { (".global", "%in") };
    if shared {
        // Each thread copies its words, and only the first warp multiplies.
        let _ = writeln!(
            text,
            "mov.u32 %r1, %r31;\nCOPY:\nmul.wide.u32 %d1, %r1, 4; add.s64 %d2, %in, %d1; add.s64 %d3, %shared, %d1; ld.global.u32 %r2, [%d2];\n\
             st.shared.u32 [%d3], %r2; add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, {}; @%p1 bra COPY;\nbar.sync 0;",
            input_bytes / 4
        );
    }
    let width = if d == "f64" { 64 } else { 32 };
    let mut first = 4;
    let mut vectors = Vec::new();
    for (operand, part) in [(Operand::A, "a"), (Operand::B, "b"), (Operand::C, "c")] {
        let index = operand_index(operand);
        let registers = vector(first, counts[index], width);
        first += counts[index];
        let kind = [d, a, a, c][index];
        let _ = writeln!(
            text,
            "wmma.load.{part}.sync.aligned.{}.{shape_word}{space}.{kind} {registers}, [{base}+{}], {};",
            layout(by_rows[index]),
            starts[index],
            strides[index]
        );
        vectors.push(registers);
    }
    let results = vector(60, counts[0], width);
    let operation = match (a, product.is_xor) {
        ("b1", true) => ".xor.popc",
        ("b1", false) => ".and.popc",
        _ => "",
    };
    let (rn, saturation) = (
        if d == "f64" { ".rn" } else { "" },
        if product.saturates { ".satfinite" } else { "" },
    );
    let _ = writeln!(
        text,
        "wmma.mma{operation}.sync.aligned.{}.{}.{shape_word}{rn}.{kinds}{saturation} {results}, {};",
        layout(by_rows[1]),
        layout(by_rows[2]),
        vectors.join(", ")
    );
    let _ = writeln!(
        text,
        "wmma.store.d.sync.aligned.{}.{shape_word}.global.{d} [%out], {results}, {};\nret;\n}}",
        layout(by_rows[0]),
        strides[0]
    );
    text
}

/// Checks one combination of layouts: a, b, c and d by rows or by columns.
fn check(
    case: Case,
    by_rows: [bool; 4],
    shared: bool,
    saturates: bool,
    values: Values,
    random: &mut fastrand::Rng,
) -> Result<usize, String> {
    let (shape_word, [d, a, c], _) = case;
    let types = [d, a, a, c].map(|name| Element::from_name(name).expect("a type"));
    let product = Product {
        shape: parse_shape(shape_word).expect("a shape"),
        elements: types,
        saturates,
        // Of the operations on single bits, the one that the layout of rows selects.
        is_xor: a == "b1" && by_rows[0],
    };
    let operands = [Operand::D, Operand::A, Operand::B, Operand::C];
    // The distance between rows or columns exceeds their length, by a multiple that the alignment requires.
    let strides = operands.map(|operand| {
        let (rows, columns) = product.extent(operand);
        let by_rows = by_rows[operand_index(operand)];
        (if by_rows { columns } else { rows }) + 128 / bits(product.element(operand))
    });
    let sizes = operands.map(|operand| {
        let (rows, columns) = product.extent(operand);
        let by_rows = by_rows[operand_index(operand)];
        strides[operand_index(operand)] * (if by_rows { rows } else { columns }) * bits(product.element(operand)) / 8
    });
    let starts = [0, 0, sizes[1], sizes[1] + sizes[2]].map(|start: usize| start.next_multiple_of(32));
    let starts = [0, starts[1], starts[2], (starts[2] + sizes[2]).next_multiple_of(32)];
    let input_bytes = (starts[3] + sizes[3]).next_multiple_of(8);

    let kinds = if a == "f16" {
        format!("{d}.{c}")
    } else {
        format!("{d}.{a}.{a}.{c}")
    };
    let placed = Placed {
        starts,
        strides,
        input_bytes,
    };
    let text = kernel(case, &product, by_rows, &kinds, shared, placed);
    let form = format!("wmma {shape_word} {kinds} {by_rows:?} shared {shared}");

    let at = |operand: Operand, row: usize, column: usize| {
        let index = operand_index(operand);
        let element = if by_rows[index] {
            row * strides[index] + column
        } else {
            column * strides[index] + row
        };
        8 * starts[index] + element * bits(product.element(operand))
    };
    let mut input = vec![0xa5u8; input_bytes];
    let matrices = [Operand::A, Operand::B, Operand::C].map(|operand| {
        let (rows, columns) = product.extent(operand);
        let kind = product.element(operand);
        let elements: Vec<u64> = (0..rows * columns).map(|_| element(kind, values, random)).collect();
        for (place, bits) in elements.iter().enumerate() {
            let start = at(operand, place / columns, place % columns);
            write_element(&mut input, start / self::bits(kind), self::bits(kind), *bits);
        }
        Matrix { columns, elements }
    });
    let found = super::run(&form, &text, 32, &input, sizes[0]);
    let [a, b, c] = &matrices;
    let (rows, columns) = product.extent(Operand::D);
    let kind = product.element(Operand::D);
    let mut written = vec![false; found.len()];
    for row in 0..rows {
        for column in 0..columns {
            let (start, bytes) = (at(Operand::D, row, column) / 8, bits(kind) / 8);
            written[start..start + bytes].fill(true);
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(&found[start..][..bytes]);
            accepts(&product, values, &product.sum(a, b, c, row, column), u64::from_le_bytes(word))
                .map_err(|wrong| format!("{form}: row {row}, column {column}: {wrong}"))?;
        }
    }
    // Bytes between rows must stay unchanged.
    if found.iter().zip(&written).any(|(byte, written)| !written && *byte != 0) {
        return Err(format!("{form}: writes between rows"));
    }
    Ok(rows * columns)
}

fn operand_index(operand: Operand) -> usize {
    match operand {
        Operand::D => 0,
        Operand::A => 1,
        Operand::B => 2,
        Operand::C => 3,
    }
}

#[test]
fn opaque_fragments_carry_whole_matrices() {
    let mut random = fastrand::Rng::with_seed(18);
    let (mut checked, mut tried) = (0, 0);
    for case in cases() {
        for layouts in 0..16u32 {
            let by_rows = [0, 1, 2, 3].map(|bit| layouts >> bit & 1 != 0);
            // Elements of less than a byte are by rows in a, and by columns in b.
            let narrow = Element::from_name(case.1[1]).is_some_and(|element| element.bits() < 8);
            if narrow && (!by_rows[1] || by_rows[2]) {
                continue;
            }
            for (shared, values) in [(false, Values::Near), (true, Values::Near), (false, Values::Any)] {
                let integer = case.1[0] == "s32";
                let may_saturate = integer && case.1[1] != "b1";
                for saturates in [false, true].into_iter().filter(|saturates| may_saturate || !saturates) {
                    checked += check(case, by_rows, shared, saturates, values, &mut random).unwrap_or_else(|wrong| panic!("{wrong}"));
                    tried += 1;
                }
            }
        }
    }
    println!("{tried} products by wmma, {checked} results");
}
