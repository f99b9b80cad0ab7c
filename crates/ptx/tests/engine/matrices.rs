//! `mma.m8n8k4` of f16, whose four products belong to eight lanes each, against the layouts of PTX ISA §9.7.14.5.1.

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

/// Bits of a small whole number as f16.
fn half(number: i32) -> u16 {
    if number == 0 {
        return 0;
    }
    let exponent = number.unsigned_abs().ilog2();
    let fraction = (number.unsigned_abs() << (10 - exponent)) & 0x3ff;
    u16::from(number < 0) << 15 | ((exponent + 15) << 10) as u16 | fraction as u16
}

/// One fragment of each lane of two warps.
type Fragments = Vec<Vec<i32>>;

fn product(a_row: bool, b_row: bool, wide: [bool; 2], a: &Fragments, b: &Fragments, c: &Fragments) -> Fragments {
    let [d_wide, c_wide] = wide;
    let place = |wide: bool, laneid: usize, i: usize| {
        let x = if wide { (laneid & 0b1) + (i & 0b10) } else { laneid % 4 };
        let row = if laneid < 16 { x } else { x + 4 };
        (row, if wide { (i & 0b100) + (laneid & 0b10) + (i & 0b1) } else { i })
    };
    let mut found = vec![vec![0; 8]; a.len()];
    for (thread, result) in found.iter_mut().enumerate() {
        let laneid = thread % 32;
        // The lanes of the same quad pair.
        let pair: Vec<usize> = (0..32).filter(|other| other % 16 / 4 == laneid % 16 / 4).collect();
        let of = |list: &Fragments, at: &dyn Fn(usize, usize) -> bool| {
            let mut values = pair.iter().flat_map(|other| (0..list[0].len()).map(move |i| (*other, i)));
            let (other, i) = values.find(|(other, i)| at(*other, *i)).expect("some lane holds it");
            list[thread / 32 * 32 + other][i]
        };
        for (i, value) in result.iter_mut().enumerate() {
            let (row, column) = place(d_wide, laneid, i);
            *value = of(c, &|other, i| place(c_wide, other, i) == (row, column));
            for k in 0..4 {
                let left = of(a, &|other, i| {
                    let upper = if other < 16 { 0 } else { 4 };
                    if a_row {
                        (other % 4 + upper, i) == (row, k)
                    } else {
                        (i + upper, other % 4) == (row, k)
                    }
                });
                let right = of(b, &|other, i| {
                    let upper = if other < 16 { 0 } else { 4 };
                    if b_row {
                        (other % 4, i + upper) == (k, column)
                    } else {
                        (i, other % 4 + upper) == (k, column)
                    }
                });
                *value += left * right;
            }
        }
    }
    found
}

#[test]
fn quads_of_both_halves_multiply_together() {
    let mut random = 1u32;
    let mut fragments = |count: usize| -> Fragments {
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 28) as i32 - 8
        };
        (0..64).map(|_| (0..count).map(|_| next()).collect()).collect()
    };
    for (d_type, c_type) in [("f16", "f16"), ("f32", "f16"), ("f32", "f32")] {
        for (a_major, b_major) in [("row", "col"), ("row", "row"), ("col", "row"), ("col", "col")] {
            let (a, b, c) = (fragments(4), fragments(4), fragments(8));
            let words = |list: &Fragments, wide: bool| -> Vec<u8> {
                let bytes = |number: &i32| {
                    if wide {
                        (*number as f32).to_le_bytes().to_vec()
                    } else {
                        half(*number).to_le_bytes().to_vec()
                    }
                };
                list.iter().flatten().flat_map(bytes).collect()
            };
            let (d_wide, c_wide) = (d_type == "f32", c_type == "f32");
            let list = |first: usize, count: usize| {
                (first..first + count)
                    .map(|index| format!("%r{index}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let (d_count, c_count) = (if d_wide { 8 } else { 4 }, if c_wide { 8 } else { 4 });
            let loads = |base: &str, first: usize, count: usize| -> String {
                (0..count)
                    .map(|index| format!("ld.global.b32 %r{}, [{base}+{}];\n", first + index, 4 * index))
                    .collect()
            };
            let stores: String = (0..d_count)
                .map(|index| format!("st.global.b32 [%rd4+{}], %r{};\n", 4 * index, 20 + index))
                .collect();
            let text = format!(
                ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{{\n\
                 .reg .b32 %r<40>; .reg .b64 %rd<9>; mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];\n\
                 mad.wide.u32 %rd1, %r0, 8, %rd1; mad.wide.u32 %rd2, %r0, 8, %rd2; mad.wide.u32 %rd3, %r0, {}, %rd3; mad.wide.u32 %rd4, %r0, {}, %rd4;\n\
                 {}{}{}mma.sync.aligned.m8n8k4.{a_major}.{b_major}.{d_type}.f16.f16.{c_type} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n{stores}ret;\n}}\n",
                4 * c_count,
                4 * d_count,
                loads("%rd1", 1, 2),
                loads("%rd2", 3, 2),
                loads("%rd3", 5, c_count),
                list(20, d_count),
                list(1, 2),
                list(3, 2),
                list(5, c_count),
            );
            let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
            let memory = Memory::new(1 << 20);
            let size = 64 * 4 * d_count;
            let [a_at, b_at, c_at, d_at] = [words(&a, false), words(&b, false), words(&c, c_wide), vec![0; size]].map(|bytes| {
                let pointer = memory.allocate(bytes.len() as u64).expect("fits");
                memory.write(pointer, &bytes).expect("inside");
                pointer
            });
            let arguments = ArgumentList::new().pointer(a_at).pointer(b_at).pointer(c_at).pointer(d_at);
            module
                .entry("k")
                .expect("the kernel")
                .launch(&Launch::new([1, 1, 1], [64, 1, 1]), arguments.bytes(), &memory, &Cancel::new())
                .unwrap_or_else(|fault| panic!("{fault}"));
            let mut found = vec![0; size];
            memory.read(d_at, &mut found).expect("inside");
            let expected = product(a_major == "row", b_major == "row", [d_wide, c_wide], &a, &b, &c);
            assert_eq!(found, words(&expected, d_wide), "{a_major} {b_major} {d_type} {c_type}");
        }
    }
    let text = ".version 6.4 .target sm_70 .entry k() { .reg .b32 %r<9>; mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2},
        {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}; ret; }";
    assert!(Module::load(text).is_err(), "a result of f16 needs an addend of f16");
}
