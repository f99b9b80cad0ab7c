//! Sessions with engine xla and a real plugin.

use sahasra_wire::session::{FailureCode, Format};

use crate::harness::{Array, Executor, code};

const MEMORY: u64 = 64 << 20;

const DOUBLE: &str =
    "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %y = stablehlo.add %x, %x : tensor<4xf32> return %y : tensor<4xf32> }";
const STEP: &str = "func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> { \
    %y = stablehlo.add %x, %x : tensor<4xf32> return %y : tensor<4xf32> }";

#[test]
fn what_is_uploaded_is_executed_on_and_comes_back() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    assert_eq!((client.welcome.engine.as_str(), client.welcome.platform.as_str()), ("xla", "cpu"));
    assert_eq!(client.welcome.stablehlo_version.split('.').count(), 3, "{:?}", client.welcome);
    client.floats(1, &[1., 2., 3., 4.]);
    let compiled = client.compile(1, Format::StableHlo, DOUBLE).unwrap();
    assert_eq!(
        (compiled.cached, compiled.argument_bytes, compiled.limit_bytes),
        (false, 16, MEMORY)
    );
    assert_eq!(
        (compiled.outputs[0].element_type.as_str(), &compiled.outputs[0].dimensions),
        ("f32", &vec![4])
    );
    // Each step uses the previous result before that is known to be complete.
    for step in 0..200 {
        client.execute(1, &[1], &[1], &[]);
        if step % 50 == 0 {
            client.floats(1, &[1., 2., 3., 4.]);
        }
    }
    client.floats(1, &[1., 2., 3., 4.]);
    for _ in 0..10 {
        client.execute(1, &[1], &[1], &[]);
    }
    assert_eq!(client.download_floats(1), [1024., 2048., 3072., 4096.]);
    client.synchronise().unwrap();
    executor.status_page_shows(|stats| stats.connected && stats.tensors == 1 && stats.stored_bytes == 16);
    executor.status_page_shows(|stats| stats.active_executions == 0);
    client.close();
    executor.status_page_shows(|stats| !stats.connected && stats.tensors == 0 && stats.stored_bytes == 0);
}

#[test]
fn every_element_type_comes_back_as_it_went() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    let types = [
        ("pred", 1),
        ("s8", 1),
        ("s16", 2),
        ("s32", 4),
        ("s64", 8),
        ("u8", 1),
        ("u16", 2),
        ("u32", 4),
        ("u64", 8),
        ("f16", 2),
        ("f32", 4),
        ("f64", 8),
        ("bf16", 2),
        ("c64", 8),
        ("c128", 16),
        ("f8e5m2", 1),
        ("f8e4m3fn", 1),
        ("s4", 1),
        ("u4", 1),
    ];
    let mut sent = Vec::new();
    for (place, (element_type, size)) in types.into_iter().enumerate() {
        let tensor = place as u64 + 1;
        let byte = |index: usize| if element_type == "pred" { index % 2 } else { index % 7 } as u8;
        let array = Array {
            element_type: element_type.to_owned(),
            dimensions: vec![2, 3],
            bytes: (0..6 * size).map(byte).collect(),
        };
        client.upload(tensor, element_type, &array.dimensions, &array.bytes);
        sent.push((tensor, array));
    }
    client.synchronise().unwrap();
    for (tensor, array) in sent {
        assert_eq!(client.download(tensor).unwrap(), array);
    }
}

#[test]
fn scalars_and_empty_tensors_are_tensors() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    client.upload(1, "s64", &[], &7_i64.to_le_bytes());
    client.upload(2, "f32", &[3, 0], &[]);
    client.allocate(3, "f32", &[2]);
    client.allocate(4, "bf16", &[0]);
    assert_eq!(client.download(1).unwrap().bytes, 7_i64.to_le_bytes());
    let empty = client.download(2).unwrap();
    assert_eq!((empty.dimensions, empty.bytes.len()), (vec![3, 0], 0));
    assert_eq!(client.download_floats(3), [0., 0.]);
    assert!(client.download(4).unwrap().bytes.is_empty());
    assert_eq!((client.load().tensors, client.load().used_bytes), (4, 16));
}

#[test]
fn large_tensors_come_and_go_in_parts() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    let bytes: Vec<u8> = (0..20_000_003_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    client.upload(1, "u8", &[bytes.len() as i64], &bytes);
    assert!(client.download(1).unwrap().bytes == bytes);
}

#[test]
fn a_donated_tensor_ends_and_its_memory_is_the_results() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    client.compile(1, Format::StableHlo, STEP).unwrap();
    client.floats(1, &[1., 2., 3., 4.]);
    client.execute(1, &[1], &[2], &[0]);
    assert_eq!(client.download_floats(2), [2., 4., 6., 8.]);
    let failed = client.download(1).unwrap_err();
    assert!(
        code(&failed) == FailureCode::InvalidArgument && failed.message.contains("tensor 1 not found"),
        "{failed:?}"
    );
    // An argument that is not donated stays, although the program would accept a donation.
    client.execute(1, &[2], &[3], &[]);
    assert_eq!(client.download_floats(2), [2., 4., 6., 8.]);
    assert_eq!(client.download_floats(3), [4., 8., 12., 16.]);
    client.synchronise().unwrap();
    let stats = client.load();
    assert_eq!((stats.tensors, stats.used_bytes), (2, 32));
}

#[test]
fn a_tensor_that_is_being_sent_may_be_donated_deleted_and_named_anew() {
    const LARGE: &str = "func.func @main(%x: tensor<1048576xf32> {tf.aliasing_output = 0 : i32}) -> tensor<1048576xf32> { \
        %y = stablehlo.add %x, %x : tensor<1048576xf32> return %y : tensor<1048576xf32> }";
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    client.compile(1, Format::StableHlo, LARGE).unwrap();
    let bytes = |factor: f32| -> Vec<u8> { (0..1 << 20).flat_map(|place| (place as f32 * factor).to_le_bytes()).collect() };
    client.upload(1, "f32", &[1 << 20], &bytes(1.));
    // Sent directly from its memory, and more than sockets hold, while nobody reads.
    let mut requests = vec![client.ask_download(1)];
    for _ in 0..3 {
        client.execute(1, &[1], &[1], &[0]);
        requests.push(client.ask_download(1));
    }
    client.upload(1, "f32", &[1 << 20], &bytes(3.));
    requests.push(client.ask_download(1));
    client.delete(&[1]);
    client.upload(2, "f32", &[1 << 20], &bytes(5.));
    for (request, factor) in requests.into_iter().zip([1., 2., 4., 8., 3.]) {
        assert!(client.downloaded(request).unwrap().bytes == bytes(factor), "times {factor}");
    }
    client.synchronise().unwrap();
    let stats = client.load();
    assert_eq!(
        (stats.tensors, stats.used_bytes),
        (1, 4 << 20),
        "what was sent is nobody's any more"
    );
    assert!(client.download(2).unwrap().bytes == bytes(5.));
}

#[test]
fn what_fails_is_named_at_the_next_synchronisation_and_only_once() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    client.compile(1, Format::StableHlo, DOUBLE).unwrap();
    client.floats(1, &[1., 2., 3., 4.]);
    client.floats(2, &[1., 2., 3.]);
    let culprit = client.execute(1, &[2], &[3], &[]);
    client.execute(1, &[3], &[4], &[]);
    client.execute(1, &[1], &[5], &[]);
    let failed = client.synchronise().unwrap_err();
    assert_eq!(
        (failed.sequence, failed.operation.as_str()),
        (culprit, "execute program_1"),
        "{failed:?}"
    );
    client.synchronise().unwrap();
    let spread = client.download(4).unwrap_err();
    assert_eq!((spread.sequence, spread.message), (culprit, failed.message));
    assert_eq!(client.download_floats(5), [2., 4., 6., 8.]);
    client.synchronise().unwrap();
}

#[test]
fn what_exceeds_the_limit_is_refused_with_figures_and_nothing_is_lost() {
    let Some(executor) = Executor::xla(1 << 20, &[]) else { return };
    let mut client = executor.client();
    client.floats(1, &[1., 2., 3., 4.]);
    client.upload(2, "u8", &[900_000], &vec![7; 900_000]);
    let culprit = client.upload(3, "u8", &[900_000], &vec![8; 900_000]);
    client.allocate(4, "f32", &[1 << 40]);
    let failed = client.synchronise().unwrap_err();
    assert_eq!((code(&failed), failed.sequence), (FailureCode::OutOfMemory, culprit));
    for figure in ["900000", "1048576", "900016"] {
        assert!(failed.message.contains(figure), "{}", failed.message);
    }
    assert_eq!(client.download_floats(1), [1., 2., 3., 4.]);
    assert_eq!(client.download(2).unwrap().bytes, vec![7; 900_000]);
    client.delete(&[2]);
    client.upload(3, "u8", &[900_000], &vec![8; 900_000]);
    assert_eq!(client.download(3).unwrap().bytes, vec![8; 900_000]);
    client.synchronise().unwrap();
    // The results and the temporary memory of a program count before it starts.
    let large = "func.func @main(%x: tensor<f32>) -> tensor<1000x1000xf32> { \
        %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1000x1000xf32> return %y : tensor<1000x1000xf32> }";
    let compiled = client.compile(1, Format::StableHlo, large).unwrap();
    assert!(
        compiled.output_bytes >= 4_000_000 && compiled.limit_bytes == 1 << 20,
        "{compiled:?}"
    );
    client.upload(5, "f32", &[], &[0; 4]);
    client.execute(1, &[5], &[6], &[]);
    let failed = client.synchronise().unwrap_err();
    assert_eq!(
        (code(&failed), failed.operation.as_str()),
        (FailureCode::OutOfMemory, "execute program_1")
    );
}

#[test]
fn programs_are_compiled_once_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ["--program-cache-dir", folder.path().to_str().unwrap()];
    for run in 0..2 {
        let Some(executor) = Executor::xla(MEMORY, &cache) else { return };
        let mut client = executor.client();
        assert_eq!(client.compile(1, Format::StableHlo, DOUBLE).unwrap().cached, run > 0);
        let again = client.compile(2, Format::StableHlo, DOUBLE).unwrap();
        assert!(again.cached && again.argument_bytes == 16, "{again:?}");
        client.floats(1, &[1., 2., 3., 4.]);
        client.execute(2, &[1], &[2], &[]);
        assert_eq!(client.download_floats(2), [2., 4., 6., 8.]);
        client.close();
        // The next client of the same session also finds the compiled program.
        let mut next = executor.client();
        assert!(next.compile(1, Format::StableHlo, DOUBLE).unwrap().cached);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_cannot_run_here_is_told_apart_from_what_is_wrong() {
    let Some(executor) = Executor::xla(MEMORY, &[]) else { return };
    let mut client = executor.client();
    let failed = client.compile(1, Format::StableHlo, "func.func @main() { nonsense }").unwrap_err();
    assert!(
        code(&failed) == FailureCode::CompileFailed && failed.message.contains("nonsense"),
        "{failed:?}"
    );
    let call = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { \
        %y = stablehlo.custom_call @somewhere_else(%x) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32> return %y : tensor<4xf32> }";
    let failed = client.compile(2, Format::StableHlo, call).unwrap_err();
    assert!(
        code(&failed) == FailureCode::Incompatible && failed.message.contains("somewhere_else"),
        "{failed:?}"
    );
    // A portable artifact of a future version: bytecode magic and version, producer, and unreadable content.
    let failed = client
        .compile(3, Format::StableHlo, b"ML\xefR\x06StableHLO_v99.0.0\0\x01\x02")
        .unwrap_err();
    assert!(
        code(&failed) == FailureCode::Incompatible && failed.message.contains("99.0.0"),
        "{failed:?}"
    );
    let failed = client.compile(4, Format::Ptx, ".version 8.0").unwrap_err();
    assert_eq!(code(&failed), FailureCode::Unsupported, "{failed:?}");
    // Operations that use a program that did not compile fail with the failure of the compilation.
    client.execute(2, &[1], &[2], &[]);
    let failed = client.download(2).unwrap_err();
    assert_eq!(
        (code(&failed), failed.operation.as_str()),
        (FailureCode::Incompatible, "compilation of program_2")
    );
    client.synchronise().unwrap();
}

#[test]
fn an_engine_that_does_not_open_says_so_to_whoever_waits() {
    let executor = Executor::start(&["--engine", "xla", "--plugin", "/nowhere/plugin.so"], MEMORY);
    let mut client = crate::harness::Client::new(executor.connection(&[]));
    let refused = client.greet(crate::harness::hello()).unwrap_err();
    assert!(refused.message.contains("/nowhere/plugin.so"), "{refused:?}");
    let stderr = executor.end();
    assert!(stderr.contains("/nowhere/plugin.so"), "{stderr}");
}
