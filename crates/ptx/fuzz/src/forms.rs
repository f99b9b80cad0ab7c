//! Every instruction form that has a model. The tests of single instructions cover these forms, and generated programs consist of them.

use crate::kind::Kind;
use crate::model::Model;

const INTEGERS: [&str; 6] = ["u16", "s16", "u32", "s32", "u64", "s64"];
const PACKED: [&str; 2] = ["u16x2", "s16x2"];
const BITS: [&str; 4] = ["pred", "b16", "b32", "b64"];
const FLOATS: [&str; 6] = ["f32", "f64", "f16", "f16x2", "bf16", "bf16x2"];
const ROUNDINGS: [&str; 5] = ["", ".rn", ".rz", ".rm", ".rp"];
const ORDERED: [&str; 10] = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];
const UNORDERED: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
const COMBINED: [&str; 4] = ["", ".and", ".or", ".xor"];

/// Appends all products of the words: `a` before `.b` before `.c`.
fn product(heads: &[&str], middles: &[&[&str]], tails: &[&str], into: &mut Vec<String>) {
    let mut found: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    for middle in middles {
        found = found
            .iter()
            .flat_map(|start| middle.iter().map(move |word| format!("{start}{word}")))
            .collect();
    }
    for start in found {
        into.extend(tails.iter().map(|tail| format!("{start}.{tail}")));
    }
}

/// Returns all forms, each once. Candidates that are not forms (`add.rn.ftz.f64`) have no model and are omitted.
pub fn all() -> Vec<String> {
    let mut found = Vec::new();
    let forms = &mut found;
    let flags: &[&str] = &["", ".sat", ".lo", ".hi", ".wide", ".hi.sat", ".lo.cc", ".hi.cc", ".cc", ".relu"];
    let integers: Vec<&str> = INTEGERS.into_iter().chain(PACKED).collect();
    let arithmetic = [
        "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "div", "rem", "abs", "neg", "min", "max", "addc", "subc", "madc",
    ];
    product(&arithmetic, &[flags], &integers, forms);
    product(&["mad24.hi.sat"], &[], &["s32"], forms);
    product(&["madc.lo.cc", "madc.hi.cc"], &[], &integers, forms);
    for (left, right) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        product(&["dp4a", "dp2a.lo", "dp2a.hi"], &[], &[&format!("{left}.{right}")], forms);
    }
    product(
        &["and", "or", "xor", "not", "cnot", "shl", "popc", "clz", "brev", "bfi", "fns"],
        &[],
        &BITS,
        forms,
    );
    let shifted: Vec<&str> = INTEGERS.into_iter().chain(BITS).collect();
    product(
        &["shr", "bfe", "bfind", "bfind.shiftamt", "szext.wrap", "szext.clamp"],
        &[],
        &shifted,
        forms,
    );
    product(
        &[
            "shf.l.clamp",
            "shf.l.wrap",
            "shf.r.clamp",
            "shf.r.wrap",
            "prmt",
            "lop3",
            "lop3.or",
            "lop3.and",
            "bmsk.wrap",
            "bmsk.clamp",
        ],
        &[],
        &["b32"],
        forms,
    );
    product(&["prmt.b32"], &[], &["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"], forms);
    let (ftz, sat): (&[&str], &[&str]) = (&["", ".ftz"], &["", ".sat"]);
    product(
        &["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"],
        &[&ROUNDINGS, ftz, sat],
        &FLOATS,
        forms,
    );
    product(&["fma.rn"], &[ftz, &[".relu"]], &FLOATS, forms);
    product(&["add", "sub", "fma"], &[&ROUNDINGS, sat, &[".f32"]], &["f16", "bf16"], forms);
    product(&["abs", "neg"], &[ftz], &FLOATS, forms);
    product(&["min", "max"], &[ftz, &["", ".NaN"], &["", ".xorsign.abs"]], &FLOATS, forms);
    product(
        &[
            "rcp.approx",
            "sqrt.approx",
            "rsqrt.approx",
            "sin.approx",
            "cos.approx",
            "ex2.approx",
            "lg2.approx",
            "tanh.approx",
            "div.approx",
            "div.full",
        ],
        &[ftz],
        &FLOATS,
        forms,
    );
    product(
        &["testp"],
        &[&[".finite", ".infinite", ".number", ".notanumber", ".normal", ".subnormal"]],
        &["f32", "f64"],
        forms,
    );
    product(&["copysign"], &[], &["f32", "f64"], forms);
    product(&["min", "max"], &[&[".s16x2", ".s32"]], &["relu"], forms);
    let (signs, parts): (&[&str], &[&str]) = (&[".u32", ".s32"], &["2", "4"]);
    for end in ["u32", "u32.sat", "u32.add", "s32", "s32.sat", "s32.add"] {
        let arithmetic = ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"];
        product(&arithmetic, &[parts, signs, signs], &[end], forms);
    }
    for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
        let ends = [comparison.to_owned(), format!("{comparison}.add")];
        product(&["vset"], &[parts, signs, signs], &ends.each_ref().map(String::as_str), forms);
    }
    comparisons(forms);
    conversions(forms);
    forms.sort();
    forms.dedup();
    forms.retain(|form| Model::of(form).is_some());
    found
}

fn comparisons(forms: &mut Vec<String>) {
    let all: Vec<&str> = INTEGERS.into_iter().chain(["b16", "b32", "b64"]).chain(FLOATS).collect();
    let comparisons: Vec<String> = ORDERED.iter().chain(&UNORDERED).map(|word| format!(".{word}")).collect();
    let comparisons: Vec<&str> = comparisons.iter().map(String::as_str).collect();
    product(&["setp"], &[&comparisons, &COMBINED, &["", ".ftz"]], &all, forms);
    let targets: Vec<String> = ["u32", "s32", "f32", "f16", "u16", "f16x2", "bf16", "bf16x2"]
        .map(|word| format!(".{word}"))
        .into();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    product(&["set"], &[&comparisons, &COMBINED, &["", ".ftz"], &targets], &all, forms);
    product(&["selp"], &[], &all, forms);
    let by: Vec<&str> = vec!["s32", "f32"];
    let chosen: Vec<String> = all.iter().map(|word| format!(".{word}")).collect();
    let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
    product(&["slct"], &[&["", ".ftz"], &chosen], &by, forms);
}

fn conversions(forms: &mut Vec<String>) {
    let types = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"];
    let targets: Vec<String> = types.iter().map(|word| format!(".{word}")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let roundings = ["", ".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rmi", ".rpi"];
    product(&["cvt"], &[&roundings, &["", ".ftz"], &["", ".sat"], &targets], &types, forms);
    product(
        &["cvt.rn", "cvt.rz"],
        &[&["", ".relu"], &[".f16", ".bf16", ".f16x2", ".bf16x2", ".tf32"]],
        &["f32"],
        forms,
    );
    product(&["cvt.rna.tf32"], &[], &["f32"], forms);
    product(
        &["cvt.rn.satfinite"],
        &[&["", ".relu"], &[".e4m3x2", ".e5m2x2"]],
        &["f32", "f16x2"],
        forms,
    );
    product(&["cvt.rn"], &[&["", ".relu"], &[".f16x2"]], &["e4m3x2", "e5m2x2"], forms);
}

/// Returns the width of the register that a program must use for an operand of this type.
pub fn register_width(kind: Kind) -> u32 {
    match kind.width() {
        1 => 1,
        // 8-bit values are held in wider registers.
        8 | 16 => 16,
        width => width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_combinations_have_no_model() {
        let forms = all();
        for wrong in [
            "add.rn.ftz.f64",
            "mul.wide.u64",
            "setp.lo.s32",
            "cvt.f32.f64",
            "cvt.s32.f32",
            "bfe.u16",
            "div.f32",
            "min.rn.f32",
            "fma.f32.f16",
        ] {
            assert!(!forms.iter().any(|form| form == wrong), "{wrong}");
        }
        for right in [
            "add.f32",
            "mad.wide.s16",
            "setp.ltu.and.ftz.f32",
            "cvt.rzi.s32.f32",
            "cvt.sat.u8.s32",
            "dp2a.hi.s32.u32",
            "sub.rp.sat.f32.bf16",
        ] {
            assert!(forms.iter().any(|form| form == right), "{right}");
        }
    }
}
