//! Calls of device functions, by name and through pointers.

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

/// Runs kernel `k` with 32 threads. Returns the word that each thread wrote.
fn words(text: &str) -> Vec<u32> {
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * 32).expect("fits");
    let module = Module::load(&format!(".version 8.6\n.target sm_100\n.address_size 64\n{text}")).expect("loads");
    let instance = module.instantiate(&memory).expect("fits");
    instance
        .entry("k")
        .expect("the kernel")
        .launch(
            &Launch::new([1, 1, 1], [32, 1, 1]),
            ArgumentList::new().pointer(out).bytes(),
            &memory,
            &Cancel::new(),
        )
        .expect("runs");
    let mut bytes = [0; 4 * 32];
    memory.read(out, &mut bytes).expect("inside");
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect()
}

const PARAMETERS: &str = "(.param .b32 x)";

#[test]
fn functions_are_called_through_pointers_in_any_order_of_calls() {
    // The first function calls the last one, so their order of calls differs from the order of their addresses.
    let found = words(&format!(
        ".func (.param .b32 r) first {PARAMETERS};
         .func (.param .b32 r) second {PARAMETERS};
         .func (.param .b32 r) third {PARAMETERS};
         .global .align 8 .u64 functions[4] = {{first, second, third, first}};
         .func (.param .b32 r) first {PARAMETERS} {{
             .reg .b32 %r<3>;
             ld.param.b32 %r1, [x];
             {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), third, (a); ld.param.b32 %r1, [b]; }}
             add.u32 %r1, %r1, 100;
             st.param.b32 [r], %r1;
             ret;
         }}
         .func (.param .b32 r) second {PARAMETERS} {{
             .reg .b32 %r<3>;
             ld.param.b32 %r1, [x];
             add.u32 %r1, %r1, 200;
             st.param.b32 [r], %r1;
             ret;
         }}
         .func (.param .b32 r) third {PARAMETERS} {{
             .reg .b32 %r<3>;
             ld.param.b32 %r1, [x];
             add.u32 %r1, %r1, 1000;
             st.param.b32 [r], %r1;
             ret;
         }}
         .visible .entry k(.param .u64 out) {{
             .reg .b32 %r<5>;
             .reg .b64 %rd<5>;
             ld.param.u64 %rd1, [out];
             mov.u32 %r1, %tid.x;
             and.b32 %r2, %r1, 3;
             mov.u64 %rd2, functions;
             mad.wide.u32 %rd2, %r2, 8, %rd2;
             ld.global.u64 %rd3, [%rd2];
             shape: .callprototype (.param .b32 _) _ (.param .b32 _);
             {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), %rd3, (a), shape; ld.param.b32 %r3, [b]; }}
             mad.wide.u32 %rd4, %r1, 4, %rd1;
             st.global.u32 [%rd4], %r3;
             ret;
         }}"
    ));
    let expected: Vec<u32> = (0..32)
        .map(|thread| thread + [1100, 200, 1000, 1100][thread as usize % 4])
        .collect();
    assert_eq!(found, expected);
}
