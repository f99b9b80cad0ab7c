//! Declarations that people and old compilers write: vector registers, registers and local memory of the module, variables of functions,
//! constant expressions, predicates as results.

use sahasra_ptx::{ArgumentList, Cancel, Launch, LoadErrorKind, Memory, Module};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Runs kernel `k` twice with 32 threads, on one instance. Returns what the threads wrote at the second run.
pub(crate) fn words(text: &str) -> Vec<u32> {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{error}"));
    run(&module)
}

pub(crate) fn run(module: &Module) -> Vec<u32> {
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * 32).expect("fits");
    let instance = module.instantiate(&memory).expect("fits");
    let kernel = instance.entry("k").expect("the kernel");
    for _ in 0..2 {
        let arguments = ArgumentList::new().pointer(out);
        kernel
            .launch(&Launch::new([1, 1, 1], [32, 1, 1]), arguments.bytes(), &memory, &Cancel::new())
            .unwrap_or_else(|fault| panic!("{fault}"));
    }
    let mut bytes = [0; 4 * 32];
    memory.read(out, &mut bytes).expect("inside");
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect()
}

/// A kernel that stores `%r9` of each thread, whose number is in `%r1`.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        "{HEAD}{declarations}\n.visible .entry k(.param .u64 out) {{\n\
         .reg .pred %p<9>; .reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .f32 %f<9>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 4, %rd1;\n\
         {body}\nst.global.u32 [%rd1], %r9; ret; }}"
    )
}

fn of_thread(expected: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(expected).collect()
}

#[test]
fn vector_registers_are_read_and_written_by_element_and_whole() {
    let found = words(&kernel(
        ".global .align 16 .b32 data[4] = {10, 20, 30, 40};",
        ".reg .v4 .b32 v, %w<3>; .reg .v2 .b32 pair; .reg .b64 joined;
         ld.global.v4.u32 v, [data];
         add.u32 v.x, v.x, %r1;
         mov.v4.b32 %w2, v;
         mov.v2.b32 {%r2, %r3}, {%w2.r, %w2.a};
         mov.v2.b32 pair, {%r3, %r2};
         mov.b64 joined, pair;
         mov.b64 {pair.y, pair.x}, joined;
         shl.b32 %r4, pair.x, 8;
         add.u32 %r9, %r4, pair.y;
         mov.v2.b32 {%r5, %r6}, {%r9, v.z};
         mov.v2.b32 {%r5, %r6}, {%r6, %r5};
         add.u32 %r9, %r6, %r5;",
    ));
    // The pair is {40, 10 + tid}, and swapped once.
    assert_eq!(found, of_thread(|thread| ((10 + thread) << 8) + 40 + 30));
    let error = Module::load(&kernel("", ".reg .v2 .b32 v; mov.b32 %r9, v.z;")).expect_err("has two elements");
    assert!(error.to_string().contains("v"), "{error}");
    assert!(Module::load(&kernel("", ".reg .v2 .b32 v; add.u32 %r9, v, v;")).is_err());
}

#[test]
fn bytes_are_packed_and_registers_of_128_bits_are_pairs() {
    let found = words(&kernel(
        ".global .align 16 .b64 data[2] = {0x1111, 0x2222}; .global .align 16 .b64 copy[2]; .reg .b128 outer;",
        ".reg .b8 %b<4>; .reg .b16 %h; .reg .b128 %q<2>;
         mov.b32 %r2, 0x80ff0102; mov.b32 {%b0, %b1, %b2, %b3}, %r2; mov.b32 %r3, {%b3, %b0, %b1, %b2};
         mov.b16 %h, {%b0, %b2}; mov.b16 {%b1, _}, %h; cvt.u32.u8 %r4, %b1;
         ld.global.b128 %q1, [data]; mov.b128 outer, %q1; mov.b128 {%rd2, %rd3}, outer; mov.b128 %q0, {%rd3, %rd2}; st.global.b128 [copy], %q0;
         ld.global.u32 %r5, [copy]; ld.global.u32 %r6, [copy+8]; mad.lo.u32 %r5, %r5, 7, %r6;
         xor.b32 %r9, %r3, %r4; xor.b32 %r9, %r9, %r5;",
    ));
    assert_eq!(found[0], 0xff01_0280 ^ 2 ^ (7 * 0x2222 + 0x1111));
}

#[test]
fn a_block_is_a_cluster_of_its_own() {
    let found = words(&kernel(
        ".shared .align 4 .b32 word;",
        "mov.u64 %rd2, word; cvta.shared::cluster.u64 %rd3, %rd2; isspacep.shared::cluster %p1, %rd3; selp.u32 %r9, 1, 0, %p1;
         isspacep.const %p1, %rd3; @%p1 trap; st.shared::cluster.u32 [word], 0; bar.sync 0; atom.relaxed.cluster.shared::cluster.add.u32 %r2, [word], 1; fence.acq_rel.cluster; fence.proxy.async; bar.sync 0;
         ld.relaxed.cluster.u32 %r2, [%rd3]; mad.lo.u32 %r9, %r2, 10, %r9;
         mov.u32 %r2, %cluster_nctaid.x; mov.u32 %r3, %nclusterid.x; add.u32 %r2, %r2, %r3; mov.u32 %r3, %cluster_ctarank; add.u32 %r2, %r2, %r3;
         mad.lo.u32 %r9, %r2, 1000, %r9; mov.pred %p2, %is_explicit_cluster; @%p2 trap; mov.u32 %r2, %envreg7; add.u32 %r9, %r9, %r2;",
    ));
    assert_eq!(found, of_thread(|_| 2000 + 320 + 1));
}

#[test]
fn registers_and_local_memory_of_the_module_belong_to_each_thread() {
    let found = words(&kernel(
        ".reg .b32 shared_register, %many<4>; .reg .v2 .b32 pair; .local .align 4 .b32 slot[2];
         .func twice() { add.u32 shared_register, shared_register, shared_register; add.u32 %many3, %many3, 1; add.u32 pair.y, pair.y, 5;
                         st.local.u32 [slot+4], shared_register; ret; }",
        "mov.u32 shared_register, %r1; mov.u32 %many3, 100; mov.u32 pair.y, 1000; call twice; call twice;
         ld.local.u32 %r9, [slot+4]; add.u32 %r9, %r9, %many3; add.u32 %r9, %r9, pair.y;",
    ));
    assert_eq!(found, of_thread(|thread| 4 * thread + 102 + 1010));
}

#[test]
fn variables_of_functions_persist_and_hide_those_of_the_module() {
    let found = words(&kernel(
        ".global .u32 count = 7;
         .func (.reg .b32 now) tick() { .global .u32 count = 1000; .const .u32 step = 3; .reg .b32 %s;
             ld.const.u32 %s, [step]; atom.global.add.u32 now, [count], %s; ret; }",
        "setp.ne.u32 %p1, %r1, 0; mov.u32 %r9, 0; @%p1 bra DONE;
         call (%r2), tick, (); { .global .u32 count; red.global.add.u32 [count], 1; ld.global.u32 %r3, [count]; }
         ld.global.u32 %r4, [count]; add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4;
         DONE:",
    ));
    // At the second launch, the function's variable is at 1003 and the kernel's one at 2.
    assert_eq!(found[0], 1003 + 2 + 7);
}

#[test]
fn predicates_are_passed_and_returned() {
    let found = words(&kernel(
        ".func (.reg .pred less, .reg .b32 kept) compare(.reg .u32 a, .reg .pred inverted) {
             .reg .pred p; setp.lt.u32 p, a, 5; xor.pred less, p, inverted; mov.u32 kept, a; ret; }",
        "setp.gt.u32 %p1, %r1, 20; call (%p2, %r2), compare, (%r1, %p1); selp.u32 %r9, 1, 0, %p2; mad.lo.u32 %r9, %r2, 10, %r9;",
    ));
    assert_eq!(found, of_thread(|thread| 10 * thread + u32::from((thread < 5) != (thread > 20))));
}

#[test]
fn vectors_are_passed_and_returned_in_registers() {
    let found = words(&kernel(
        ".func (.reg .v2 .b32 swapped, .reg .v4 .b16 halves) f(.reg .v4 .b32 v, .reg .b32 plain, .reg .b128 wide) {
             .reg .v2 .b64 pair; .reg .b32 low; mov.b128 pair, wide; cvt.u32.u64 low, pair.y;
             add.u32 swapped.x, v.w, plain; add.u32 swapped.y, v.x, low; mov.b64 {halves.x, halves.y, halves.z, halves.w}, pair.x; ret; }
         .func (.reg .v2 .b32 out) deep(.reg .v2 .b32 in) {
             .reg .pred p; .reg .v2 .b32 next; setp.eq.u32 p, in.x, 0; mov.v2.b32 out, in; @p ret;
             sub.u32 next.x, in.x, 1; add.u32 next.y, in.y, in.x; call (out), deep, (next); add.u32 out.y, out.y, 100; ret; }",
        ".reg .v4 .b32 v; .reg .v2 .b32 s; .reg .v4 .b16 h; .reg .b128 q;
         mov.u32 v.x, 1; mov.u32 v.y, 2; mov.u32 v.z, 3; mov.u32 v.w, %r1; mov.u64 %rd2, 0x0004000300020001; mov.u64 %rd3, 7; mov.b128 q, {%rd2, %rd3};
         call (s, h), f, (v, 50, q); mad.lo.u32 %r9, s.x, 1000, s.y; cvt.u32.u16 %r2, h.z; mad.lo.u32 %r9, %r2, 1000000, %r9;
         and.b32 %r3, %r1, 3; mov.u32 s.x, %r3; mov.u32 s.y, 0; call (s), deep, (s); mad.lo.u32 %r9, s.y, 10000000, %r9;",
    ));
    let sum = |thread: u32| (thread & 3) * ((thread & 3) + 1) / 2 + 100 * (thread & 3);
    assert_eq!(
        found,
        of_thread(|thread| (thread + 50) * 1000 + 8 + 3_000_000 + sum(thread).wrapping_mul(10_000_000))
    );
    let wrong = ".func f(.reg .v2 .b32 v) { ret; }";
    assert!(Module::load(&kernel(wrong, "call f, (%r1);")).is_err());
}

#[test]
fn registers_of_any_name_hold_functions_to_call() {
    let found = words(&kernel(
        ".func (.param .b32 r) double(.param .b32 x) { .reg .b32 v; ld.param.b32 v, [x]; shl.b32 v, v, 1; st.param.b32 [r], v; ret; }
         .func (.param .b32 r) square(.param .b32 x) { .reg .b32 v; ld.param.b32 v, [x]; mul.lo.u32 v, v, v; st.param.b32 [r], v; ret; }",
        ".reg .b64 target; .reg .b64 other; mov.u64 target, double; mov.u64 other, square;
         and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; selp.b64 target, target, other, %p1;
         shape: .callprototype (.param .b32 _) _ (.param .b32 _);
         { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), target, (a), shape; ld.param.b32 %r9, [b]; }",
    ));
    assert_eq!(
        found,
        of_thread(|thread| if thread % 2 == 0 { 2 * thread } else { thread * thread })
    );
}

#[test]
fn constants_are_expressions() {
    let found = words(&kernel(
        ".global .b32 table[8] = {1, 1+1, (1<<3) | 1, ~0 & 0xff, -5 + 6*7, 7/2 % 2, 3 > 2 ? 10 : 20, !0};",
        "ld.global.u32 %r2, [table + 2*4]; mov.u32 %r3, (3+4)*2 - -1; add.u32 %r9, %r2, %r3; ld.global.u32 %r4, [table+12];
         add.u32 %r9, %r9, %r4; ld.global.u32 %r4, [table+4*4]; add.u32 %r9, %r9, %r4; ld.global.u32 %r4, [table+6*4];
         mad.lo.u32 %r9, %r4, 1 << 10, %r9; ld.global.u32 %r4, [table+28]; mad.lo.u32 %r9, %r4, 1024*WARP_SZ, %r9;",
    ));
    assert_eq!(found[0], 9 + 15 + 255 + 37 + (10 << 10) + (32 << 10));
}

#[test]
fn integers_are_no_constants_of_float_types() {
    let reason = |declarations: &str, body: &str| Module::load(&kernel(declarations, body)).expect_err(body).reason();
    for statement in [
        "add.f32 %f1, %f1, 1;",
        "mov.f32 %f1, -1;",
        "setp.lt.f32 %p1, %f1, 0;",
        "st.global.f32 [%rd1], 0x3f800000;",
        "fma.rn.f16x2 %r2, %r2, 0x3c003c00, %r2;",
        "selp.f64 %d1, 0, 1, %p1;",
    ] {
        let found = reason("", &format!(".reg .f64 %d<2>; {statement}"));
        assert!(found.starts_with("invalid: an integer constant is no operand of type ."), "{found}");
    }
    assert!(reason(".global .f32 one = 1;", "").contains("does not fit the type"));
    let found = words(&kernel(
        ".global .f32 one = 1.0; .global .b32 two = 0f40000000;",
        "ld.global.f32 %f1, [one]; ld.global.f32 %f2, [two]; add.f32 %f1, %f1, %f2; mul.f32 %f1, %f1, 0d4000000000000000;
         selp.b32 %f2, 0x3f800000, 0, %p8; mov.b32 %f2, 0x3f800000; add.f32 %f1, %f1, %f2; mov.b32 %r9, %f1;",
    ));
    assert_eq!(found[0], 7f32.to_bits());
}

#[test]
fn registers_have_offsets_and_arrays_have_elements() {
    let found = words(&kernel(
        ".global .b32 table[4] = {10, 20, 30, 40}; .global .b64 wide[2] = {1, 2};",
        ".shared .b32 own[64]; add.u32 %r2, %r1+1, %r1+-2; setp.eq.u32 %p1, %r1+3, 5; selp.u32 %r3, 100, 0, %p1;
         ld.global.u32 %r4, table[2]; mov.u64 %rd2, wide[1]; ld.global.u64 %rd3, [%rd2]; cvt.u32.u64 %r5, %rd3;
         mov.v2.u32 {%r6, %r7}, %tid; add.u32 %r8, %r6, %r7; st.shared.u32 own[31+1], %r8; ld.shared.u32 %r8, own[16*2];
         add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4; add.u32 %r9, %r9, %r5; add.u32 %r9, %r9, %r8;",
    ));
    assert_eq!(found, of_thread(|thread| 2 * thread + 31 + if thread == 2 { 100 } else { 0 } + 31));
    assert!(Module::load(&kernel("", "mov.u32 %r9, missing[1];")).is_err());
}

#[test]
fn addresses_are_initial_values_in_parts() {
    let found = words(&kernel(
        ".global .b8 target[8]; .global .align 8 .b8 parts[8] = {0xff(target), 0xff00(target), 0xff0000(target), 0xff000000(target),
         0xff00000000(target), 0xff0000000000(target), 0xff000000000000(target), 0xff00000000000000(target)};
         .func none() { ret; } .global .align 8 .b64 whole = target+4;",
        "ld.global.u64 %rd2, [parts]; ld.global.u64 %rd3, [whole]; sub.u64 %rd2, %rd3, %rd2; cvt.u32.u64 %r9, %rd2;",
    ));
    assert_eq!(found[0], 4);
}

#[test]
fn errors_name_the_cause_and_its_line() {
    let text = kernel("", "mov.u32 %r9, 1\nadd.u32 %r9, %r9, 1;");
    let error = Module::load(&text).expect_err("no semicolon");
    let line = text.lines().position(|line| line.starts_with("mov.u32 %r9")).expect("the line") as u32 + 1;
    assert_eq!(
        (error.line, error.column, error.reason().as_str()),
        (line, 15, "syntax error: expected `;`")
    );
    let reason = |body: &str| Module::load(&kernel("", body)).expect_err("refused").reason();
    assert!(
        reason("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%rd1], [%rd2, {%r1, %r2}], [%rd3];")
            .contains("copies of tensors")
    );
    assert!(reason("vote.any.pred %p1, %p2;").contains("else `.sync`"));
    assert!(reason("mov.u32 %r9, %unknown.x;").contains("`%unknown` is not declared"));
    let error = Module::load(&format!("{HEAD}.entry k() {{ ret; }} .frob x;")).expect_err("no directive");
    assert!(
        matches!(&error.kind, LoadErrorKind::Syntax(reason) if reason.contains(".frob")),
        "{error}"
    );
}
