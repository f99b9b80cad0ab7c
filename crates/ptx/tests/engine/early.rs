//! Texts of early versions of the ISA, as nvopencc wrote them: parameters in the body, no address size, prototypes without semicolons,
//! default rounding, warp operations without `.sync`.

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module, Outline};

fn launch(text: &str, entry: &str, threads: u32, argument: u32) -> Vec<u32> {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{error}"));
    let outline = Outline::of(text).unwrap_or_else(|error| panic!("{error}"));
    let kernel = module.entry(entry).expect("the kernel");
    let described = outline.entries.iter().find(|found| found.name == entry).expect("the kernel");
    assert_eq!(outline.address_size, 64);
    let names: Vec<_> = kernel
        .parameters()
        .iter()
        .map(|parameter| (parameter.name.clone(), parameter.offset as u64))
        .collect();
    let outlined: Vec<_> = described
        .parameters
        .iter()
        .map(|parameter| (parameter.name.clone(), parameter.offset))
        .collect();
    assert_eq!(names, outlined);
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * u64::from(threads)).expect("fits");
    let arguments = ArgumentList::new().pointer(out).u32(argument);
    kernel
        .launch(&Launch::new([1, 1, 1], [threads, 1, 1]), arguments.bytes(), &memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let mut bytes = vec![0; 4 * threads as usize];
    memory.read(out, &mut bytes).expect("inside");
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect()
}

#[test]
fn parameters_stand_in_the_body_before_version_1_4() {
    let text = "\t.version 1.3\n\t.target sm_10, map_f64_to_f32\n\t.reg .u32 %ra<17>;\n\t.reg .f64 %fda<17>;\n\
        \t.file\t1\t\"a.cu\"\n\
        @@DWARF .section .debug_info\n@@DWARF .byte 1, {\n\
        \t.entry sequence\n\t{\n\
        \t.reg .u32 %r<6>;\n\t.reg .u64 %rd<6>;\n\t.reg .f32 %f<6>;\n\
        \t.param .u64 __cudaparm_sequence_ptr;\n\t.param .s32 __cudaparm_sequence_n;\n\
        \t.loc\t15\t13\t0\n$LBB1_sequence:\n\
        \tcvt.s32.u16 \t%r1, %tid.x;     \t// \n\
        \tcvt.u32.u16 \t%r4, %ntid.x;\n\
        \tld.param.u64 \t%rd1, [__cudaparm_sequence_ptr];\n\
        \tld.param.s32 \t%r2, [__cudaparm_sequence_n];\n\
        \tcvt.u64.u32 \t%rd2, %r1;\n\tmul.lo.u64 \t%rd3, %rd2, 4;\n\tadd.u64 \t%rd4, %rd1, %rd3;\n\
        \tcvt.rn.f32.s32 \t%f1, %r1;\n\tcvt.rn.f32.s32 \t%f2, %r2;\n\
        \tmad.f32 \t%f3, %f1, %f2, %f1;\n\tdiv.f32 \t%f4, %f3, %f2;\n\
        \tcvt.rzi.s32.f32 \t%r3, %f4;\n\tmad.lo.s32 \t%r3, %r4, 1000, %r3;\n\
        \tst.global.s32 \t[%rd4+0], %r3;\n\texit;\n$LDWend_sequence:\n\t} // sequence\n";
    let found = launch(text, "sequence", 40, 4);
    let expected: Vec<u32> = (0..40).map(|thread| 40_000 + (thread * 4 + thread) / 4).collect();
    assert_eq!(found, expected);
    // The same text of a later version has no such defaults.
    let error = Module::load(&text.replace(".version 1.3", ".version 1.4")).expect_err("refused");
    assert!(
        error.to_string().contains("not declared") || error.to_string().contains("rounding"),
        "{error}"
    );
}

#[test]
fn the_first_targets_flush_subnormals_and_approximate_by_default() {
    let text = |version: &str, target: &str, body: &str| {
        format!(
            ".version {version}\n.target {target}\n.entry k {{ .param .u64 out; .param .u32 bits; .reg .u64 %rd<3>; .reg .u32 %r<3>; .reg .f32 %f<4>;\n\
             ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [bits]; mov.b32 %f1, %r1; {body} st.global.f32 [%rd1], %f2; exit; }}"
        )
    };
    let subnormal = 1e-40f32.to_bits();
    assert_eq!(launch(&text("1.3", "sm_13", "add.f32 %f2, %f1, %f1;"), "k", 1, subnormal), [0]);
    for (body, expected) in [
        ("sin.f32 %f2, %f1;", 0.5f32.sin()),
        ("rcp.f32 %f2, %f1;", 2.0),
        ("rsqrt.f32 %f2, %f1;", 2.0f32.sqrt()),
        ("ex2.f32 %f2, %f1;", 2.0f32.sqrt()),
        ("sqrt.f32 %f2, %f1;", 0.5f32.sqrt()),
    ] {
        let found = f32::from_bits(launch(&text("1.3", "sm_13", body), "k", 1, 0.5f32.to_bits())[0]);
        assert!((found - expected).abs() < 1e-5, "{body}: {found} instead of {expected}");
    }
}

#[test]
fn prototypes_without_semicolons_are_read() {
    let text = "\t.version 2.1\n\t.target sm_20\n\
        \t.visible .func (.param .s32 __cudaretf_f) f (.param .s32 __cudaparmf1_f)\n\n\
        \t.visible .func (.param .s32 __cudaretf_g) g (.param .s32 __cudaparmf1_g)\n\n\
        \t.visible .func (.param .s32 __cudaretf_f) f (.param .s32 __cudaparmf1_f)\n\t{\n\t.reg .u32 %r<5>;\n\
        \tld.param.u32 \t%r1, [__cudaparmf1_f];\n\tmul.lo.s32 \t%r3, %r1, 2;\n\tst.param.s32 \t[__cudaretf_f], %r3;\n\tret;\n\t} // f\n\
        \t.entry k (\n\t\t.param .u64 out,\n\t\t.param .s32 b)\n\t{\n\t.reg .u32 %r<9>;\n\t.reg .u64 %rd<10>;\n\
        \t.param .s32 a1;\n\t.param .s32 r1;\n\
        \tld.param.s32 \t%r6, [b];\n\tst.param.u32 \t[a1], %r6;\n\tcall (r1), f, (a1);\n\tld.param.s32 \t%r7, [r1];\n\
        \tld.param.u64 \t%rd1, [out];\n\tst.s32 \t[%rd1+0], %r7;\n\texit;\n\t} // k\n";
    assert_eq!(launch(text, "k", 1, 21), [42]);
}

#[test]
fn warp_operations_without_sync_take_the_lanes_that_run_together() {
    let text = ".version 6.0 .target sm_60 .address_size 64 .visible .entry k(.param .u64 out, .param .u32 n) {
        .reg .pred %p<5>; .reg .b32 %r<9>; .reg .b64 %rd<3>;
        ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mad.wide.u32 %rd1, %r2, 4, %rd1;
        setp.lt.u32 %p1, %r2, %r1; mov.u32 %r3, 0;
        @!%p1 bra DONE;
        and.b32 %r4, %r2, 1; setp.eq.u32 %p2, %r4, 0;
        vote.ballot.b32 %r3, %p2;
        vote.all.pred %p3, %p1; selp.u32 %r5, 0x10000, 0, %p3; or.b32 %r3, %r3, %r5;
        vote.any.pred %p3, !%p1; selp.u32 %r5, 0x20000, 0, %p3; or.b32 %r3, %r3, %r5;
        shfl.down.b32 %r6|%p4, %r2, 1, 31; @%p4 mad.lo.u32 %r3, %r6, 0x1000000, %r3;
        DONE: st.global.u32 [%rd1], %r3; ret; }";
    let found = launch(text, "k", 64, 10);
    for (thread, found) in found.into_iter().enumerate() {
        let thread = thread as u32;
        let expected = if thread < 10 { 0b01_0101_0101 | 0x10000 } else { 0 };
        // The last of the ten lanes reads from a lane that does not take part, whose value is undefined.
        let mask = if thread == 9 { 0x00ff_ffff } else { u32::MAX };
        let expected = if thread < 9 {
            expected + (thread + 1) * 0x100_0000
        } else {
            expected
        };
        assert_eq!(found & mask, expected & mask, "thread {thread}");
    }
}

#[test]
fn matrices_need_no_aligned_before_version_6_3() {
    let text = |version: &str| {
        format!(
            ".version {version} .target sm_70 .address_size 64 .entry k(.param .u64 p) {{ .reg .b32 %r<20>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [p];\n\
             mov.u32 %r9, 16; wmma.load.a.sync.row.m16n16k16.f16 {{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, [%rd1], %r9; ret; }}"
        )
    };
    assert!(Module::load(&text("6.0")).is_ok());
    assert!(Module::load(&text("6.3")).is_err());
}
