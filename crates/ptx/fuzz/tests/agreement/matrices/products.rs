//! `mma` with every type and shape that the engine supports.

use std::fmt::Write as _;

use sahasra_ptx_fuzz::exact::{F64, Value};
use sahasra_ptx_fuzz::model::matrix::{Element, Matrix, Operand, Product, Sum, approximate};

/// Warps in the block. A group of the engine holds two warps, so the last one is alone in its group.
const WARPS: usize = 3;

fn forms() -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |shapes: &[&str], saturation: &[&str], types: &[[&str; 4]]| {
        for shape in shapes {
            for saturated in saturation {
                for [d, a, b, c] in types {
                    found.push(format!("mma.sync.aligned.{shape}.row.col{saturated}.{d}.{a}.{b}.{c}"));
                }
            }
        }
    };
    for d in ["f16", "f32"] {
        for c in ["f16", "f32"] {
            add(&["m16n8k8", "m16n8k16"], &[""], &[[d, "f16", "f16", c]]);
        }
        for a in ["e4m3", "e5m2"] {
            for b in ["e4m3", "e5m2"] {
                add(&["m16n8k16", "m16n8k32"], &[""], &[[d, a, b, d]]);
            }
        }
    }
    add(&["m16n8k8", "m16n8k16"], &[""], &[["f32", "bf16", "bf16", "f32"]]);
    add(&["m16n8k4", "m16n8k8"], &[""], &[["f32", "tf32", "tf32", "f32"]]);
    add(&["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"], &[""], &[["f64"; 4]]);
    for a in ["s8", "u8"] {
        for b in ["s8", "u8"] {
            add(&["m8n8k16", "m16n8k16", "m16n8k32"], &["", ".satfinite"], &[["s32", a, b, "s32"]]);
        }
    }
    for a in ["s4", "u4"] {
        for b in ["s4", "u4"] {
            add(&["m8n8k32", "m16n8k32", "m16n8k64"], &["", ".satfinite"], &[["s32", a, b, "s32"]]);
        }
    }
    for operation in ["xor", "and"] {
        for shape in ["m8n8k128", "m16n8k128", "m16n8k256"] {
            found.push(format!("mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{operation}.popc"));
        }
    }
    found
}

/// Writes the lowest `bits` bits of an element behind `index` such elements.
pub(crate) fn write_element(bytes: &mut [u8], index: usize, bits: usize, element: u64) {
    for bit in 0..bits {
        let at = index * bits + bit;
        bytes[at / 8] = bytes[at / 8] & !(1 << (at % 8)) | ((element >> bit & 1) as u8) << (at % 8);
    }
}

/// Values of the matrices.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// Numbers whose sums f64 holds: the result is the exact sum, rounded once.
    Near,
    /// Any bits: NaN, infinities, subnormal and huge numbers.
    Any,
}

/// Returns the bits of one random element.
pub(crate) fn element(element: Element, values: Values, random: &mut fastrand::Rng) -> u64 {
    let bits = random.u64(..);
    match (element, values) {
        (Element::S8 | Element::U8, _) => bits & 0xff,
        (Element::S4 | Element::U4, _) => bits & 15,
        (Element::B1, _) => bits & 1,
        (Element::S32, _) if random.bool() => bits & 0xffff_ffff,
        // Values whose sums exceed the ends of the range.
        (Element::S32, _) => *random.choice(&[0x7fff_ffff, 0x8000_0000, 0x7fff_ff00, 0x8000_1000]).expect("some"),
        (Element::F64, Values::Near) => ((random.i32(-(1 << 20)..1 << 20) as f64) / 1024.0).to_bits(),
        // Sums must not overflow on the way, because the ISA leaves that case open.
        (Element::F64, Values::Any) => {
            let exponent = random.u64(1023 - 300..1023 + 300);
            *random
                .choice(&[
                    bits & !(0x7ff << 52) | exponent << 52,
                    bits & !(0x7ff << 52) | exponent << 52,
                    0,
                    1 << 63,
                ])
                .expect("some")
        }
        (Element::Tf32, Values::Any) => bits & 0xffff_e000,
        (Element::E4m3 | Element::E5m2, Values::Any) => bits & 0xff,
        (Element::F16 | Element::Bf16, Values::Any) => bits & 0xffff,
        (Element::F32, Values::Any) => bits & 0xffff_ffff,
        (_, Values::Near) => {
            // A random fraction and sign, and an exponent near that of one.
            let (bits_of_all, fraction, bias) = match element {
                Element::F16 => (16, 10, 15),
                Element::Bf16 => (16, 7, 127),
                Element::E4m3 => (8, 3, 7),
                Element::E5m2 => (8, 2, 15),
                _ => (32, 23, 127),
            };
            let exponent = random.u64(bias - 5..bias + 5);
            let kept = if element == Element::Tf32 { 0x7f_e000 } else { (1 << fraction) - 1 };
            (bits & 1) << (bits_of_all - 1) | exponent << fraction | bits >> 8 & kept
        }
    }
}

/// Checks that the engine's bits are a correct result: the exact sum rounded once if only the last rounding can be inexact, else within the
/// error of any order of additions in single (for f64: double) precision.
pub(crate) fn accepts(product: &Product, values: Values, sum: &Sum, found: u64) -> Result<(), String> {
    let target = product.element(Operand::D);
    let expected = product.encode(&sum.value);
    let Some(format) = target.format() else {
        return (expected == found)
            .then_some(())
            .ok_or_else(|| format!("{found:#x} instead of {expected:#x}"));
    };
    let decoded = format.decode(found);
    let zero = |bits: u64| bits & (format.sign() - 1) == 0;
    if expected == found || zero(expected) && zero(found) || format.is_nan(expected) && format.is_nan(found) {
        return Ok(());
    }
    let steps = product.shape[2] as f64 + 2.0;
    let unit = if product.element(Operand::A) == Element::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    let wanted = approximate(&sum.value);
    let slack = steps * unit * sum.magnitude;
    let near = match decoded {
        Value::Finite(_) => {
            // The target's own rounding adds one more unit.
            let own = (wanted.abs() * 2f64.powi(-(format.fraction as i32)))
                .max(2f64.powi(2 - format.fraction as i32 - (1 << (format.exponent - 1))));
            (f64::from_bits(F64.encode(&decoded, sahasra_ptx_fuzz::exact::Rounding::NearestEven)) - wanted).abs() <= slack + own
        }
        Value::Infinite(negative) => {
            let largest = approximate(&format.decode(format.largest()));
            wanted.is_sign_negative() == negative && wanted.abs() + slack >= largest
        }
        Value::Nan => false,
    };
    if values == Values::Any && near {
        Ok(())
    } else {
        Err(format!("{found:#x} instead of {expected:#x} ({wanted:e})"))
    }
}

/// Returns how many registers hold the elements, and their width in bits.
pub(crate) fn registers(element: Element, elements: usize) -> (usize, usize) {
    let width = element.bits().max(32) as usize;
    (elements * element.bits() as usize / width, width)
}

/// Returns the names of `count` registers from `first` on, as a vector.
pub(crate) fn vector(first: usize, count: usize, width: usize) -> String {
    let letter = if width == 64 { 'd' } else { 'r' };
    let names: Vec<String> = (first..first + count).map(|index| format!("%{letter}{index}")).collect();
    format!("{{{}}}", names.join(", "))
}

fn check(form: &str, values: Values, random: &mut fastrand::Rng) -> Result<usize, String> {
    let product = Product::parse(form).ok_or_else(|| format!("{form} has no model"))?;
    let fragments = [Operand::A, Operand::B, Operand::C].map(|operand| {
        let (count, width) = registers(product.element(operand), product.held(operand));
        (operand, count, width)
    });
    let input_bytes: usize = fragments.iter().map(|(_, count, width)| count * width / 8).sum();
    let (targets, target_width) = registers(product.element(Operand::D), product.held(Operand::D));
    let output_bytes = targets * target_width / 8;
    let mut text = super::beginning(input_bytes, output_bytes);
    let (mut at, mut first, mut vectors) = (0, 1, vec![vector(60, targets, target_width)]);
    for (_, count, width) in fragments {
        let letter = if width == 64 { 'd' } else { 'r' };
        for index in first..first + count {
            // The bytes of a thread's input may be unaligned to 8.
            if width == 64 {
                let _ = writeln!(text, "ld.global.u64 %d{index}, [%in+{at}];");
            } else {
                let _ = writeln!(text, "ld.global.u32 %{letter}{index}, [%in+{at}];");
            }
            at += width / 8;
        }
        vectors.push(vector(first, count, width));
        first += count;
    }
    let _ = writeln!(text, "{form} {};", vectors.join(", "));
    for index in 0..targets {
        let (letter, bytes) = if target_width == 64 { ('d', 8) } else { ('r', 4) };
        let _ = writeln!(text, "st.global.u{target_width} [%out+{}], %{letter}{};", index * bytes, 60 + index);
    }
    text.push_str("ret;\n}\n");

    let matrices: Vec<[Matrix; 3]> = (0..WARPS)
        .map(|_| {
            [Operand::A, Operand::B, Operand::C].map(|operand| {
                let (rows, columns) = product.extent(operand);
                Matrix {
                    columns,
                    elements: (0..rows * columns)
                        .map(|_| element(product.element(operand), values, random))
                        .collect(),
                }
            })
        })
        .collect();
    let mut input = Vec::new();
    for matrices in &matrices {
        for lane in 0..32 {
            for ((operand, count, width), matrix) in fragments.iter().zip(matrices) {
                let bits = product.element(*operand).bits() as usize;
                let mut fragment = vec![0u8; count * width / 8];
                for index in 0..product.held(*operand) {
                    let (row, column) = product.place(*operand, lane, index);
                    write_element(&mut fragment, index, bits, matrix.elements[row * matrix.columns + column]);
                }
                input.extend(fragment);
            }
        }
    }
    let found = super::run(form, &text, 32 * WARPS as u32, &input, output_bytes * 32 * WARPS);
    let bytes = product.element(Operand::D).bits() as usize / 8;
    let mut checked = 0;
    for (warp, [a, b, c]) in matrices.iter().enumerate() {
        for lane in 0..32 {
            for index in 0..product.held(Operand::D) {
                let (row, column) = product.place(Operand::D, lane, index);
                let start = (warp * 32 + lane) * output_bytes + index * bytes;
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(&found[start..][..bytes]);
                accepts(&product, values, &product.sum(a, b, c, row, column), u64::from_le_bytes(word))
                    .map_err(|wrong| format!("{form}: warp {warp}, lane {lane}, element {index}: {wrong}"))?;
                checked += 1;
            }
        }
    }
    Ok(checked)
}

#[test]
fn products_match_the_matrix_layouts_of_the_isa() {
    let mut random = fastrand::Rng::with_seed(17);
    let (forms, mut checked, mut wrong) = (forms(), 0, Vec::new());
    for form in &forms {
        for round in 0..16 {
            let values = if round < 8 { Values::Near } else { Values::Any };
            match check(form, values, &mut random) {
                Ok(count) => checked += count,
                Err(difference) => {
                    wrong.push(difference);
                    break;
                }
            }
        }
    }
    println!("{} forms of mma, {checked} results", forms.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layouts_assign_every_element_once() {
    for form in forms() {
        let product = Product::parse(&form).expect("a form");
        for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
            let (rows, columns) = product.extent(operand);
            let mut held = vec![0; rows * columns];
            for lane in 0..32 {
                for index in 0..product.held(operand) {
                    let (row, column) = product.place(operand, lane, index);
                    held[row * columns + column] += 1;
                }
            }
            assert!(held.iter().all(|count| *count == 1), "{form} {operand:?}");
        }
    }
}
