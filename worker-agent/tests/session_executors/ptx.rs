//! Sessions with engine ptx on the CPU device.

use bytes::Bytes;
use sahasra_wire::session::{Argument, FailureCode, Format, Launch, argument::Kind, client_frame};

use crate::harness::{Client, Executor, code};

const MEMORY: u64 = 64 << 20;
const KERNELS: &str = include_str!("../../../crates/executor/tests/kernels.ptx");
const SAXPY: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    .reg .f32 %f<5>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f4;
done:
    ret;
}
";

fn tensor(name: u64) -> Argument {
    Argument {
        kind: Some(Kind::Tensor(name)),
    }
}

fn scalar(bytes: &[u8]) -> Argument {
    Argument {
        kind: Some(Kind::Scalar(Bytes::copy_from_slice(bytes))),
    }
}

fn launch(client: &mut Client, program: u64, entry: &str, grid: &[u32], block: &[u32], arguments: Vec<Argument>) -> u64 {
    let launch = Launch {
        program,
        entry: entry.to_owned(),
        grid: grid.to_vec(),
        block: block.to_vec(),
        dynamic_shared_bytes: 0,
        arguments,
    };
    client.send(client_frame::Kind::Launch(launch), Bytes::new())
}

#[test]
fn kernels_read_and_write_tensors_in_the_order_sent() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    assert_eq!((client.welcome.engine.as_str(), client.welcome.platform.as_str()), ("ptx", "cpu"));
    let x: Vec<f32> = (0..1000).map(|index| index as f32).collect();
    client.floats(1, &x);
    client.allocate(2, "f32", &[1000]);
    assert!(!client.compile(1, Format::Ptx, SAXPY).unwrap().cached);
    assert!(client.compile(2, Format::Ptx, SAXPY).unwrap().cached);
    for _ in 0..3 {
        let arguments = vec![
            tensor(1),
            tensor(2),
            scalar(&2.0_f32.to_le_bytes()),
            scalar(&1000_u32.to_le_bytes()),
        ];
        launch(&mut client, 1, "saxpy", &[4], &[256], arguments);
    }
    let expected: Vec<f32> = x.iter().map(|x| 6.0 * x).collect();
    assert_eq!(client.download_floats(2), expected);
    client.synchronise().unwrap();
    let stats = client.load();
    assert_eq!((stats.tensors, stats.programs), (2, 2));
    executor.status_page_shows(|status_page| status_page.tensors == 2 && status_page.stored_bytes == stats.used_bytes);
    client.close();
    executor.status_page_shows(|status_page| status_page.tensors == 0 && status_page.stored_bytes == 0);
}

#[test]
fn variables_of_a_program_keep_what_its_kernels_leave_in_them() {
    let executor = Executor::ptx(MEMORY);
    let visits = |client: &mut Client, program: u64| {
        client.allocate(9, "u32", &[16]);
        launch(client, program, "variables", &[1], &[1], vec![tensor(9)]);
        let seen = client.download(9).unwrap().bytes;
        u32::from_le_bytes(seen[16..20].try_into().unwrap())
    };
    for _ in 0..2 {
        let mut client = executor.client();
        client.compile(1, Format::Ptx, KERNELS).unwrap();
        client.compile(2, Format::Ptx, KERNELS).unwrap();
        assert_eq!([visits(&mut client, 1), visits(&mut client, 1)], [5, 6]);
        assert_eq!(visits(&mut client, 2), 5, "another program of the same text has its own");
        assert_eq!(visits(&mut client, 1), 7);
        client.synchronise().unwrap();
        client.close();
    }
}

#[test]
fn variables_of_every_program_count_against_the_memory_of_the_session() {
    const BYTES: u64 = 24 << 20;
    let text = format!(".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 x[{BYTES}];\n.visible .entry k() {{ ret; }}\n");
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    for program in 1..=2 {
        let compiled = client.compile(program, Format::Ptx, &text).unwrap();
        assert_eq!((compiled.used_bytes, compiled.cached), (program * BYTES, program > 1));
    }
    let failed = client.compile(3, Format::Ptx, &text).unwrap_err();
    assert_eq!(code(&failed), FailureCode::OutOfMemory, "{failed:?}");
    assert!(failed.message.contains(&format!("{} are in use", 2 * BYTES)), "{}", failed.message);
    // Memory of a program that is deleted, or whose name is reused, is available to programs and tensors.
    client.delete_program(1);
    client.compile(3, Format::Ptx, &text).unwrap();
    client.compile(3, Format::Ptx, SAXPY).unwrap();
    assert_eq!(client.load().used_bytes, BYTES);
    client.compile(0, Format::Ptx, &text).unwrap();
    client.allocate(1, "u8", &[(MEMORY - BYTES) as i64]);
    client.synchronise().unwrap();
    assert_eq!(client.load().used_bytes, MEMORY);
}

#[test]
fn a_fault_is_named_with_kernel_line_and_thread_and_ends_nothing_else() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, KERNELS).unwrap();
    client.allocate(1, "u32", &[16]);
    let culprit = launch(
        &mut client,
        1,
        "stray",
        &[1],
        &[1],
        vec![tensor(1), scalar(&7_u32.to_le_bytes()), scalar(&0_u32.to_le_bytes())],
    );
    let failed = client.synchronise().unwrap_err();
    assert_eq!(
        (code(&failed), failed.sequence),
        (FailureCode::ExecutionFailed, culprit),
        "{failed:?}"
    );
    assert_eq!(failed.operation, "launch stray");
    for part in ["stray", "line", "thread"] {
        assert!(failed.message.contains(part), "{}", failed.message);
    }
    client.synchronise().unwrap();
    client.allocate(2, "u32", &[16]);
    launch(&mut client, 1, "affine", &[1], &[1], vec![tensor(2), scalar(&5_u32.to_le_bytes())]);
    assert_eq!(client.download(2).unwrap().bytes[..4], 16_u32.to_le_bytes());
}

#[test]
fn what_a_kernel_that_failed_was_to_write_says_why_it_is_not_there() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, KERNELS).unwrap();
    let broken = client.compile_unasked(2, Format::Ptx, "this is no PTX");
    for name in 1..=4 {
        client.allocate(name, "u32", &[16]);
    }
    let five = || scalar(&5_u32.to_le_bytes());
    let zero = || scalar(&0_u32.to_le_bytes());
    let strays = launch(&mut client, 1, "stray", &[1], &[1], vec![tensor(1), five(), zero()]);
    let refused = launch(&mut client, 1, "affine", &[1], &[1025], vec![tensor(2), five()]);
    launch(&mut client, 2, "affine", &[1], &[1], vec![tensor(3), five()]);
    launch(&mut client, 1, "affine", &[1], &[1], vec![tensor(4), five()]);
    for (name, culprit, expected) in [
        (1, strays, FailureCode::ExecutionFailed),
        (2, refused, FailureCode::InvalidArgument),
        (3, broken, FailureCode::CompileFailed),
    ] {
        let failed = client.download(name).unwrap_err();
        assert_eq!((code(&failed), failed.sequence), (expected, culprit), "{failed:?}");
    }
    assert_eq!(client.download(4).unwrap().bytes[..4], 16_u32.to_le_bytes());
    // All failures were reported, so closing reports none.
    client.close();
}

#[test]
fn closing_tells_of_a_failure_that_nobody_heard_of() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, KERNELS).unwrap();
    client.allocate(1, "u32", &[16]);
    let culprit = launch(&mut client, 1, "affine", &[1], &[1025], vec![tensor(1), scalar(&[0; 4])]);
    let failed = client.ask_close().unwrap_err();
    assert_eq!(
        (code(&failed), failed.sequence),
        (FailureCode::InvalidArgument, culprit),
        "{failed:?}"
    );
    executor.status_page_shows(|status_page| status_page.tensors == 0 && !status_page.connected);
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, KERNELS).unwrap();
    client.allocate(1, "u32", &[16]);
    let index = || scalar(&0_u32.to_le_bytes());
    for (entry, grid, arguments) in [
        ("missing", vec![1], vec![tensor(1), index()]),
        ("affine", vec![1], vec![tensor(1)]),
        ("affine", vec![1], vec![tensor(1), scalar(&[0; 8])]),
        ("affine", vec![1], vec![tensor(1), scalar(&[0; 9])]),
        ("affine", vec![1], vec![tensor(1), Argument::default()]),
        ("affine", vec![1], vec![tensor(99), index()]),
        ("affine", vec![1, 1, 1, 1], vec![tensor(1), index()]),
        ("affine", vec![], vec![tensor(1), index()]),
    ] {
        // A new tensor for each launch, so that the launches are independent.
        client.allocate(1, "u32", &[16]);
        let culprit = launch(&mut client, 1, entry, &grid, &[1], arguments.clone());
        let failed = client.synchronise().unwrap_err();
        let reported = (code(&failed), failed.sequence, failed.operation);
        assert_eq!(
            reported,
            (FailureCode::InvalidArgument, culprit, format!("launch {entry}")),
            "{arguments:?}"
        );
    }
    let failed = client.compile(2, Format::Ptx, "this is no PTX").unwrap_err();
    assert_eq!(code(&failed), FailureCode::CompileFailed, "{failed:?}");
    let failed = client.compile(2, Format::StableHlo, "func.func @main() { return }").unwrap_err();
    assert_eq!(code(&failed), FailureCode::Unsupported, "{failed:?}");
    client.allocate(1, "u32", &[16]);
    client.execute(1, &[1], &[], &[]);
    assert_eq!(code(&client.synchronise().unwrap_err()), FailureCode::Unsupported);
}

#[test]
fn scalars_and_empty_tensors_are_tensors() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.upload(1, "f64", &[], &1.5_f64.to_le_bytes());
    client.upload(2, "f32", &[0, 5], &[]);
    client.allocate(3, "u8", &[0]);
    assert_eq!(client.download(1).unwrap().bytes, 1.5_f64.to_le_bytes());
    assert_eq!(client.download(2).unwrap().dimensions, [0, 5]);
    assert!(client.download(3).unwrap().bytes.is_empty());
    client.synchronise().unwrap();
}

#[test]
fn an_argument_may_be_a_structure() {
    const KERNEL: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry last(.param .u64 out, .param .align 16 .b8 pair[24], .param .u32 more)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [pair+16];
    ld.param.u32 %r1, [more];
    st.global.u64 [%rd1], %rd2;
    st.global.u32 [%rd1+8], %r1;
    ret;
}
";
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, KERNEL).unwrap();
    client.allocate(1, "u64", &[2]);
    let pair: Vec<u8> = (0..24).collect();
    launch(
        &mut client,
        1,
        "last",
        &[1],
        &[1],
        vec![tensor(1), scalar(&pair), scalar(&[9, 0, 0, 0])],
    );
    let seen = client.download(1).unwrap().bytes;
    assert_eq!((&seen[..8], seen[8]), (&pair[16..], 9));
}

#[test]
fn the_arguments_of_a_kernel_have_at_most_32764_bytes() {
    // A kernel with a pointer and `bytes` further bytes of parameters, whose last four bytes it returns.
    let kernel = |bytes: usize| {
        format!(
            ".version 8.1\n.target sm_70\n.address_size 64\n\
             .visible .entry last(.param .u64 out, .param .align 4 .b8 more[{bytes}])\n{{\n    .reg .b32 %r<2>;\n    \
             .reg .b64 %rd<2>;\n    ld.param.u64 %rd1, [out];\n    ld.param.u32 %r1, [more+{}];\n    \
             st.global.u32 [%rd1], %r1;\n    ret;\n}}\n",
            bytes - 4
        )
    };
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, kernel(32_756)).unwrap();
    client.allocate(1, "u32", &[1]);
    let mut more = vec![0; 32_756];
    more[32_752] = 7;
    launch(&mut client, 1, "last", &[1], &[1], vec![tensor(1), scalar(&more)]);
    assert_eq!(client.download(1).unwrap().bytes, 7_u32.to_le_bytes());
    launch(&mut client, 1, "last", &[1], &[1], vec![tensor(1), scalar(&[0; 32_765])]);
    let failed = client.synchronise().unwrap_err();
    assert_eq!(code(&failed), FailureCode::InvalidArgument, "{failed:?}");
    assert!(failed.message.contains("32765 bytes, expected 1 to 32764"), "{failed:?}");
    let failed = client.compile(2, Format::Ptx, kernel(32_760)).unwrap_err();
    assert_eq!(code(&failed), FailureCode::CompileFailed, "{failed:?}");
    assert!(failed.message.contains("32768 bytes of parameters"), "{failed:?}");
}
