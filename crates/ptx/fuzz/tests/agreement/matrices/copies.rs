//! `cp.async` (PTX ISA §9.7.9.25.3.1): sizes, source sizes, ignored sources, waits.

use std::fmt::Write as _;

const THREADS: usize = 80;

/// Part of the source that is read.
#[derive(Clone, Copy, Debug)]
enum Read {
    All,
    /// Number of bytes, the same for all threads, as an immediate.
    Immediate(usize),
    /// Number of bytes in a register, which increases from thread to thread.
    Register,
    /// Nothing if the predicate holds, as for odd threads.
    Ignored,
    /// The whole instruction is guarded: only odd threads copy.
    Guarded,
}

fn check(cache: &str, space: &str, hint: &str, size: usize, read: Read, wait: &str) {
    let mut random = fastrand::Rng::with_seed(size as u64);
    let input: Vec<u8> = (0..THREADS * size).map(|_| random.u8(1..)).collect();
    let form = format!("cp.async.{cache}{space}.global{hint}");
    let mut text = super::beginning(size, size);
    let (guard, source) = match read {
        Read::All => ("", String::new()),
        Read::Immediate(bytes) => ("", format!(", {bytes}")),
        Read::Register => ("", ", %r2".to_owned()),
        Read::Ignored => ("", ", %p1".to_owned()),
        Read::Guarded => ("@%p1 ", String::new()),
    };
    let policy = if hint.contains("cache_hint") { ", %d9" } else { "" };
    let _ = writeln!(
        text,
        "createpolicy.fractional.L2::evict_first.b64 %d9;\nmul.wide.u32 %d1, %r31, {size}; add.s64 %d1, %shared, %d1; rem.u32 %r2, %r31, {};\n\
         and.b32 %r3, %r31, 1; setp.ne.u32 %p1, %r3, 0;",
        size + 1
    );
    // Old content of shared memory.
    for at in (0..size).step_by(4) {
        let _ = writeln!(text, "st.shared.u32 [%d1+{at}], 0x77777777;");
    }
    let _ = writeln!(text, "{guard}{form} [%d1], [%in], {size}{source}{policy};\n{wait}\nbar.sync 0;");
    for at in (0..size).step_by(4) {
        let _ = writeln!(text, "ld.shared.u32 %r4, [%d1+{at}]; st.global.u32 [%out+{at}], %r4;");
    }
    text.push_str("ret;\n}\n");
    let found = super::run(&form, &text, THREADS as u32, &input, input.len());
    for thread in 0..THREADS {
        let whole = &input[thread * size..][..size];
        let bytes = match read {
            Read::All => Some(size),
            Read::Immediate(bytes) => Some(bytes),
            Read::Register => Some(thread % (size + 1)),
            Read::Ignored => Some(if thread % 2 == 1 { 0 } else { size }),
            Read::Guarded => (thread % 2 == 1).then_some(size),
        };
        // Bytes that are not read are zero.
        let expected: Vec<u8> = match bytes {
            Some(bytes) => (0..size).map(|at| if at < bytes { whole[at] } else { 0 }).collect(),
            None => vec![0x77; size],
        };
        assert_eq!(&found[thread * size..][..size], expected, "{form} {size} {read:?}: thread {thread}");
    }
}

#[test]
fn copies_write_the_requested_bytes_and_zeros() {
    let waits = [
        "cp.async.wait_all;",
        "cp.async.commit_group;\ncp.async.wait_group 0;",
        "cp.async.commit_group;\ncp.async.wait_all;",
    ];
    let hints = ["", ".L2::128B", ".L2::cache_hint", ".L2::cache_hint.L2::256B"];
    for (number, (cache, size)) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)].into_iter().enumerate() {
        let mut reads = vec![Read::All, Read::Register, Read::Ignored, Read::Guarded];
        reads.extend((0..=size).map(Read::Immediate));
        for (index, read) in reads.into_iter().enumerate() {
            let space = [".shared", ".shared::cta"][index % 2];
            check(cache, space, hints[(index + number) % 4], size, read, waits[index % 3]);
        }
    }
}
