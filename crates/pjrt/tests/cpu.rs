//! Tests with a real plugin for the CPU: `make test` installs it and sets its path in `SAHASRA_PJRT_PLUGIN`.

use std::{sync::Arc, sync::mpsc, time::Duration};

use bytes::Bytes;
use sahasra_pjrt::{Client, Code, CompileOptions, ElementType, Executable, Format, LoadError, Plugin, Program, Setting};

/// Returns the plugin. Without one, prints that the test is skipped and returns `None`.
fn plugin() -> Option<Arc<Plugin>> {
    let Some(path) = std::env::var_os("SAHASRA_PJRT_PLUGIN").filter(|path| !path.is_empty()) else {
        eprintln!("SKIPPED: no PJRT plugin is named in SAHASRA_PJRT_PLUGIN (crates/pjrt/plugin installs one and prints where)");
        return None;
    };
    Some(Plugin::load(path).expect("the plugin loads"))
}

fn client() -> Option<Client> {
    Some(Client::create(&plugin()?, &[]).expect("it has a device"))
}

fn compile(client: &Client, text: &str) -> Executable {
    let program = Program {
        format: Format::StableHlo,
        code: text.as_bytes().to_vec(),
    };
    client.compile(&program, &CompileOptions::default()).expect("it compiles")
}

fn bytes_of(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

const PRODUCT: &str = r"
module @product {
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> (tensor<2x2xf32>, tensor<3x2xf32>) {
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    %d = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %c, %d : tensor<2x2xf32>, tensor<3x2xf32>
  }
}";

#[test]
fn a_program_computes_and_reports_its_requirements() {
    let Some(client) = client() else { return };
    let executable = compile(&client, PRODUCT);
    let shapes: Vec<String> = executable.outputs().iter().map(ToString::to_string).collect();
    assert_eq!(shapes, ["f32[2, 2]", "f32[3, 2]"]);
    let memory = executable.memory().expect("the compiler counts");
    assert_eq!((memory.arguments, memory.outputs >= 40), (48, true), "{memory:?}");
    let a = client
        .upload(ElementType::F32, &[2, 3], bytes_of(&[1., 2., 3., 4., 5., 6.]))
        .unwrap();
    let b = client
        .upload(ElementType::F32, &[3, 2], bytes_of(&[1., 0., 0., 1., 1., 1.]))
        .unwrap();
    let (outputs, done) = executable.execute(&[&a, &b], &[]).unwrap();
    done.wait().unwrap();
    assert_eq!(floats(&outputs[0].download().unwrap()), [4., 5., 10., 11.]);
    // In host memory, the layout is row-major regardless of that on the device.
    assert_eq!(floats(&outputs[1].download().unwrap()), [1., 4., 2., 5., 3., 6.]);
    assert_eq!(outputs[0].device_bytes().unwrap(), 16);
    assert_eq!(floats(&a.download().unwrap()), [1., 2., 3., 4., 5., 6.], "arguments stay");
}

#[test]
fn steps_chain_without_waiting_in_between() {
    let Some(client) = client() else { return };
    let double = compile(
        &client,
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %y = stablehlo.add %x, %x : tensor<4xf32> return %y : tensor<4xf32> }",
    );
    let mut x = client.upload(ElementType::F32, &[4], bytes_of(&[1., 2., 3., 4.])).unwrap();
    for _ in 0..10 {
        x = double.execute(&[&x], &[]).unwrap().0.remove(0);
    }
    assert_eq!(floats(&x.download().unwrap()), [1024., 2048., 3072., 4096.]);
}

#[test]
fn scalars_and_empty_arrays_are_unchanged_by_upload_and_download() {
    let Some(client) = client() else { return };
    let scalar = client
        .upload(ElementType::S64, &[], Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]))
        .unwrap();
    assert_eq!(scalar.shape().unwrap().to_string(), "s64[]");
    assert_eq!(scalar.download().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let empty = client.upload(ElementType::Bf16, &[3, 0], Bytes::new()).unwrap();
    assert_eq!(empty.shape().unwrap().to_string(), "bf16[3, 0]");
    assert!(empty.download().unwrap().is_empty());
}

#[test]
fn a_download_may_be_dropped_before_its_end() {
    let Some(client) = client() else { return };
    let buffer = client.upload(ElementType::U8, &[1 << 20], vec![7; 1 << 20].into()).unwrap();
    drop(buffer.start_download().unwrap());
    let download = buffer.start_download().unwrap();
    download.done().wait().unwrap();
    assert_eq!(download.finish().unwrap(), vec![7; 1 << 20]);
}

const DONATING: &str = r"
func.func @main(%x: tensor<65536xf32> {tf.aliasing_output = 0 : i32}) -> tensor<65536xf32> {
  %y = stablehlo.add %x, %x : tensor<65536xf32>
  return %y : tensor<65536xf32>
}";

#[test]
fn a_view_shares_the_memory_of_a_buffer_and_keeps_it_alive() {
    let Some(client) = client() else { return };
    let executable = compile(&client, PRODUCT);
    let a = client
        .upload(ElementType::F32, &[2, 3], bytes_of(&[1., 2., 3., 4., 5., 6.]))
        .unwrap();
    let b = client
        .upload(ElementType::F32, &[3, 2], bytes_of(&[1., 0., 0., 1., 1., 1.]))
        .unwrap();
    let mut outputs = executable.execute(&[&a, &b], &[]).unwrap().0;
    let product = Arc::new(outputs.remove(0));
    product.ready().unwrap().wait().unwrap();
    // SAFETY: No program is executed any more.
    let view = unsafe { product.view() }.unwrap().expect("it lies in the host's memory");
    drop((product, outputs, a, b, executable));
    assert_eq!(floats(view.as_ref()), [4., 5., 10., 11.]);
    let empty = Arc::new(client.upload(ElementType::F32, &[0], Bytes::new()).unwrap());
    // SAFETY: No program is executed any more.
    assert!(unsafe { empty.view() }.unwrap().is_none());
}

#[test]
fn a_viewed_buffer_stays_unchanged_if_a_program_must_keep_it() {
    let Some(client) = client() else { return };
    let double = compile(&client, DONATING);
    let values: Vec<f32> = (0..1 << 16).map(|value| value as f32).collect();
    let uploaded = client.upload(ElementType::F32, &[1 << 16], bytes_of(&values)).unwrap();
    let x = Arc::new(double.execute(&[&uploaded], &[]).unwrap().0.remove(0));
    x.ready().unwrap().wait().unwrap();
    // SAFETY: The buffer's index is in `kept` below.
    let view = unsafe { x.view() }.unwrap().expect("it lies in the host's memory");
    let (outputs, _) = double.execute(&[&x], &[0]).unwrap();
    assert_eq!(floats(&outputs[0].download().unwrap())[3], 12.);
    assert_eq!(floats(view.as_ref())[3], 6.);
    drop((x, outputs));
    assert_eq!(floats(view.as_ref())[65_535], 131_070.);
}

#[test]
fn uploaded_memory_is_kept_as_long_as_the_buffer_and_freed_with_it() {
    let Some(client) = client() else { return };
    struct Watched(Vec<u8>, mpsc::Sender<()>);
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }
    let (sender, freed) = mpsc::channel();
    let data = Bytes::from_owner(Watched(vec![7; 1 << 20], sender));
    let buffer = client.upload(ElementType::U8, &[1 << 20], data).unwrap();
    assert_eq!(buffer.download().unwrap(), vec![7; 1 << 20]);
    drop(buffer);
    freed.recv_timeout(Duration::from_secs(60)).expect("the memory is given back");
}

#[test]
fn a_donated_argument_cannot_be_used_again_and_a_kept_one_can() {
    let Some(client) = client() else { return };
    let executable = compile(
        &client,
        "func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> { %y = stablehlo.add %x, %x : tensor<4xf32> return %y : tensor<4xf32> }",
    );
    let upload = || client.upload(ElementType::F32, &[4], bytes_of(&[1., 2., 3., 4.])).unwrap();
    let kept = upload();
    let (outputs, _) = executable.execute(&[&kept], &[0]).unwrap();
    assert_eq!(floats(&outputs[0].download().unwrap()), [2., 4., 6., 8.]);
    assert_eq!(floats(&kept.download().unwrap()), [1., 2., 3., 4.]);
    let donated = upload();
    let (outputs, _) = executable.execute(&[&donated], &[]).unwrap();
    assert_eq!(floats(&outputs[0].download().unwrap()), [2., 4., 6., 8.]);
    let error = donated.download().expect_err("it was donated");
    assert!(matches!(error.code, Code::InvalidArgument | Code::FailedPrecondition), "{error}");
}

#[test]
fn a_written_executable_is_read_without_compiling() {
    let Some(client) = client() else { return };
    let written = compile(&client, PRODUCT).serialize().expect("it can be written");
    let read = client.deserialize(&written).expect("it can be read");
    assert_eq!(read.outputs().len(), 2);
    let error = client.deserialize(b"something else").expect_err("it is none");
    assert_eq!(error.function, "PJRT_Executable_DeserializeAndLoad");
}

const MAXIMUM: &str = r"
module @maximum {
  func.func public @main(%a: tensor<4xf32>) -> tensor<f32> {
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%a init: %lowest) applies stablehlo.maximum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %m : tensor<f32>
  }
}";

#[test]
fn a_maximum_with_a_nan_is_nan() {
    let Some(client) = client() else { return };
    let program = Program {
        format: Format::StableHlo,
        code: MAXIMUM.as_bytes().to_vec(),
    };
    let executable = client.compile(&program, &CompileOptions::of_platform("cpu")).expect("it compiles");
    for place in 0..4 {
        let mut values = [1., 2., 3., 4.];
        values[place] = f32::NAN;
        let a = client.upload(ElementType::F32, &[4], bytes_of(&values)).unwrap();
        let (outputs, done) = executable.execute(&[&a], &[]).unwrap();
        done.wait().unwrap();
        assert!(floats(&outputs[0].download().unwrap())[0].is_nan(), "{values:?}");
    }
}

#[test]
fn a_debug_option_that_the_plugin_does_not_have_is_left_out() {
    let Some(client) = client() else { return };
    let program = Program {
        format: Format::StableHlo,
        code: MAXIMUM.as_bytes().to_vec(),
    };
    let options = CompileOptions {
        debug_options: [("xla_cpu_no_such_option".to_owned(), true)].into(),
    };
    client.compile(&program, &options).expect("it compiles without");
}

#[test]
fn an_error_contains_the_plugins_message() {
    let Some(client) = client() else { return };
    let program = |code: &str| Program {
        format: Format::StableHlo,
        code: code.as_bytes().to_vec(),
    };
    let options = CompileOptions::default();
    let error = client.compile(&program("func.func @main(%x: tensor<4xf32>) { nonsense }"), &options);
    let error = error.expect_err("it is nonsense");
    assert_eq!(error.function, "PJRT_Client_Compile");
    assert!(error.message.contains("nonsense"), "{error}");
    let product = compile(&client, PRODUCT);
    let a = client.upload(ElementType::F32, &[2, 3], bytes_of(&[0.; 6])).unwrap();
    let error = product.execute(&[&a], &[]).expect_err("an argument is missing");
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    let error = client.upload(ElementType::F32, &[2, 3], bytes_of(&[0.; 5])).expect_err("too short");
    assert!(error.message.contains("20 bytes are given for f32[2, 3]"), "{error}");
    assert!(client.upload(ElementType::F32, &[-1], Bytes::new()).is_err());
}

#[test]
fn a_plugin_reports_its_version_and_platform() {
    let Some(plugin) = plugin() else { return };
    let client = Client::create(&plugin, &[]).expect("it has a device");
    assert_eq!(client.platform_name().unwrap(), "cpu");
    assert!(!client.platform_version().unwrap().is_empty());
    assert!(!client.device_kind().is_empty());
    let attributes = plugin.attributes().unwrap();
    let stablehlo = attributes.iter().find(|(name, _)| name == "stablehlo_current_version");
    assert!(
        matches!(stablehlo, Some((_, Setting::Integers(version))) if version.len() == 3),
        "{attributes:?}"
    );
}

#[test]
fn events_tell_other_threads() {
    let Some(client) = client() else { return };
    let buffer = Arc::new(client.upload(ElementType::F32, &[2], bytes_of(&[1., 2.])).unwrap());
    let (sender, told) = mpsc::channel();
    buffer
        .ready()
        .unwrap()
        .on_ready(move |outcome| sender.send(outcome).unwrap())
        .unwrap();
    told.recv_timeout(Duration::from_secs(60)).expect("it is told").unwrap();
}

#[test]
fn a_library_that_is_not_a_plugin_is_rejected() {
    let error = Plugin::load("/nowhere/plugin.so").expect_err("it is not there");
    assert!(matches!(&error, LoadError::Library { .. }) && error.to_string().contains("/nowhere/plugin.so"));
    // The C library is a library, but no plugin.
    let error = Plugin::load("libc.so.6").expect_err("it is none");
    assert!(matches!(&error, LoadError::NoPlugin { .. }), "{error}");
}
