//! Atomics on vectors of 16-bit floats, and their reductions.

use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

/// Value of the bits of an f16 or bf16, by the definition of the formats.
fn value(bits: u16, brain: bool) -> f64 {
    let (fraction_bits, bias) = if brain { (7, 127) } else { (10, 15) };
    let exponent = i32::from(bits >> fraction_bits & ((1 << (15 - fraction_bits)) - 1));
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let sign = if bits >> 15 != 0 { -1.0 } else { 1.0 };
    let special = (1 << (15 - fraction_bits)) - 1;
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        exponent if exponent == special && fraction != 0.0 => f64::NAN,
        exponent if exponent == special => sign * f64::INFINITY,
        exponent => sign * (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// `min` and `max` of the ISA: a number is preferred to NaN, two NaNs give the canonical one, and -0 is less than +0.
fn extremum(a: u16, b: u16, brain: bool, smaller: bool) -> u16 {
    let (x, y) = (value(a, brain), value(b, brain));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fff,
        (true, false) => b,
        (false, true) => a,
        _ if x == y => {
            let negative = if a >> 15 != 0 { a } else { b };
            let positive = if a >> 15 != 0 { b } else { a };
            if smaller { negative } else { positive }
        }
        _ if (x < y) == smaller => a,
        _ => b,
    }
}

const VALUES: [u16; 12] = [
    0, 0x8000, 0x3c00, 0xbc00, 0x0001, 0x8001, 0x7c00, 0xfc00, 0x7e00, 0x3f80, 0xff81, 0x4248,
];

#[test]
fn vectors_take_the_lesser_or_greater_of_each_half() {
    for (scalar, brain) in [("f16", false), ("bf16", true), ("f16x2", false), ("bf16x2", true)] {
        let packed = scalar.ends_with("x2");
        for (operation, smaller) in [("min", true), ("max", false)] {
            for width in if packed { &[2usize, 4][..] } else { &[2, 4, 8] } {
                let (bytes, letter, bits) = if packed { (4, 'r', 32) } else { (2, 'h', 16) };
                let names = |start: usize| {
                    (start..start + width)
                        .map(|index| format!("%{letter}{index}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let loads: String = (0..*width)
                    .map(|index| format!("ld.global.b{bits} %{letter}{}, [%rd2+{}];\n", index + 1, index * bytes))
                    .collect();
                let stores: String = (0..*width)
                    .map(|index| format!("st.global.b{bits} [%rd3+{}], %{letter}{};\n", index * bytes, 11 + index))
                    .collect();
                let size = width * bytes;
                let text = format!(
                    ".version 8.1\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 memory, .param .u64 operands, .param .u64 old)\n{{\n\
                     .reg .b16 %h<20>; .reg .b32 %r<20>; .reg .b64 %rd<9>; mov.u32 %r0, %tid.x;\n\
                     ld.param.u64 %rd1, [memory]; ld.param.u64 %rd2, [operands]; ld.param.u64 %rd3, [old];\n\
                     mad.wide.u32 %rd1, %r0, {size}, %rd1; mad.wide.u32 %rd2, %r0, {size}, %rd2; mad.wide.u32 %rd3, %r0, {size}, %rd3;\n\
                     {loads}atom.relaxed.gpu.global.{operation}.noftz.v{width}.{scalar} {{{}}}, [%rd1], {{{}}};\n{stores}\
                     red.global.v{width}.{scalar}.{operation}.noftz [%rd1], {{{}}};\nret;\n}}\n",
                    names(11),
                    names(1),
                    names(1)
                );
                let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
                let memory = Memory::new(1 << 20);
                let threads = 36;
                let halves = threads * size / 2;
                let cycle = |step: usize| {
                    (0..halves)
                        .map(|index| VALUES[(index * step + index / 12) % 12])
                        .collect::<Vec<u16>>()
                };
                let (before, operands) = (cycle(1), cycle(5));
                let [target, source, old] = [&before, &operands, &vec![0; halves]].map(|words| {
                    let pointer = memory.allocate(2 * halves as u64).expect("fits");
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    memory.write(pointer, &bytes).expect("inside");
                    pointer
                });
                let arguments = ArgumentList::new().pointer(target).pointer(source).pointer(old);
                module
                    .entry("k")
                    .expect("the kernel")
                    .launch(
                        &Launch::new([1, 1, 1], [threads as u32, 1, 1]),
                        arguments.bytes(),
                        &memory,
                        &Cancel::new(),
                    )
                    .unwrap_or_else(|fault| panic!("{fault}"));
                let read = |pointer| {
                    let mut bytes = vec![0; 2 * halves];
                    memory.read(pointer, &mut bytes).expect("inside");
                    bytes
                        .as_chunks()
                        .0
                        .iter()
                        .map(|half| u16::from_le_bytes(*half))
                        .collect::<Vec<u16>>()
                };
                assert_eq!(read(old), before, "{operation} {scalar} {width}");
                for ((found, a), b) in read(target).into_iter().zip(before).zip(operands) {
                    let expected = extremum(a, b, brain, smaller);
                    assert_eq!(found, expected, "{operation}.v{width}.{scalar} of {a:#x} and {b:#x}");
                }
            }
        }
    }
}
