//! Matrix instructions and asynchronous copies on the engine against models written from the tables of the PTX ISA.

mod copies;
mod moves;
mod opaque;
mod products;

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

/// Runs one block of a kernel `k(in, out)` on these input bytes. Returns the bytes in `out`.
fn run(form: &str, text: &str, threads: u32, input: &[u8], output_bytes: usize) -> Vec<u8> {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{form}: {error}"));
    let memory = Memory::new(1 << 24);
    let source = memory.allocate(input.len() as u64).expect("fits");
    memory.write(source, input).expect("inside");
    let target = memory.allocate(output_bytes as u64).expect("fits");
    let kernel = module.entry("k").expect("the kernel");
    let arguments = ArgumentList::new().pointer(source).pointer(target);
    kernel
        .launch(&Launch::new([1, 1, 1], [threads, 1, 1]), arguments.bytes(), &memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{form}: {fault}"));
    let mut found = vec![0; output_bytes];
    memory.read(target, &mut found).expect("inside");
    found
}

/// Returns the start of a kernel: `%in` and `%out` point to the thread's own bytes, `%r31` is its index and `%r30` its lane.
fn beginning(input_bytes: usize, output_bytes: usize) -> String {
    format!(
        ".version 8.6\n.target sm_100\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %d<99>, %in, %out, %base, %shared; .shared .align 16 .b8 s[16384];\n\
         ld.param.u64 %base, [in]; ld.param.u64 %out, [out]; mov.u32 %r31, %tid.x; and.b32 %r30, %r31, 31; mov.u64 %shared, s;\n\
         mad.wide.u32 %in, %r31, {input_bytes}, %base; mad.wide.u32 %out, %r31, {output_bytes}, %out;\n"
    )
}
