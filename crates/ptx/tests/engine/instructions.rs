//! Single instructions, checked against the ISA, which these tests transcribe independently.

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

/// Runs `body` for each pair of inputs, which are in `%rd1`, `%rd2` (their low halves in `%r1`, `%r2`, as floats in `%f1`, `%f2`, `%fd1`,
/// `%fd2`). Returns the values of `%rd9`. Blocks have 50 threads, so that groups are not full.
fn evaluate(body: &str, inputs: &[(u64, u64)]) -> Vec<u64> {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)\n{{\n\
         .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<99>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .b64 %rd<99>;\n\
         mov.u32 %r90, %ctaid.x; mov.u32 %r91, %ntid.x; mov.u32 %r92, %tid.x; mad.lo.u32 %r93, %r90, %r91, %r92;\n\
         ld.param.u32 %r94, [n]; setp.ge.u32 %p8, %r93, %r94; @%p8 ret;\n\
         ld.param.u64 %rd90, [in]; ld.param.u64 %rd91, [out]; mul.wide.u32 %rd92, %r93, 16; add.s64 %rd93, %rd90, %rd92;\n\
         ld.global.v2.u64 {{%rd1, %rd2}}, [%rd93]; mul.wide.u32 %rd94, %r93, 8; add.s64 %rd95, %rd91, %rd94;\n\
         cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b64 %fd1, %rd1; mov.b64 %fd2, %rd2; mov.u64 %rd9, 0;\n\
         {body}\nst.global.u64 [%rd95], %rd9;\nret;\n}}\n"
    );
    let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let memory = Memory::new(1 << 24);
    let bytes: Vec<u8> = inputs
        .iter()
        .flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat())
        .collect();
    let (source, target) = (
        memory.allocate(bytes.len() as u64).expect("fits"),
        memory.allocate(8 * inputs.len() as u64).expect("fits"),
    );
    memory.write(source, &bytes).expect("inside");
    let launch = Launch::new([inputs.len().div_ceil(50) as u32, 1, 1], [50, 1, 1]);
    let arguments = ArgumentList::new().pointer(source).pointer(target).u32(inputs.len() as u32);
    let kernel = module.entry("k").expect("the kernel");
    kernel
        .launch(&launch, arguments.bytes(), &memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let mut found = vec![0; 8 * inputs.len()];
    memory.read(target, &mut found).expect("inside");
    found
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect()
}

/// Returns edge cases of all kinds, and pseudorandom values.
fn interesting() -> Vec<u64> {
    let mut values = vec![
        0,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        63,
        64,
        127,
        128,
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 32,
        0x7fff_ffff_ffff_ffff,
        1 << 63,
        u64::MAX,
        0xdead_beef_0123_4567,
    ];
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        0.1,
        1e-40,
        -1e-40,
        1e-38,
        3e38,
        -3e38,
        1e10,
        2147483648.0,
        -2147483648.0,
        4294967296.0,
        16777217.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
    ];
    values.extend(floats.iter().map(|value| u64::from(value.to_bits())));
    values.extend(floats.iter().map(|value| f64::from(*value).to_bits()));
    let mut state = 9u64;
    for _ in 0..24 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        values.push(state);
    }
    values
}

fn pairs() -> Vec<(u64, u64)> {
    let values = interesting();
    values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))).collect()
}

pub(crate) fn check(body: &str, expected: impl Fn(u64, u64) -> u64) {
    let inputs = pairs();
    for ((a, b), found) in inputs.iter().zip(evaluate(body, &inputs)) {
        let expected = expected(*a, *b);
        assert!(found == expected, "{body}\n{a:#x}, {b:#x}: {found:#x} instead of {expected:#x}");
    }
}

/// Checks a 32-bit instruction `%r9 = f(%r1, %r2)`.
fn check32(instruction: &str, expected: impl Fn(u32, u32) -> u32) {
    check(&format!("{instruction} cvt.u64.u32 %rd9, %r9;"), |a, b| {
        u64::from(expected(a as u32, b as u32))
    });
}

/// Checks an f32 instruction `%f8 = f(%f1, %f2)`. All NaNs are equal.
fn check_single(instruction: &str, expected: impl Fn(f32, f32) -> f32) {
    let canonical = |value: f32| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
    let inputs = pairs();
    let body = format!("{instruction} mov.b32 %r9, %f8; cvt.u64.u32 %rd9, %r9;");
    for ((a, b), found) in inputs.iter().zip(evaluate(&body, &inputs)) {
        let (a, b) = (f32::from_bits(*a as u32), f32::from_bits(*b as u32));
        let (found, expected) = (canonical(f32::from_bits(found as u32)), canonical(expected(a, b)));
        assert!(
            found == expected,
            "{instruction}\n{a:e}, {b:e}: {found:#x} instead of {expected:#x}"
        );
    }
}

#[test]
fn integer_arithmetic() {
    check32("mul.hi.u32 %r9, %r1, %r2;", |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    check32("mul.hi.s32 %r9, %r1, %r2;", |a, b| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    check("mul.hi.u64 %rd9, %rd1, %rd2;", |a, b| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    check("mul.wide.s32 %rd9, %r1, %r2;", |a, b| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check("mad.wide.u32 %rd9, %r1, %r2, %rd2;", |a, b| {
        (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(b)
    });
    check32("mad.hi.s32 %r9, %r1, %r2, %r1;", |a, b| {
        (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32).wrapping_add(a)
    });
    check32("mul24.lo.s32 %r9, %r1, %r2;", |a, b| {
        (((a << 8) as i32 >> 8).wrapping_mul((b << 8) as i32 >> 8)) as u32
    });
    check32("mad24.lo.u32 %r9, %r1, %r2, %r2;", |a, b| {
        (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(b)
    });
    check32("sad.s32 %r9, %r1, %r2, %r1;", |a, b| (a as i32).abs_diff(b as i32).wrapping_add(a));
    check32("add.sat.s32 %r9, %r1, %r2;", |a, b| (a as i32).saturating_add(b as i32) as u32);
    check32("sub.sat.s32 %r9, %r1, %r2;", |a, b| (a as i32).saturating_sub(b as i32) as u32);
    check32("abs.s32 %r9, %r1;", |a, _| (a as i32).wrapping_abs() as u32);
    check32("min.s32 %r9, %r1, %r2;", |a, b| (a as i32).min(b as i32) as u32);
    check("max.u64 %rd9, %rd1, %rd2;", u64::max);
    check("setp.ne.s64 %p1, %rd2, 0; @%p1 rem.s64 %rd9, %rd1, %rd2;", |a, b| {
        if b == 0 { 0 } else { (a as i64).wrapping_rem(b as i64) as u64 }
    });
    check(
        "setp.ne.u32 %p1, %r2, 0; @%p1 div.u32 %r9, %r1, %r2; @!%p1 mov.u32 %r9, 7; cvt.u64.u32 %rd9, %r9;",
        |a, b| u64::from((a as u32).checked_div(b as u32).unwrap_or(7)),
    );
    check(
        "cvt.u16.u64 %rs1, %rd1; cvt.u16.u64 %rs2, %rd2; mul.wide.s16 %r9, %rs1, %rs2; cvt.s64.s32 %rd9, %r9;",
        |a, b| (i64::from(a as i16) * i64::from(b as i16)) as u64,
    );
    check(
        "cvt.u16.u64 %rs1, %rd1; cvt.u16.u64 %rs2, %rd2; sub.u16 %rs3, %rs1, %rs2; shr.s16 %rs3, %rs3, 3; cvt.s64.s16 %rd9, %rs3;",
        |a, b| i64::from((a as i16).wrapping_sub(b as i16) >> 3) as u64,
    );
}

#[test]
fn logic_and_bits() {
    check32("shl.b32 %r9, %r1, %r2;", |a, b| a.checked_shl(b).unwrap_or(0));
    check32("shr.s32 %r9, %r1, %r2;", |a, b| ((a as i32) >> b.min(31)) as u32);
    check("shr.u64 %rd9, %rd1, %r2;", |a, b| a.checked_shr(b as u32).unwrap_or(0));
    check32("shf.l.wrap.b32 %r9, %r1, %r2, %r1;", |a, b| {
        (((u64::from(b) << 32 | u64::from(a)) << (a & 31)) >> 32) as u32
    });
    check32("shf.r.clamp.b32 %r9, %r1, %r2, %r1;", |a, b| {
        ((u64::from(b) << 32 | u64::from(a)) >> a.min(32)) as u32
    });
    check("popc.b64 %r9, %rd1; cvt.u64.u32 %rd9, %r9;", |a, _| u64::from(a.count_ones()));
    check("clz.b64 %r9, %rd1; cvt.u64.u32 %rd9, %r9;", |a, _| u64::from(a.leading_zeros()));
    check("brev.b64 %rd9, %rd1;", |a, _| a.reverse_bits());
    check32("bfind.s32 %r9, %r1;", |a, _| {
        let bits = if (a as i32) < 0 { !a } else { a };
        if bits == 0 { u32::MAX } else { 31 - bits.leading_zeros() }
    });
    check32("bfi.b32 %r9, %r1, %r2, %r1, 5;", |a, b| {
        // Literal transcription of the PTX ISA: bits beyond the top are dropped.
        let (position, mut d) = (a & 0xff, b);
        for i in 0..5 {
            if position + i < 32 {
                d = (d & !(1 << (position + i))) | ((a >> i) & 1) << (position + i);
            }
        }
        d
    });
    check32("bfe.u32 %r9, %r1, 4, %r2;", |a, b| {
        let length = b & 0xff;
        (0..32)
            .filter(|bit| *bit < length && bit + 4 < 32)
            .fold(0, |d, bit| d | ((a >> (bit + 4)) & 1) << bit)
    });
    check32("lop3.b32 %r9, %r1, %r2, %r94, 0x96;", |a, b| a ^ b ^ pairs().len() as u32);
    check32("lop3.b32 %r9, %r1, %r2, %r1, 0xCA;", |a, b| (a & b) | (!a & a));
    check32("cnot.b32 %r9, %r1;", |a, _| u32::from(a == 0));
    check32("prmt.b32 %r9, %r1, %r2, 0x3705;", |a, b| {
        let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
        u32::from_le_bytes([bytes[5], bytes[0], bytes[7], bytes[3]])
    });
    check("mov.b64 {%r3, %r4}, %rd1; mov.b64 %rd9, {%r4, %r3};", |a, _| a.rotate_left(32));
    check(
        "mov.b64 {%rs1, %rs2, %rs3, %rs4}, %rd1; mov.b64 %rd9, {%rs3, %rs1, %rs4, %rs2};",
        |a, _| {
            let part = |index: u32| (a >> (16 * index)) & 0xffff;
            part(2) | part(0) << 16 | part(3) << 32 | part(1) << 48
        },
    );
    check("mov.b32 {%rs1, _}, %r1; cvt.u64.u16 %rd9, %rs1;", |a, _| a & 0xffff);
}

#[test]
fn comparisons_and_selections() {
    let truth = |holds: bool| u64::from(holds);
    check(
        "setp.lt.s32 %p1|%p2, %r1, %r2; selp.u64 %rd3, 1, 0, %p1; selp.u64 %rd4, 2, 0, %p2; add.u64 %rd9, %rd3, %rd4;",
        |a, b| {
            if (a as i32) < b as i32 { 1 } else { 2 }
        },
    );
    check(
        "setp.gt.u64 %p1, %rd1, 100; setp.lt.and.u64 %p1|%p2, %rd1, %rd2, %p1; selp.u64 %rd3, 1, 0, %p1; selp.u64 %rd4, 2, 0, %p2; add.u64 %rd9, %rd3, %rd4;",
        |a, b| truth(a < b && a > 100) + 2 * truth(a >= b && a > 100),
    );
    check("setp.ltu.f32 %p1, %f1, %f2; selp.u64 %rd9, 1, 0, %p1;", |a, b| {
        let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        truth(a < b || a.is_nan() || b.is_nan())
    });
    check("setp.num.f64 %p1, %fd1, %fd2; selp.u64 %rd9, 1, 0, %p1;", |a, b| {
        truth(!f64::from_bits(a).is_nan() && !f64::from_bits(b).is_nan())
    });
    check("setp.eq.ftz.f32 %p1, %f1, 0f00000000; selp.u64 %rd9, 1, 0, %p1;", |a, _| {
        truth(f32::from_bits(a as u32).abs() < f32::MIN_POSITIVE)
    });
    check32(
        "set.ge.u32.s32 %r9, %r1, %r2;",
        |a, b| if a as i32 >= b as i32 { u32::MAX } else { 0 },
    );
    check32("set.gt.f32.u32 %r9, %r1, %r2;", |a, b| if a > b { 1f32.to_bits() } else { 0 });
    check32("slct.b32.s32 %r9, %r1, %r2, %r1;", |a, b| if a as i32 >= 0 { a } else { b });
    check("setp.ne.u32 %p1, %r1, 0; not.pred %p2, %p1; @!%p2 mov.u64 %rd9, 5;", |a, _| {
        if a as u32 != 0 { 5 } else { 0 }
    });
    check(
        "testp.subnormal.f32 %p1, %f1; testp.infinite.f32 %p2, %f2; selp.u64 %rd3, 1, 0, %p1; selp.u64 %rd4, 2, 0, %p2; add.u64 %rd9, %rd3, %rd4;",
        |a, b| truth(f32::from_bits(a as u32).is_subnormal()) + 2 * truth(f32::from_bits(b as u32).is_infinite()),
    );
}

#[test]
fn single_precision_rounds_correctly() {
    check_single("add.f32 %f8, %f1, %f2;", |a, b| a + b);
    check_single("fma.rn.f32 %f8, %f1, %f2, %f1;", |a, b| a.mul_add(b, a));
    check_single("div.rn.f32 %f8, %f1, %f2;", |a, b| a / b);
    check_single("sqrt.rn.f32 %f8, %f1;", |a, _| a.sqrt());
    check_single("rcp.rn.f32 %f8, %f1;", |a, _| 1.0 / a);
    let flush = |value: f32| if value.is_subnormal() { 0f32.copysign(value) } else { value };
    check_single("mul.ftz.f32 %f8, %f1, %f2;", |a, b| flush(flush(a) * flush(b)));
    check_single("add.sat.f32 %f8, %f1, %f2;", |a, b| {
        let sum = a + b;
        if sum > 0.0 { sum.min(1.0) } else { 0.0 }
    });
    check_single("min.NaN.f32 %f8, %f1, %f2;", |a, b| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a < b || (a == b && a.is_sign_negative()) {
            a
        } else {
            b
        }
    });
    check_single("copysign.f32 %f8, %f1, %f2;", |a, b| b.copysign(a));
    // The product of two f32 is exact in f64, so that rounding it to f32 rounds once.
    let down = |exact: f64| {
        let near = exact as f32;
        if f64::from(near) > exact { near.next_down() } else { near }
    };
    check_single("mul.rm.f32 %f8, %f1, %f2;", |a, b| {
        let exact = f64::from(a) * f64::from(b);
        if exact.is_finite() { down(exact) } else { exact as f32 }
    });
}

#[test]
fn conversions() {
    let single = |bits: u64| f32::from_bits(bits as u32);
    check("cvt.rzi.s32.f32 %r9, %f1; cvt.s64.s32 %rd9, %r9;", |a, _| {
        i64::from(single(a) as i32) as u64
    });
    check("cvt.rni.u32.f32 %r9, %f1; cvt.u64.u32 %rd9, %r9;", |a, _| {
        u64::from(single(a).round_ties_even() as u32)
    });
    check("cvt.rmi.s64.f64 %rd9, %fd1;", |a, _| {
        let value = f64::from_bits(a);
        if value.is_nan() { 1 << 63 } else { value.floor() as i64 as u64 }
    });
    check("cvt.rn.f64.s64 %fd3, %rd1; mov.b64 %rd9, %fd3;", |a, _| (a as i64 as f64).to_bits());
    check("cvt.rn.f32.u64 %f3, %rd1; mov.b32 %r9, %f3; cvt.u64.u32 %rd9, %r9;", |a, _| {
        u64::from((a as f32).to_bits())
    });
    check("cvt.s8.s32 %r9, %r1; cvt.s64.s32 %rd9, %r9;", |a, _| i64::from(a as i8) as u64);
    check("cvt.u8.u32 %rs1, %r1; cvt.u64.u16 %rd9, %rs1;", |a, _| a & 0xff);
    check("cvt.sat.u8.s32 %r9, %r1; cvt.u64.u32 %rd9, %r9;", |a, _| {
        (a as i32).clamp(0, 255) as u64
    });
    check("cvt.sat.s16.s64 %rs1, %rd1; cvt.s64.s16 %rd9, %rs1;", |a, _| {
        (a as i64).clamp(-32768, 32767) as u64
    });
    check("cvt.s64.s8 %rd9, %rd1;", |a, _| i64::from(a as i8) as u64);
    check(
        "cvt.rpi.f32.f32 %f3, %f1; cvt.sat.f32.f32 %f4, %f3; mov.b32 %r9, %f4; cvt.u64.u32 %rd9, %r9;",
        |a, _| {
            let value = single(a).ceil();
            u64::from((if value > 0.0 { value.min(1.0) } else { 0.0 }).to_bits())
        },
    );
}

#[test]
fn memory_spaces_share_the_generic_space() {
    // One value moves through shared, local and global memory, at addresses of each space and at generic addresses.
    let body = ".shared .align 8 .b8 s[512]; .local .align 8 .b8 l[40];\n\
        mul.wide.u32 %rd10, %r92, 8; mov.u64 %rd11, s; add.s64 %rd12, %rd11, %rd10; cvta.shared.u64 %rd13, %rd12;\n\
        st.u64 [%rd13], %rd1; ld.shared.u64 %rd14, [%rd12];\n\
        mov.u64 %rd15, l; cvta.local.u64 %rd16, %rd15; st.v2.u64 [%rd16+16], {%rd14, %rd2}; ld.local.v2.u64 {%rd17, %rd18}, [%rd15+16];\n\
        cvta.to.local.u64 %rd19, %rd16; ld.local.u16 %rd20, [%rd19+18]; st.local.u8 [%rd19+16], %rd20;\n\
        ld.u64 %rd21, [%rd16+16]; cvta.global.u64 %rd22, %rd95; st.u64 [%rd22], %rd21; ld.global.u64 %rd23, [%rd95]; xor.b64 %rd9, %rd23, %rd18;";
    check(body, |a, b| ((a & !0xff) | ((a >> 16) & 0xff)) ^ b);
}

#[test]
fn narrow_loads_extend_by_the_instructions_type() {
    let body = |load: &str| format!(".local .align 8 .b8 l[16]; st.local.u64 [l+8], %rd1; {load}");
    check(&body("ld.local.s8 %rd9, [l+9];"), |a, _| i64::from((a >> 8) as i8) as u64);
    check(&body("ld.local.u16 %r9, [l+10]; cvt.u64.u32 %rd9, %r9;"), |a, _| (a >> 16) & 0xffff);
    check(&body("ld.local.s32 %rd9, [l+12];"), |a, _| ((a as i64) >> 32) as u64);
    check(
        &body("ld.local.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [l+8]; mov.b64 %rd9, {%rs4, %rs3, %rs2, %rs1};"),
        |a, _| (a & 0xffff) << 48 | (a & 0xffff_0000) << 16 | (a >> 16) & 0xffff_0000 | a >> 48,
    );
}

#[test]
fn special_registers_describe_the_launch() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n\
        .reg .b32 %r<40>; .reg .b64 %rd<9>;\n\
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;\n\
        mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r7, %r6, %r4, %r1; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %nctaid.y;\n\
        mov.u32 %r10, %laneid; mov.u32 %r11, %warpid; mov.u32 %r12, %nwarpid; mov.u32 %r13, %lanemask_lt; mov.u32 %r14, %lanemask_ge;\n\
        mov.u32 %r15, WARP_SZ; mov.u32 %r16, %ctaid.z;\n\
        ld.param.u64 %rd1, [out]; mad.lo.u32 %r20, %r8, 84, %r7; mul.wide.u32 %rd2, %r20, 32; add.s64 %rd3, %rd1, %rd2;\n\
        st.global.v4.u32 [%rd3], {%r7, %r8, %r9, %r10}; shl.b32 %r21, %r12, 8; add.u32 %r21, %r21, %r11; st.global.v4.u32 [%rd3+16], {%r21, %r13, %r14, %r15};\n\
        ret;\n}\n";
    let module = Module::load(text).expect("loads");
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(3 * 84 * 32).expect("fits");
    let launch = Launch::new([1, 3, 1], [7, 4, 3]);
    module
        .entry("k")
        .expect("the kernel")
        .launch(&launch, ArgumentList::new().pointer(out).bytes(), &memory, &Cancel::new())
        .expect("runs");
    let mut bytes = vec![0; 3 * 84 * 32];
    memory.read(out, &mut bytes).expect("inside");
    for (index, entry) in bytes.chunks_exact(32).enumerate() {
        let found: Vec<u32> = entry
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect();
        let (thread, block) = (index as u32 % 84, index as u32 / 84);
        let lane = thread % 32;
        assert_eq!(
            found,
            [
                thread,
                block,
                3,
                lane,
                3 * 256 + thread / 32,
                (1 << lane) - 1,
                !((1 << lane) - 1),
                32
            ]
        );
    }
}

#[test]
fn producers_do_not_wait_at_named_barriers() {
    // Threads 0-31 produce, and only arrive at barrier 1. Threads 32-63 wait for them at the barrier.
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n\
        .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .shared .align 4 .b8 s[128];\n\
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; mul.wide.u32 %rd2, %r2, 4; mov.u64 %rd3, s; add.s64 %rd4, %rd3, %rd2; add.s64 %rd5, %rd1, %rd2;\n\
        setp.lt.u32 %p1, %r1, 32; @%p1 bra PRODUCE;\n\
        barrier.sync.aligned 1, 64; ld.shared.u32 %r3, [%rd4]; st.global.u32 [%rd5], %r3; ret;\n\
        PRODUCE: mad.lo.u32 %r4, %r1, %r1, 1; st.shared.u32 [%rd4], %r4; barrier.arrive 1, 64; ret;\n}\n";
    let module = Module::load(text).expect("loads");
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(128).expect("fits");
    let kernel = module.entry("k").expect("the kernel");
    kernel
        .launch(
            &Launch::new([1, 1, 1], [64, 1, 1]),
            ArgumentList::new().pointer(out).bytes(),
            &memory,
            &Cancel::new(),
        )
        .expect("runs");
    let mut bytes = [0; 128];
    memory.read(out, &mut bytes).expect("inside");
    let found: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    assert_eq!(found, (0..32).map(|lane| lane * lane + 1).collect::<Vec<u32>>());
}

#[test]
fn parameters_may_be_arrays_addressed_by_registers() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .align 8 .b8 data[32], .param .u8 last)\n{\n\
        .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %rs<3>;\n\
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; mov.b64 %rd3, data; add.s64 %rd4, %rd3, %rd2; ld.param.u64 %rd5, [%rd4];\n\
        ld.param.u8 %rs1, [last]; cvt.u64.u16 %rd6, %rs1; add.s64 %rd5, %rd5, %rd6; add.s64 %rd7, %rd1, %rd2; st.global.u64 [%rd7], %rd5; ret;\n}\n";
    let module = Module::load(text).expect("loads");
    let kernel = module.entry("k").expect("the kernel");
    let offsets: Vec<_> = kernel
        .parameters()
        .iter()
        .map(|parameter| (parameter.offset, parameter.size, parameter.align))
        .collect();
    assert_eq!(offsets, [(0, 8, 8), (8, 32, 8), (40, 1, 1)]);
    assert_eq!(kernel.parameter_bytes(), 41);
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(32).expect("fits");
    let mut arguments = ArgumentList::new().pointer(out).u64(10).u64(20).u64(30).u64(40).bytes().to_vec();
    arguments.push(7);
    kernel
        .launch(&Launch::new([1, 1, 1], [4, 1, 1]), &arguments, &memory, &Cancel::new())
        .expect("runs");
    let mut bytes = [0; 32];
    memory.read(out, &mut bytes).expect("inside");
    let found: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    assert_eq!(found, [17, 27, 37, 47]);
}

#[test]
fn an_instruction_may_write_its_own_guard() {
    // Where %p1 holds, it becomes 1 > 2, and %p2 the complement; elsewhere both are unchanged.
    let body = "setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; @%p1 setp.gt.u32 %p1|%p2, 1, 2; selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 2, 0, %p2; add.u32 %r3, %r3, %r4; cvt.u64.u32 %rd9, %r3;";
    assert_eq!(evaluate(body, &[(0, 0), (0, 1), (1, 0), (1, 1)]), [0, 2, 2, 2]);
}
