use sahasra_crds::burst_job::BurstJobSpec;
use serde_json::{Value, json};

use super::*;

const PTX: &str = ".version 8.8\n.target sm_80\n.address_size 64\n\
    .visible .entry k(.param .u64 out, .param .f32 rate, .param .u32 index) { ret; }";

fn manifest() -> Value {
    json!({
        "kernel": {
            "ptx": {"inline": PTX}, "entry": "k", "block": [32],
            "args": [{"output": {"type": "f32"}}, {"parameter": "rate"}, {"chunkIndex": {"type": "u32"}}],
        },
        "chunks": {"count": 10, "parameters": {"rate": {"type": "f32", "cel": "double(index)"}}},
        "slice": {"vram": "1Mi"},
        "aggregate": {"argmin": {"output": 0}},
    })
}

fn check(manifest: &Value) -> Result<ValidBurst, Invalid> {
    let spec: BurstJobSpec = serde_json::from_value(manifest.clone()).unwrap();
    let observed = Observed {
        ptx: Bytes::copy_from_slice(spec.kernel.ptx.inline.clone().unwrap_or_default().as_bytes()),
        inputs: vec![Bytes::new(); spec.kernel.args.len()],
        store_options: BTreeMap::new(),
    };
    validate(&spec, &observed)
}

fn refused(pointer: &str, value: Value) -> Invalid {
    let mut manifest = manifest();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Object(object) => drop(object.insert(key.to_owned(), value)),
        Value::Array(array) => array[key.parse::<usize>().unwrap()] = value,
        other => panic!("{other} has no fields"),
    }
    check(&manifest).unwrap_err()
}

#[test]
fn a_right_spec_becomes_a_program() {
    let burst = check(&manifest()).unwrap();
    assert_eq!((burst.total, burst.slice_bytes, burst.result_bytes), (10, 1 << 20, 40));
    let program = burst.program(None);
    assert_eq!((program.grid, program.block), (vec![1; 3], vec![32, 1, 1]));
    assert_eq!(program.arguments.len(), 3);
    assert_eq!(
        burst.parameters(3),
        BTreeMap::from([("rate".to_owned(), sahasra_parameters::Scalar::F32(3.0))])
    );
    assert!(burst.digest().starts_with("sha256:") && burst.digest().len() == 71);
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    let cases = [
        (
            "/chunks/parameters/rate",
            json!({"type": "f32", "cel": "index +"}),
            "spec.chunks.parameters.rate.cel",
        ),
        ("/kernel/entry", json!("other"), "spec.kernel.entry"),
        ("/kernel/args/2", json!({"parameter": "unknown"}), "spec.kernel.args[2].parameter"),
        ("/kernel/args/2", json!({"chunkIndex": {"type": "u64"}}), "spec.kernel.args[2]"),
        ("/kernel/args", json!([{"output": {"type": "f32"}}]), "spec.kernel.args"),
        ("/kernel/block", json!([1024, 2]), "spec.kernel.block"),
        ("/kernel/block", json!([1, 1, 65]), "spec.kernel.block[2]"),
        ("/kernel/ptx", json!({"inline": "int main() {}"}), "spec.kernel.ptx"),
        (
            "/kernel/args/0",
            json!({"output": {"type": "f32", "count": 300_000}}),
            "spec.slice.vram",
        ),
        ("/kernel/args/0", json!({"output": {"type": "f32", "count": 20_000}}), "spec.output"),
        (
            "/kernel/args/2",
            json!({"scalar": {"type": "u32", "value": -1.0}}),
            "spec.kernel.args[2].scalar.value",
        ),
        ("/aggregate", json!({"argmin": {"output": 1}}), "spec.aggregate.argmin.output"),
        ("/aggregate", json!({"sum": {}, "mean": {}}), "spec.aggregate"),
        ("/aggregate", json!({}), "spec.aggregate"),
        ("/kernel/args/2", json!({}), "spec.kernel.args[2]"),
        ("/slices", json!({"min": 3, "max": 2}), "spec.slices.min"),
    ];
    for (pointer, value, path) in cases {
        let mut invalid = refused(pointer, value.clone());
        if pointer == "/kernel/args/0" && path == "spec.output" {
            // The aggregate is checked first: an array has no argmin.
            assert_eq!(invalid.path, "spec.aggregate.argmin.output");
            let mut manifest = manifest();
            manifest["kernel"]["args"][0] = value.clone();
            manifest["aggregate"] = json!({"none": {}});
            invalid = check(&manifest).unwrap_err();
        }
        assert_eq!(invalid.path, path, "{pointer} = {value}: {invalid}");
        assert!(!invalid.message.is_empty());
    }
}

#[test]
fn a_kernel_with_more_bytes_of_arguments_than_ptx_allows_is_refused() {
    let with = |bytes: usize| {
        let mut manifest = manifest();
        manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace(".param .f32 rate", &format!(".param .b8 rate[{bytes}]")));
        check(&manifest).unwrap_err()
    };
    // The entry also has a pointer and an index. All parameters together are within the limit, and no argument of a burst has so many
    // bytes.
    let most = with(32_764 - 12);
    assert_eq!(
        (most.path.as_str(), most.reason),
        ("spec.kernel.args[1]", "ArgumentSizeMismatch"),
        "{most}"
    );
    let more = with(32_764 - 11);
    assert_eq!((more.path.as_str(), more.reason), ("spec.kernel.ptx", "InvalidPtx"), "{more}");
    assert!(more.message.contains("takes 32765 bytes of parameters"), "{more}");
}

/// The bits of an integer would be read as another number.
#[test]
fn a_number_of_the_other_kind_is_refused() {
    let with = |declared: &str, argument: Value| {
        let mut manifest = manifest();
        manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace(".param .u32 index", &format!(".param {declared} index")));
        manifest["kernel"]["args"][2] = argument;
        check(&manifest)
    };
    let index = json!({"chunkIndex": {"type": "u32"}});
    let refused = with(".f32", index.clone()).unwrap_err();
    assert_eq!(
        (refused.path.as_str(), refused.reason),
        ("spec.kernel.args[2]", "ArgumentTypeMismatch"),
        "{refused}"
    );
    assert!(refused.message.contains(".b32"), "{refused}");
    assert_eq!(
        with(".u32", json!({"parameter": "rate"})).unwrap_err().reason,
        "ArgumentTypeMismatch"
    );
    assert_eq!(
        with(".f64", json!({"output": {"type": "f32"}})).unwrap_err().reason,
        "ArgumentTypeMismatch",
        "an address is no number"
    );
    for declared in [".b32", ".s32"] {
        with(declared, index.clone()).unwrap();
    }
    with(".b32", json!({"parameter": "rate"})).unwrap();
}

#[test]
fn outputs_that_no_frame_carries_are_refused_together() {
    let mut manifest = manifest();
    manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace("u64 out,", "u64 out, .param .u64 more,"));
    let half = json!({"output": {"type": "u8", "count": (16 << 20) + 1}});
    manifest["kernel"]["args"] = json!([half, half, {"parameter": "rate"}, {"chunkIndex": {"type": "u32"}}]);
    manifest["aggregate"] = json!({"none": {}});
    manifest["slice"]["vram"] = json!("1Gi");
    manifest["output"] = json!({"store": {"url": "file:///tmp/results"}});
    let invalid = check(&manifest).unwrap_err();
    assert_eq!((invalid.path.as_str(), invalid.reason), ("spec.kernel.args", "OutputTooLarge"));
    manifest["kernel"]["args"][1]["output"]["count"] = json!((16 << 20) - 1);
    assert!(check(&manifest).is_ok());
}

#[test]
fn with_a_store_only_the_aggregated_output_comes_back() {
    let mut manifest = manifest();
    manifest["kernel"]["args"] = json!([{"output": {"type": "u8", "count": 1024}}, {"parameter": "rate"}, {"chunkIndex": {"type": "u32"}}]);
    manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace("u64 out,", "u64 out, .param .u64 score,"));
    manifest["kernel"]["args"]
        .as_array_mut()
        .unwrap()
        .insert(1, json!({"output": {"type": "f64"}}));
    manifest["aggregate"] = json!({"argmax": {"output": 1}});
    manifest["output"] = json!({"store": {"url": "file:///tmp/results"}});
    let burst = check(&manifest).unwrap();
    assert_eq!(burst.program(None).aggregated_output, Some(1));
    assert_eq!((burst.layout.outputs().len(), burst.layout.record_bytes()), (1, 8));
    assert_eq!(burst.aggregator.output(), Some(0));
    assert_eq!(burst.result_bytes, 10 * 1032);
}

#[test]
fn results_that_are_not_kept_have_no_limit_of_size() {
    let mut manifest = manifest();
    manifest["chunks"]["count"] = json!(10_000_000);
    manifest["aggregate"] = json!({"sum": {"output": 0}});
    assert_eq!(check(&manifest).unwrap_err().path, "spec.output");
    for (results, max_failed, fits) in [
        ("None", 0, true),
        ("None", 10_000_000, true),
        ("Failed", 9_000, true),
        ("Failed", 9_001, false),
    ] {
        manifest["results"] = json!(results);
        manifest["maxFailedChunks"] = json!(max_failed);
        match check(&manifest) {
            Ok(burst) => {
                assert!(fits);
                assert_eq!((burst.result_bytes, burst.layout.record_bytes()), (0, 4));
                let program = burst.program(None);
                assert!(program.aggregate_only && program.aggregated_output == Some(0));
            }
            Err(invalid) => assert!(
                !fits && invalid.path == "spec.output" && invalid.message.contains("maxFailedChunks"),
                "{invalid}"
            ),
        }
    }
}

#[test]
fn ptx_that_is_wrong_is_refused_and_ptx_for_a_gpu_is_its_drivers_affair() {
    let with = |class: Option<&str>, instruction: &str| {
        let mut manifest = manifest();
        manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace("ret;", &format!("{instruction}; ret;")));
        if let Some(class) = class {
            manifest["slice"]["class"] = json!(class);
        }
        check(&manifest).map(drop)
    };
    let wrong = with(None, "add.u32 %r1 %r2").unwrap_err();
    assert_eq!((wrong.path.as_str(), wrong.reason), ("spec.kernel.ptx", "InvalidPtx"));
    assert!(wrong.message.contains("line 4"), "{wrong}");
    assert!(with(Some("h100"), "add.u32 %r1 %r2").is_ok());
    assert!(with(Some("cpu"), "add.u32 %r1, %r2").is_ok(), "compiling finds this, not parsing");
    let lacking = "tcgen05.fence::before_thread_sync";
    assert!(with(Some("cpu"), lacking).is_err());
    assert!(with(Some("h100"), lacking).is_ok());
}

#[test]
fn a_blocks_shape_must_suit_the_entry() {
    let mut manifest = manifest();
    manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace("{ ret; }", ".maxntid 16, 1, 1 { ret; }"));
    let invalid = check(&manifest).unwrap_err();
    assert_eq!((invalid.path.as_str(), invalid.reason), ("spec.kernel.block", "InvalidBlockSize"));
}

#[test]
fn only_entries_with_a_body_count_and_comments_do_not() {
    let mut manifest = manifest();
    let declared = ".visible .entry k(.param .u64 out);\n// .entry k()\n/* .entry k() */ .visible .entry k(";
    manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace(".visible .entry k(", declared));
    check(&manifest).unwrap();
    manifest["kernel"]["ptx"]["inline"] = json!(PTX.replace(".param .u32 index", "nonsense"));
    let invalid = check(&manifest).unwrap_err();
    assert_eq!((invalid.path.as_str(), invalid.reason), ("spec.kernel.ptx", "InvalidPtx"));
}
