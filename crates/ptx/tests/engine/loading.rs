//! Loading takes time and memory in proportion to the text, whatever the text contains.

use std::fmt::Write as _;

use sahasra_ptx::{ArgumentList, Cancel, Launch, LoadErrorKind, Memory, Module};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Returns a function that calls itself in `calls` places, with `registers` values that are live after all calls.
fn recursive(registers: u32, calls: u32) -> String {
    let (below, result, sum) = (registers + 1, registers + 2, registers + 3);
    let mut text = format!(
        "{HEAD}.visible .func (.param .b32 out) f(.param .b32 n) {{\n\
         .reg .pred %p<2>; .reg .b32 %r<{}>;\n\
         ld.param.u32 %r0, [n]; mov.u32 %r{sum}, 0;\n",
        registers + 4
    );
    for register in 1..=registers {
        let _ = writeln!(text, "add.u32 %r{register}, %r0, {register};");
    }
    let _ = writeln!(text, "setp.eq.u32 %p1, %r0, 0; @%p1 bra DONE; sub.u32 %r{below}, %r0, 1;");
    for _ in 0..calls {
        let _ = writeln!(
            text,
            "{{ .param .b32 a; .param .b32 v; st.param.b32 [a], %r{below}; call (v), f, (a); ld.param.b32 %r{result}, [v]; }}\n\
             add.u32 %r{sum}, %r{sum}, %r{result};"
        );
    }
    text.push_str("DONE:\n");
    for register in 1..=registers {
        let _ = writeln!(text, "add.u32 %r{sum}, %r{sum}, %r{register};");
    }
    let _ = write!(
        text,
        "st.param.b32 [out], %r{sum}; ret; }}\n\
         .visible .entry k(.param .u64 p, .param .u32 n) {{\n\
         .reg .b64 %rd<2>; .reg .b32 %r<3>;\n\
         ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];\n\
         {{ .param .b32 a; .param .b32 v; st.param.b32 [a], %r1; call (v), f, (a); ld.param.b32 %r2, [v]; }}\n\
         st.global.u32 [%rd1], %r2; ret; }}\n"
    );
    text
}

#[test]
fn calls_times_registers_of_a_recursive_function_do_not_multiply() {
    let (registers, calls) = (3000u32, 3000u32);
    let module = Module::load(&recursive(registers, calls)).expect("loads");
    // One list of registers per call would take 72 MB.
    assert!(module.code_bytes() < 48 << 20, "{} bytes", module.code_bytes());
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4).expect("fits");
    let arguments = ArgumentList::new().pointer(out).u32(1);
    let launch = Launch {
        stack_bytes: 1 << 20,
        ..Launch::new([1, 1, 1], [1, 1, 1])
    };
    let kernel = module.entry("k").expect("a kernel");
    kernel.launch(&launch, arguments.bytes(), &memory, &Cancel::new()).expect("runs");
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).expect("reads");
    let triangle = (1..=registers).sum::<u32>();
    let deepest = triangle;
    assert_eq!(
        u32::from_le_bytes(bytes),
        triangle.wrapping_add(registers).wrapping_add(calls.wrapping_mul(deepest))
    );
}

#[test]
fn names_of_any_length_are_looked_up_without_delay() {
    // Looking up every split of this name as a member of a register family would take a minute.
    let name = format!("%r{}", "1".repeat(1 << 20));
    let text = format!("{HEAD}.visible .entry k() {{ .reg .b32 %r<5>; mov.u32 %r1, {name}; ret; }}");
    let error = Module::load(&text).expect_err("not declared");
    assert!(matches!(error.kind, LoadErrorKind::Undeclared(missing) if missing == name));
    let text = format!("{HEAD}.visible .entry k() {{ .reg .b32 %r00<18446744073709551615>; mov.u32 %r0018446744073709551614, 1; ret; }}");
    assert!(Module::load(&text).is_ok());
}

#[test]
fn a_kernel_takes_32764_bytes_of_arguments_and_no_more() {
    // Parameters are a pointer and this number of bytes, the last of which the kernel writes to the pointer.
    let text = |bytes: usize| {
        format!(
            "{HEAD}.visible .entry k(.param .u64 out, .param .b8 more[{bytes}]) {{\n\
             .reg .b64 %rd<2>; .reg .b32 %r<2>;\n\
             ld.param.u64 %rd1, [out]; ld.param.u8 %r1, [more+{}];\n\
             st.global.u8 [%rd1], %r1; ret; }}\n",
            bytes - 1
        )
    };
    let module = Module::load(&text(32_756)).expect("loads");
    let kernel = module.entry("k").expect("a kernel");
    assert_eq!(kernel.parameter_bytes(), 32_764);
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(1).expect("fits");
    let mut arguments = vec![0; 32_764];
    arguments[..8].copy_from_slice(&out.0.to_le_bytes());
    arguments[32_763] = 7;
    let launch = Launch::new([1, 1, 1], [1, 1, 1]);
    kernel.launch(&launch, &arguments, &memory, &Cancel::new()).expect("runs");
    let mut byte = [0];
    memory.read(out, &mut byte).expect("reads");
    assert_eq!(byte, [7]);

    let error = Module::load(&text(32_757)).expect_err("it has more");
    let LoadErrorKind::Invalid(reason) = &error.kind else {
        panic!("{error}")
    };
    assert!(reason.contains("32765 bytes of parameters, at most 32764"), "{reason}");
}

/// Runs the kernel `k`, which takes a pointer, with one thread. Returns the 8 bytes that it stored.
fn stored(text: &str) -> [u8; 8] {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(8).expect("fits");
    let launch = Launch::new([1, 1, 1], [1, 1, 1]);
    let kernel = module.entry("k").expect("a kernel");
    kernel.launch(&launch, &out.0.to_le_bytes(), &memory, &Cancel::new()).expect("runs");
    let mut bytes = [0; 8];
    memory.read(out, &mut bytes).expect("reads");
    bytes
}

#[test]
fn a_special_register_takes_an_offset() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out) {{\n\
         .reg .b64 %rd<2>; .reg .b32 %r<4>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, WARP_SZ-1; mov.u32 %r2, %laneid+4; st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret; }}\n"
    );
    assert_eq!(stored(&text), [31, 0, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn what_follows_a_location_on_its_line_is_read() {
    let load = |line: &str| Module::load(&format!("{HEAD}.visible .entry k() {{ .reg .b32 %r<5>;\n{line}\nret; }}"));
    assert!(load(".loc 1 5 0, function_name $L__info_string0+4, inlined_at 1 2 3").is_ok());
    assert!(load(".loc 1 5 0, function_name info,\n inlined_at 1 2 3 mov.u32 %r1, 7;").is_ok());
    assert!(load(".loc 1 5 mov.u32 %r1, 7;").is_ok());
    assert!(load(".loc 1 5 0 bogus.u32 %r1, 7;").is_err());
}

#[test]
fn layouts_and_narrow_types_keep_their_places() {
    let load = |line: &str| {
        let registers = ".reg .b32 %r<9>; .reg .f32 %f<9>;";
        Module::load(&format!("{HEAD}.visible .entry k() {{ {registers} {line} ret; }}"))
    };
    let mma = |layouts: &str| {
        load(&format!(
            "mma.sync.aligned.m16n8k8.{layouts}.f32.f16.f16.f32 {{%f1,%f2,%f3,%f4}}, {{%r1,%r2}}, {{%r3}}, {{%f5,%f6,%f7,%f8}};"
        ))
    };
    assert!(mma("row.col").is_ok());
    assert!(mma("col.row").is_err());
    assert!(load("cvt.rna.tf32.f32 %r1, %f1;").is_ok());
    assert!(load("cvt.rna.f32.tf32 %r1, %f1;").is_err());
}

#[test]
fn a_variable_hides_a_register_of_an_outer_scope() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out) {{\n\
         .reg .b64 %rd<2>; .reg .b32 %r<4>, v; ld.param.u64 %rd1, [out]; mov.u32 v, 7;\n\
         {{ .shared .align 4 .b32 v; mov.u32 %r1, 5; st.shared.u32 [v], %r1; ld.shared.u32 %r2, [v]; }}\n\
         st.global.v2.u32 [%rd1], {{%r2, v}}; ret; }}\n"
    );
    assert_eq!(stored(&text), [5, 0, 0, 0, 7, 0, 0, 0]);
}

#[test]
fn names_of_parameters_follow_scopes() {
    // The parameter of the kernel hides a register of the module; a register hides a parameter of calls.
    let text = format!(
        "{HEAD}.reg .b64 out; .func (.reg .b32 r) f(.reg .b32 a) {{ add.u32 r, a, 1; ret; }}\n\
         .visible .entry k(.param .u64 out) {{\n\
         .reg .b64 %rd<2>; .reg .b32 %r<4>; .param .b32 x; mov.u32 %r1, 3; st.param.b32 [x], %r1; ld.param.u64 %rd1, [out];\n\
         {{ .reg .b32 x; mov.u32 x, 7; call.uni (%r2), f, (x); }} call.uni (%r3), f, (x);\n\
         st.global.v2.u32 [%rd1], {{%r2, %r3}}; ret; }}\n"
    );
    assert_eq!(stored(&text), [8, 0, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn constant_expressions_are_signed_or_unsigned() {
    // The types of PTX ISA §4.5.5: literals, unary, shifts, arithmetic, remainder, comparisons, casts, conditions.
    for (expression, value) in [
        ("0xffffffffffffffff >> 63", 1),
        ("-1 >> 63", u64::MAX),
        ("-1U >> 63", 1),
        ("~0 >> 63", 1),
        ("(.s64) ~0 >> 63", u64::MAX),
        ("(.u64) -8 >> 60", 15),
        ("1 << 64", 0),
        ("1 << 0x100000000", 0),
        ("-5 >> 0x100000001", u64::MAX),
        ("-6 / 3", -2_i64 as u64),
        ("-6 / 3U", (-6_i64 as u64) / 3),
        ("0x8000000000000000 / 2", 1 << 62),
        ("(.s64) 0x8000000000000000 / -1", 1 << 63),
        ("-7 % 3", (-7_i64 as u64) % 3),
        ("((7 % 4) - 8) / 2", -2_i64 as u64),
        ("-1 < 0", 1),
        ("-1 < 0U", 0),
        ("0x8000000000000000 > 1", 1),
        ("!5 - 1 >> 63", u64::MAX),
        ("(0 ? 1U : -1) >> 63", 1),
        ("(-1 & -1) >> 63", u64::MAX),
        ("(-1 & 1U * -1) >> 63", 1),
    ] {
        let text = format!(
            "{HEAD}.visible .entry k(.param .u64 out) {{\n\
             .reg .b64 %rd<3>; ld.param.u64 %rd1, [out]; mov.u64 %rd2, {expression}; st.global.u64 [%rd1], %rd2; ret; }}\n"
        );
        assert_eq!(u64::from_le_bytes(stored(&text)), value, "{expression}");
    }
}

#[test]
fn operands_that_would_be_ignored_are_rejected() {
    let reason = |body: &str| {
        let text = format!(
            "{HEAD}.global .texref t; .func (.reg .b32 r) f() {{ ld.param.u32 r, [out]; ret; }}\n\
             .entry k(.param .u32 out) {{ .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;\n{body}\nret; }}"
        );
        Module::load(&text).expect_err(body).to_string()
    };
    for (body, expected) in [
        (
            "tex.2d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}], {%r7, %r8};",
            "offset or a depth",
        ),
        (
            "tex.level.2d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}];",
            "expected a level of detail after",
        ),
        ("tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}];", "expected 1 coordinates"),
        ("vmad.s32.s32.s32.po %r1, -%r2, %r3, %r4;", ".po"),
        ("mov.u32 %r1, %tid.foo;", "%tid"),
        ("mov.u32 %r1, %tid.q;", "%tid"),
        ("call.uni (%r1), f, ();", "out"),
    ] {
        assert!(reason(body).contains(expected), "{body}: {}", reason(body));
    }
}
