//! `alloca`, `stacksave` and `stackrestore`.

use sahasra_ptx::{ArgumentList, Cancel, Fault, FaultKind, Launch, Memory, Module};

const THREADS: u32 = 70;
const STACK: u32 = 1024;

/// Runs a kernel whose threads store `%r9`; `%r1` is the number of the thread.
fn run(functions: &str, body: &str) -> Result<Vec<u32>, Fault> {
    let text = format!(
        ".version 7.3\n.target sm_80\n.address_size 64\n{functions}\n.visible .entry k(.param .u64 out)\n{{\n\
         .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .local .align 8 .b8 fixed[24];\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 4, %rd1; mov.u32 %r9, 0;\n\
         {body}\nst.global.u32 [%rd1], %r9;\nret;\n}}\n"
    );
    let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * u64::from(THREADS)).expect("fits");
    let mut launch = Launch::new([1, 1, 1], [THREADS, 1, 1]);
    launch.stack_bytes = STACK;
    let kernel = module.entry("k").expect("the kernel");
    kernel.launch(&launch, ArgumentList::new().pointer(out).bytes(), &memory, &Cancel::new())?;
    let mut bytes = vec![0; 4 * THREADS as usize];
    memory.read(out, &mut bytes).expect("inside");
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[test]
fn allocations_do_not_overlap_and_are_aligned() {
    // Each thread fills an array of its own length, and one behind it, and adds up the first.
    let found = run(
        "",
        "st.local.u64 [fixed+16], 0x1234; and.b32 %r2, %r1, 7; add.u32 %r2, %r2, 1; mul.wide.u32 %rd2, %r2, 4;
         alloca.u64 %rd3, %rd2; alloca.u64 %rd4, %rd2, 64; and.b64 %rd5, %rd4, 63; setp.ne.u64 %p1, %rd5, 0; @%p1 trap;
         mov.u32 %r3, 0;
    FILL:
         mad.wide.u32 %rd5, %r3, 4, %rd3; mad.wide.u32 %rd6, %r3, 4, %rd4; add.u32 %r4, %r3, %r1; st.local.u32 [%rd5], %r4; st.local.u32 [%rd6], -1;
         add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra FILL;
         mov.u32 %r3, 0;
    ADD:
         mad.wide.u32 %rd5, %r3, 4, %rd3; cvta.local.u64 %rd5, %rd5; ld.u32 %r4, [%rd5]; add.u32 %r9, %r9, %r4;
         add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra ADD;
         ld.local.u64 %rd7, [fixed+16]; cvt.u32.u64 %r5, %rd7; add.u32 %r9, %r9, %r5;",
    );
    let expected: Vec<u32> = (0..THREADS)
        .map(|thread| (0..=thread & 7).map(|index| index + thread).sum::<u32>() + 0x1234)
        .collect();
    assert_eq!(found.expect("runs"), expected);
}

#[test]
fn a_restored_stack_is_used_again() {
    let found = run(
        "",
        "mov.u32 %r2, 0;
    AGAIN:
         stacksave.u64 %rd2; alloca.u64 %rd3, 512; st.local.u32 [%rd3+508], %r2; ld.local.u32 %r3, [%rd3+508]; add.u32 %r9, %r9, %r3; stackrestore.u64 %rd2;
         add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 100; @%p1 bra AGAIN;
         alloca.u32 %r4, 16; cvt.u64.u32 %rd4, %r4; st.local.u32 [%rd4], 7; ld.local.u32 %r5, [%rd4]; add.u32 %r9, %r9, %r5;",
    );
    assert_eq!(found.expect("runs"), vec![4950 + 7; THREADS as usize]);
}

#[test]
fn functions_free_their_allocations_when_they_return() {
    // `sum` is called by name only and has no frame; `down` is recursive and has frames.
    let functions = ".func (.reg .b32 r) sum(.reg .b32 n) {
            .reg .b64 p; .reg .b32 v; alloca.u64 p, 600; st.local.u32 [p+596], n; ld.local.u32 v, [p+596]; add.u32 r, v, 1; ret; }
        .func (.reg .b32 r) down(.reg .b32 n) {
            .reg .b64 p; .reg .b32 v; .reg .pred q; .local .b32 own; alloca.u64 p, 32; st.local.u32 [p+28], n; st.local.u32 [own], n;
            mov.u32 r, 0; setp.eq.u32 q, n, 0; @q ret; sub.u32 v, n, 1; call (r), down, (v);
            ld.local.u32 v, [p+28]; add.u32 r, r, v; ld.local.u32 v, [own]; mad.lo.u32 r, v, 1000, r; ret; }";
    let found = run(
        functions,
        "mov.u32 %r2, 0;
    AGAIN:
         call (%r3), sum, (%r2); add.u32 %r9, %r9, %r3; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 20; @%p1 bra AGAIN;
         and.b32 %r4, %r1, 3; alloca.u64 %rd3, 16; st.local.u32 [%rd3], %r1; call (%r5), down, (%r4); add.u32 %r9, %r9, %r5;
         ld.local.u32 %r6, [%rd3]; add.u32 %r9, %r9, %r6;",
    );
    let expected: Vec<u32> = (0..THREADS)
        .map(|thread| 210 + (thread & 3) * ((thread & 3) + 1) / 2 * 1001 + thread)
        .collect();
    assert_eq!(found.expect("runs"), expected);
}

#[test]
fn an_exhausted_stack_is_a_fault_of_the_allocation() {
    for size in ["1040", "0xffffffffffffffff", "0xfffffffffffffff0"] {
        let fault = run(
            "",
            &format!("setp.eq.u32 %p1, %r1, 66; mov.u64 %rd2, {size}; @%p1 alloca.u64 %rd3, %rd2;"),
        )
        .expect_err("a fault");
        assert_eq!(
            (&fault.kind, fault.thread),
            (&FaultKind::StackOverflow { limit: u64::from(STACK) }, Some([66, 0, 0])),
            "{fault}"
        );
        assert!(fault.instruction.contains("alloca"), "{fault}");
    }
    assert!(run("", "alloca.u64 %rd2, 1024; st.local.u64 [%rd2+1016], %rd2;").is_ok());
}
