//! Scalar video instructions, `cvt.pack` and `.f32x2`, checked against transcriptions of the ISA's pseudocode.

use crate::instructions::check;

/// `partSelectSignExtend` of the ISA.
fn part(register: u32, select: &str, signed: bool) -> i128 {
    let (shift, bits) = match select {
        "" => (0, 32),
        select if select.starts_with(".b") => (8 * (select.as_bytes()[2] - b'0'), 8),
        select => (16 * (select.as_bytes()[2] - b'0'), 16),
    };
    let value = i128::from(register >> shift) & ((1 << bits) - 1);
    if signed && value >> (bits - 1) & 1 != 0 {
        value - (1 << bits)
    } else {
        value
    }
}

fn bounds(bits: u32, signed: bool) -> (i128, i128) {
    if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

fn bits_of(select: &str) -> u32 {
    match select.as_bytes().get(1) {
        Some(b'b') => 8,
        Some(_) => 16,
        None => 32,
    }
}

fn merge(select: &str, value: u32, c: u32) -> u32 {
    let shift = bits_of(select) * u32::from(select.as_bytes()[2] - b'0');
    let mask = ((1u64 << bits_of(select)) - 1) as u32;
    (c & !(mask << shift)) | (value & mask) << shift
}

const TYPES: [(&str, bool); 2] = [("u32", false), ("s32", true)];

/// An operation with the kinds of its operands, and its result before it is saturated.
type Operation<'a> = (&'a str, &'a dyn Fn(i128, i128) -> i128);

fn check_operation((opcode, apply): Operation<'_>, mode: &str, b_types: &[(&str, bool)]) {
    for (d_type, d_signed) in TYPES {
        for (a_type, a_signed) in TYPES {
            for (b_type, b_signed) in b_types.iter().copied() {
                for (a_part, b_part, d_part) in [("", "", ""), (".b3", ".h1", ".h1"), (".h0", ".b0", ".b2")] {
                    for sat in ["", ".sat"] {
                        let (c, written) = if d_part.is_empty() { ("", "") } else { (", %r3", d_part) };
                        let form = format!("{opcode}.{d_type}.{a_type}.{b_type}{sat}{mode}");
                        let body =
                            format!("mov.u32 %r3, 0x12345678; {form} %r4{written}, %r1{a_part}, %r2{b_part}{c}; cvt.u64.u32 %rd9, %r4;");
                        check(&body, |a, b| {
                            let value = apply(part(a as u32, a_part, a_signed), part(b as u32, b_part, b_signed));
                            let (low, high) = bounds(bits_of(d_part), d_signed);
                            let value = if sat.is_empty() { value } else { value.clamp(low, high) } as u32;
                            u64::from(if d_part.is_empty() {
                                value
                            } else {
                                merge(d_part, value, 0x1234_5678)
                            })
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn sums_and_extrema_of_parts_follow_the_isa() {
    check_operation(("vadd", &|a, b| a + b), "", &TYPES);
    check_operation(("vsub", &|a, b| a - b), "", &TYPES);
    check_operation(("vabsdiff", &|a, b| (a - b).abs()), "", &TYPES);
    check_operation(("vmin", &|a, b| a.min(b)), "", &TYPES);
    check_operation(("vmax", &|a, b| a.max(b)), "", &TYPES);
}

#[test]
fn shifts_of_parts_clamp_or_wrap_their_amount() {
    check_operation(("vshl", &|a, b| a << b.min(32)), ".clamp", &TYPES[..1]);
    check_operation(("vshl", &|a, b| a << (b & 31)), ".wrap", &TYPES[..1]);
    check_operation(("vshr", &|a, b| a >> b.min(32)), ".clamp", &TYPES[..1]);
    check_operation(("vshr", &|a, b| a >> (b & 31)), ".wrap", &TYPES[..1]);
}

#[test]
fn a_second_operation_combines_the_result_with_the_third_source() {
    for (second, signed, unsigned) in [
        (
            "add",
            i32::wrapping_add as fn(i32, i32) -> i32,
            u32::wrapping_add as fn(u32, u32) -> u32,
        ),
        ("min", |a, b| a.min(b), |a, b| a.min(b)),
        ("max", |a, b| a.max(b), |a, b| a.max(b)),
    ] {
        let constant = 0x8000_0007u32;
        let body = |form: &str| format!("mov.u32 %r3, {constant}; {form} %r4, %r1, %r2.b1, %r3; cvt.u64.u32 %rd9, %r4;");
        check(&body(&format!("vsub.s32.s32.u32.{second}")), |a, b| {
            let value = (part(a as u32, "", true) - part(b as u32, ".b1", false)) as i32;
            u64::from(signed(value, constant as i32) as u32)
        });
        check(&body(&format!("vset.u32.s32.le.{second}")), |a, b| {
            let value = part(a as u32, "", false) <= part(b as u32, ".b1", true);
            u64::from(unsigned(u32::from(value), constant))
        });
    }
    check("vset.s32.u32.ne %r4, %r1.h1, %r2.b0; cvt.u64.u32 %rd9, %r4;", |a, b| {
        u64::from(part(a as u32, ".h1", true) != part(b as u32, ".b0", false))
    });
}

#[test]
fn products_are_negated_scaled_and_saturated() {
    for (a_sign, b_sign, c_sign, po) in [
        ("", "", "", ""),
        ("-", "", "", ""),
        ("", "-", "", ""),
        ("", "", "-", ""),
        ("-", "-", "", ""),
        ("", "", "", ".po"),
    ] {
        for (a_type, a_signed) in TYPES {
            for (scale, shift) in [("", 0), (".shr7", 7), (".shr15", 15)] {
                for sat in ["", ".sat"] {
                    let body = format!(
                        "mov.u32 %r3, 0x80000001; vmad.u32.{a_type}.u32{po}{sat}{scale} %r4, {a_sign}%r1, {b_sign}%r2.h0, {c_sign}%r3; \
                         cvt.u64.u32 %rd9, %r4;"
                    );
                    check(&body, |a, b| {
                        let negative = (a_sign != b_sign, !c_sign.is_empty());
                        let signed = a_signed || negative.0 || negative.1;
                        let mut product = part(a as u32, "", a_signed) * part(b as u32, ".h0", false);
                        let (mut c, mut lsb) = (0x8000_0001u32, i128::from(!po.is_empty()));
                        if po.is_empty() && negative.0 {
                            (product, lsb) = (!product, 1);
                        } else if po.is_empty() && negative.1 {
                            (c, lsb) = (!c, 1);
                        }
                        let c = if signed { i128::from(c as i32) } else { i128::from(c) };
                        let result = ((product + c + lsb) >> shift) as u64;
                        let (low, high) = bounds(32, signed);
                        let result = if signed { i128::from(result as i64) } else { i128::from(result) };
                        u64::from(if sat.is_empty() { result } else { result.clamp(low, high) } as u32)
                    });
                }
            }
        }
    }
}

/// Operation on one part, and a name.
type PartOperation<'a> = (&'a str, &'a dyn Fn(i128, i128) -> i128);

/// Checks a SIMD operation with these selections of parts of {b, a}, by a transcription of the ISA's pseudocode.
fn check_selection((opcode, apply): PartOperation<'_>, parts: u32, mask: &str, selections: [&str; 2], ends: &[&str]) {
    let bits = 32 / parts;
    let letter = if parts == 2 { 'h' } else { 'b' };
    let digits = |word: &str| word.bytes().rev().map(|digit| u32::from(digit - b'0')).collect::<Vec<u32>>();
    let suffix = |word: &str| {
        if word.is_empty() {
            String::new()
        } else {
            format!(".{letter}{word}")
        }
    };
    let selected = |word: &str, first: u32| {
        if word.is_empty() {
            (first..first + parts).collect()
        } else {
            digits(word)
        }
    };
    let (a_parts, b_parts) = (selected(selections[0], 0), selected(selections[1], parts));
    let written = selected(mask, 0);
    for (d_type, d_signed) in TYPES {
        for (a_type, a_signed) in TYPES {
            for (b_type, b_signed) in TYPES {
                for end in ends {
                    let types = if opcode.starts_with("vset") {
                        format!("{a_type}.{b_type}")
                    } else {
                        format!("{d_type}.{a_type}.{b_type}")
                    };
                    let d_signed = d_signed && !opcode.starts_with("vset");
                    let body = format!(
                        "mov.u32 %r3, 0x89abcdef; {opcode}{parts}.{types}{end} %r4{}, %r1{}, %r2{}, %r3; cvt.u64.u32 %rd9, %r4;",
                        suffix(mask),
                        suffix(selections[0]),
                        suffix(selections[1])
                    );
                    check(&body, |a, b| {
                        let sources = [a as u32, b as u32];
                        let read = |part: u32, signed: bool| {
                            let value = i128::from(sources[(part / parts) as usize] >> (bits * (part % parts))) & ((1 << bits) - 1);
                            if signed && value >> (bits - 1) & 1 != 0 {
                                value - (1 << bits)
                            } else {
                                value
                            }
                        };
                        let c = 0x89ab_cdefu32;
                        let (mut merged, mut sum) = (c, i128::from(c));
                        for place in &written {
                            let result = apply(read(a_parts[*place as usize], a_signed), read(b_parts[*place as usize], b_signed));
                            let (low, high) = bounds(bits, d_signed);
                            let result = if end.contains("sat") { result.clamp(low, high) } else { result };
                            let mask = ((1u64 << bits) - 1) as u32;
                            merged = merged & !(mask << (bits * place)) | (result as u32 & mask) << (bits * place);
                            sum += result;
                        }
                        u64::from(if end.contains("add") { sum as u32 } else { merged })
                    });
                }
            }
        }
    }
}

#[test]
fn parts_of_both_sources_are_selected_and_masked() {
    let ends = ["", ".sat", ".add"];
    for (mask, selections) in [
        ("", ["7654", "3210"]),
        ("0", ["", ""]),
        ("310", ["0167", "7070"]),
        ("3210", ["2222", ""]),
        ("2", ["", "1234"]),
    ] {
        check_selection(("vadd", &|a, b| a + b), 4, mask, selections, &ends);
        check_selection(("vabsdiff", &|a, b| (a - b).abs()), 4, mask, selections, &ends);
        check_selection(("vset", &|a, b| i128::from(a < b)), 4, mask, selections, &[".lt", ".lt.add"]);
    }
    for (mask, selections) in [("", ["32", "10"]), ("1", ["", "01"]), ("0", ["03", "33"]), ("10", ["21", ""])] {
        check_selection(("vsub", &|a, b| a - b), 2, mask, selections, &ends);
        check_selection(("vmax", &|a, b| a.max(b)), 2, mask, selections, &ends);
        check_selection(("vset", &|a, b| i128::from(a >= b)), 2, mask, selections, &[".ge", ".ge.add"]);
    }
    for wrong in [
        "vadd4.u32.u32.u32 %r4.b02, %r1, %r2, %r3",
        "vadd4.u32.u32.u32 %r4.b4, %r1, %r2, %r3",
        "vadd4.u32.u32.u32 %r4, %r1.b654, %r2, %r3",
        "vadd4.u32.u32.u32 %r4, %r1.b8000, %r2, %r3",
        "vadd2.u32.u32.u32 %r4, %r1.h40, %r2, %r3",
        "vadd2.u32.u32.u32 %r4, %r1.b10, %r2, %r3",
        "vadd2.u32.u32.u32 %r4.h00, %r1, %r2, %r3",
    ] {
        let text = format!(".version 8.0 .target sm_80 .address_size 64 .entry k() {{ .reg .b32 %r<5>; {wrong}; ret; }}");
        let error = sahasra_ptx::Module::load(&text).expect_err(wrong);
        assert!(matches!(error.kind, sahasra_ptx::LoadErrorKind::Invalid(_)), "{error}");
    }
}

#[test]
fn packed_conversions_clamp_both_values_and_shift_the_third_operand_in() {
    for (name, bits, signed) in [
        ("u16", 16, false),
        ("s16", 16, true),
        ("u8", 8, false),
        ("s8", 8, true),
        ("u4", 4, false),
        ("s4", 4, true),
        ("u2", 2, false),
        ("s2", 2, true),
    ] {
        let (kind, c) = if bits == 16 { ("", "") } else { (".b32", ", %r3") };
        let body = format!("mov.u32 %r3, 0x89abcdef; cvt.pack.sat.{name}.s32{kind} %r4, %r1, %r2{c}; cvt.u64.u32 %rd9, %r4;");
        check(&body, |a, b| {
            let (low, high) = bounds(bits, signed);
            let mut packed = 0u64;
            let clamped = |value: u64| i128::from(value as i32).clamp(low, high) as u64;
            // Bit by bit, as in the ISA.
            for bit in 0..32 {
                let source = if bit < bits {
                    clamped(b) >> bit
                } else if bit < 2 * bits {
                    clamped(a) >> (bit - bits)
                } else {
                    0x89ab_cdefu64 >> (bit - 2 * bits)
                };
                packed |= (source & 1) << bit;
            }
            packed
        });
    }
}

#[test]
fn pairs_of_floats_are_two_floats() {
    for (form, single) in [
        ("add.f32x2 %rd3, %rd1, %rd2", "add.f32 %f3, %f1, %f2"),
        ("sub.rz.f32x2 %rd3, %rd1, %rd2", "sub.rz.f32 %f3, %f1, %f2"),
        ("mul.rp.ftz.f32x2 %rd3, %rd1, %rd2", "mul.rp.ftz.f32 %f3, %f1, %f2"),
        ("fma.rn.f32x2 %rd3, %rd1, %rd2, %rd1", "fma.rn.f32 %f3, %f1, %f2, %f1"),
        ("fma.rm.ftz.f32x2 %rd3, %rd1, %rd2, %rd1", "fma.rm.ftz.f32 %f3, %f1, %f2, %f1"),
    ] {
        let halves = |part: &str| {
            format!(
                "mov.b64 {{%r3, %r4}}, %rd1; mov.b64 {{%r5, %r6}}, %rd2; mov.b32 %f1, %r{}; mov.b32 %f2, %r{};",
                &part[..1],
                &part[1..]
            )
        };
        let (low, high) = (halves("35"), halves("46"));
        // The bits that differ from those of the single operations.
        let body = format!(
            "{form}; mov.b64 {{%r10, %r11}}, %rd3; {low} {single}; mov.b32 %r7, %f3; {high} {single}; mov.b32 %r8, %f3; \
             xor.b32 %r7, %r7, %r10; xor.b32 %r8, %r8, %r11; or.b32 %r7, %r7, %r8; cvt.u64.u32 %rd9, %r7;"
        );
        check(&body, |_, _| 0);
    }
    let product = |a: u64, b: u64| u64::from((f32::from_bits(a as u32) * f32::from_bits(b as u32)).to_bits());
    let body = "mul.f32x2 %rd3, %rd1, %rd2; mov.b64 {%r3, %r4}, %rd3; mov.b32 %f3, %r3; testp.notanumber.f32 %p1, %f3; \
                selp.b32 %r3, 0, %r3, %p1; cvt.u64.u32 %rd9, %r3;";
    check(body, |a, b| {
        let bits = product(a, b);
        if f32::from_bits(bits as u32).is_nan() { 0 } else { bits }
    });
}
