//! The engine computes the same bytes on every instruction set. Each instruction set needs a separate process.

use std::process::Command;

use sahasra_ptx::{ArgumentList, Cancel, InstructionSet, Launch, Memory, Module, instruction_set, limit_instruction_set};

/// Environment variable that asks a child process of this test for its result.
const CHILD: &str = "SAHASRA_PTX_TEST_INSTRUCTION_SET";

/// Returns a hash of the output of kernels with all kinds of floating point functions, divergence and narrow types.
fn digest() -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let memory = Memory::new(1 << 24);
    let load = |file: &str| {
        let text = std::fs::read_to_string(root.join(file).with_extension("ptx")).expect("text");
        Module::load(&text).expect("loads").instantiate(&memory).expect("fits")
    };
    let mut run = |file: &str, kernel: &str, launch: Launch, bytes: u64, arguments: &dyn Fn(ArgumentList) -> ArgumentList| {
        let out = memory.allocate(bytes).expect("fits");
        let arguments = arguments(ArgumentList::new().pointer(out));
        load(file)
            .entry(kernel)
            .expect("the kernel")
            .launch(&launch, arguments.bytes(), &memory, &Cancel::new())
            .unwrap_or_else(|fault| panic!("{fault}"));
        let mut found = vec![0; bytes as usize];
        memory.read(out, &mut found).expect("inside");
        feed(&found);
    };
    run("07_mcpi", "philox_normal", Launch::new([4, 1, 1], [100, 1, 1]), 16 * 400, &|list| {
        list.i32(400).u64(77)
    });
    run(
        "09_mandelbrot",
        "mandel_f32",
        Launch::new([5, 5, 1], [9, 9, 1]),
        4 * 45 * 45,
        &|list| list.i32(45).i32(45).f32(-2.0).f32(-1.5).f32(0.06).f32(0.06).i32(90),
    );
    let x: Vec<u8> = (0..64u32).flat_map(|i| (i as f32 * 0.031 - 1.0).to_le_bytes()).collect();
    let input = memory.allocate(256).expect("fits");
    memory.write(input, &x).expect("inside");
    run("17_local_array", "local_array", Launch::new([1, 1, 1], [2, 1, 1]), 256, &|_| {
        ArgumentList::new().pointer(input).pointer(input).i32(3)
    });
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n\
        .reg .b32 %r<9>; .reg .f32 %f<20>; .reg .f64 %fd<9>; .reg .b64 %rd<9>;\n\
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 200, %r2; mul.lo.u32 %r4, %r3, 2654435761; mov.b32 %f1, %r4;\n\
        abs.f32 %f2, %f1; ex2.approx.f32 %f3, %f1; lg2.approx.f32 %f4, %f2; sin.approx.f32 %f5, %f1; cos.approx.ftz.f32 %f6, %f1; tanh.approx.f32 %f7, %f1;\n\
        rsqrt.approx.f32 %f8, %f2; fma.rn.f32 %f9, %f1, %f1, %f2; fma.rm.f32 %f10, %f1, %f5, %f3; sqrt.rn.f32 %f11, %f2; div.rn.f32 %f12, %f1, %f5;\n\
        cvt.f64.f32 %fd1, %f1; fma.rn.f64 %fd2, %fd1, %fd1, %fd1; cvt.rz.f32.f64 %f13, %fd2; min.f32 %f14, %f1, %f5;\n\
        mul.wide.u32 %rd2, %r3, 48; add.s64 %rd3, %rd1, %rd2; st.global.v4.f32 [%rd3], {%f3, %f4, %f5, %f6}; st.global.v4.f32 [%rd3+16], {%f7, %f8, %f9, %f10};\n\
        st.global.v4.f32 [%rd3+32], {%f11, %f12, %f13, %f14}; ret;\n}\n";
    let out = memory.allocate(48 * 20_000).expect("fits");
    let kernel = Module::load(text).expect("loads").entry("k").expect("the kernel");
    kernel
        .launch(
            &Launch::new([100, 1, 1], [200, 1, 1]),
            ArgumentList::new().pointer(out).bytes(),
            &memory,
            &Cancel::new(),
        )
        .expect("runs");
    let mut found = vec![0; 48 * 20_000];
    memory.read(out, &mut found).expect("inside");
    for word in found.chunks_exact(4) {
        // The ISA does not specify which NaN an operation gives.
        let value = f32::from_le_bytes(word.try_into().expect("four bytes"));
        feed(&if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }.to_le_bytes());
    }
    digest
}

#[test]
fn every_instruction_set_gives_the_same_bytes() {
    if let Ok(limit) = std::env::var(CHILD) {
        let limit = match limit.as_str() {
            "baseline" => InstructionSet::Baseline,
            "v3" => InstructionSet::V3,
            _ => InstructionSet::Avx512,
        };
        assert!(limit_instruction_set(limit));
        println!("digest {:?} {:x}", instruction_set(), digest());
        return;
    }
    let digests: Vec<(String, String)> = ["baseline", "v3", "avx512"]
        .iter()
        .map(|limit| {
            let child = Command::new(std::env::current_exe().expect("this test"))
                .args([
                    "--exact",
                    "instruction_sets::every_instruction_set_gives_the_same_bytes",
                    "--nocapture",
                ])
                .env(CHILD, limit)
                .output()
                .expect("starts");
            let text = String::from_utf8_lossy(&child.stdout).into_owned();
            assert!(child.status.success(), "{limit}: {text}{}", String::from_utf8_lossy(&child.stderr));
            let line = text
                .lines()
                .find(|line| line.contains("digest "))
                .unwrap_or_else(|| panic!("{limit}: no digest in {text}"));
            let mut words = line.split("digest ").nth(1).unwrap_or_default().split(' ');
            (
                words.next().unwrap_or_default().to_owned(),
                words.next().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    assert!(
        digests.iter().all(|(_, digest)| !digest.is_empty() && *digest == digests[0].1),
        "{digests:?}"
    );
    assert_eq!(digests[0].0, "Baseline");
}
