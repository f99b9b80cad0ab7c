//! Tests of programs by example: values, invalid fields, evaluation errors.

#![allow(clippy::unwrap_used)]

use sahasra_crds::burst_job::{Chunks, ScalarType, chunks::ProductAxis};
use sahasra_parameters::{CompileError, Program, Scalar};

fn chunks(yaml: &str) -> Chunks {
    sahasra_crds::yaml::parse(yaml).unwrap()
}

fn program(yaml: &str) -> Program {
    Program::compile(&chunks(yaml)).unwrap()
}

fn refusal(yaml: &str) -> CompileError {
    match Program::compile(&chunks(yaml)) {
        Ok(_) => panic!("accepted: {yaml}"),
        Err(error) => error,
    }
}

fn values(program: &Program, index: u64) -> Vec<Scalar> {
    let mut values = Vec::new();
    program.evaluate(index, &mut values).unwrap();
    values
}

#[test]
fn the_hyperparameter_search_of_the_documentation_compiles() {
    let program = program(
        r#"
        count: 1000
        parameters:
          learningRate: {type: f32, cel: "0.0001 * (1.0 + double(index % 100) * 0.01)"}
          batchSize: {type: u32, cel: "32 * (1 + index / 100)"}
          dropout: {type: f32, cel: "0.1 + double(index % 10) * 0.05"}
        "#,
    );
    let names: Vec<_> = program.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["batchSize", "dropout", "learningRate"]);
    assert_eq!(
        values(&program, 250),
        [
            Scalar::U32(96),
            Scalar::F32(0.1),
            Scalar::F32((0.0001_f64 * (1.0 + 50.0 * 0.01)) as f32)
        ]
    );
    assert_eq!(program.position("learningRate"), Some(2));
    assert_eq!(program.position("momentum"), None);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_refusal_names_the_field_and_the_remedy() {
    let parameter = |spec: &str| format!("{{count: 10, parameters: {{p: {spec}}}}}");
    for (yaml, path, remedy) in [
        ("{}".to_owned(), "spec.chunks", "exactly one"),
        (
            "{count: 1, product: [{name: a, type: u8, list: [1]}]}".to_owned(),
            "spec.chunks",
            "exactly one",
        ),
        ("{count: 0}".to_owned(), "spec.chunks.count", "from 1 to"),
        ("{count: 10000001}".to_owned(), "spec.chunks.count", "from 1 to 10000000"),
        ("{count: 1, seed: -1}".to_owned(), "spec.chunks.seed", "from 0"),
        ("{product: []}".to_owned(), "spec.chunks.product", "from 1 to 16"),
        (
            "{product: [{name: a, type: u8, list: []}]}".to_owned(),
            "spec.chunks.product[0].list",
            "at least one",
        ),
        (
            "{product: [{name: a, type: u8, list: [1, 256]}]}".to_owned(),
            "spec.chunks.product[0].list[1]",
            "0 to 255",
        ),
        (
            "{product: [{name: 9a, type: u8, list: [1]}]}".to_owned(),
            "spec.chunks.product[0].name",
            "letters",
        ),
        (
            "{product: [{name: a, type: u8, list: [1]}, {name: a, type: u8, list: [1]}]}".to_owned(),
            "spec.chunks.product[1].name",
            "a unique name",
        ),
        (
            "{product: [{name: a, type: u8, list: [1]}], parameters: {a: {type: u8, list: [1]}}}".to_owned(),
            "spec.chunks.product[0].name",
            "a unique name",
        ),
        (
            "{count: 1, parameters: {a-b: {type: u8, list: [1]}}}".to_owned(),
            "spec.chunks.parameters.a-b",
            "letters",
        ),
        (parameter("{type: u8}"), "spec.chunks.parameters.p", "exactly one of cel"),
        (
            parameter("{type: u8, cel: '1', list: [1]}"),
            "spec.chunks.parameters.p",
            "exactly one of cel",
        ),
        (
            parameter("{type: u8, cel: '1 +'}"),
            "spec.chunks.parameters.p.cel",
            "not a CEL expression",
        ),
        (
            parameter("{type: u8, cel: 'idx'}"),
            "spec.chunks.parameters.p.cel",
            "index and count",
        ),
        (
            parameter("{type: u32, cel: 'double(index) * 1.5'}"),
            "spec.chunks.parameters.p.cel",
            "at index 1: 1.5 cannot",
        ),
        (
            parameter("{type: u32, cel: 'index - 1'}"),
            "spec.chunks.parameters.p.cel",
            "at index 0: -1 is out of range",
        ),
        (
            parameter("{type: s32, cel: '1 / (index - 9)'}"),
            "spec.chunks.parameters.p.cel",
            "at index 9: division by zero",
        ),
        (parameter("{type: f32, cel: '0.0 / 0.0'}"), "spec.chunks.parameters.p.cel", "NaN"),
        (parameter("{type: f32, cel: '1e39'}"), "spec.chunks.parameters.p.cel", "finite"),
        (
            parameter("{type: f64, cel: '1.0 / 0.0'}"),
            "spec.chunks.parameters.p.cel",
            "infinite",
        ),
        (
            parameter("{type: u32, list: [1, 1.5]}"),
            "spec.chunks.parameters.p.list[1]",
            "whole",
        ),
        (parameter("{type: u32, list: []}"), "spec.chunks.parameters.p.list", "at least one"),
        (
            parameter("{type: u64, list: [9007199254740994]}"),
            "spec.chunks.parameters.p.list[0]",
            "cel",
        ),
        (
            parameter("{type: u8, range: {start: 0}}"),
            "spec.chunks.parameters.p.range",
            "exactly one of",
        ),
        (
            parameter("{type: u8, range: {start: 0, step: 1, stop: 9}}"),
            "spec.chunks.parameters.p.range",
            "exactly one of",
        ),
        (
            parameter("{type: u8, range: {start: 0.5, step: 1}}"),
            "spec.chunks.parameters.p.range.start",
            "whole",
        ),
        (
            parameter("{type: u8, range: {start: 0, step: 0.5}}"),
            "spec.chunks.parameters.p.range.step",
            "whole",
        ),
        (
            parameter("{type: u8, range: {start: 0, step: 50}}"),
            "spec.chunks.parameters.p.range.step",
            "at index 9",
        ),
        (
            parameter("{type: u8, range: {start: 0, stop: 10}}"),
            "spec.chunks.parameters.p.range.stop",
            "another stop",
        ),
        (
            parameter("{type: f64, range: {start: -1.7e308, stop: 1.7e308}}"),
            "spec.chunks.parameters.p.range.stop",
            "closer",
        ),
        (
            parameter("{type: f32, random: {}}"),
            "spec.chunks.parameters.p.random",
            "exactly one of",
        ),
        (
            parameter("{type: f32, random: {uniform: {min: 1, max: 1}}}"),
            "spec.chunks.parameters.p.random.uniform.min",
            "min must be smaller than max",
        ),
        (
            parameter("{type: f32, random: {uniform: {min: 1, max: 1.00000001}}}"),
            "spec.chunks.parameters.p.random.uniform.min",
            "min must be smaller than max: as f32, they are 1 and 1",
        ),
        (
            parameter("{type: u8, random: {uniform: {min: 0, max: 257}}}"),
            "spec.chunks.parameters.p.random.uniform.max",
            "0 to 255",
        ),
        (
            parameter("{type: f32, random: {logUniform: {min: 0, max: 1}}}"),
            "spec.chunks.parameters.p.random.logUniform.min",
            "min must be greater than 0",
        ),
        // As a number in a manifest, 2^53 + 1 is read as 2^53.
        (
            parameter("{type: u64, list: [9007199254740993]}"),
            "spec.chunks.parameters.p.list[0]",
            "cel",
        ),
        (
            parameter("{type: s64, range: {start: -9007199254740993, step: 1}}"),
            "spec.chunks.parameters.p.range.start",
            "cel",
        ),
        (
            parameter("{type: u8, random: {choice: [1, 2.5]}}"),
            "spec.chunks.parameters.p.random.choice[1]",
            "whole",
        ),
    ] {
        let error = refusal(&yaml);
        assert_eq!(error.path, path, "{yaml}: {error}");
        assert!(error.message.contains(remedy), "{yaml}: {error}");
    }
}

#[test]
fn too_many_combinations_are_refused_with_their_lengths() {
    let axis = |name: &str| ProductAxis {
        name: name.to_owned(),
        type_: ScalarType::U32,
        list: (0..300).map(f64::from).collect(),
    };
    let chunks = Chunks {
        product: Some(vec![axis("a"), axis("b"), axis("c")]),
        ..Chunks::default()
    };
    let error = Program::compile(&chunks).unwrap_err();
    assert_eq!(error.path, "spec.chunks.product");
    assert!(error.message.contains("300 × 300 × 300"), "{error}");
}

#[test]
fn a_formula_that_fails_late_fails_its_chunk_with_name_and_index() {
    // At compilation, 4096 of the 10 million chunks are evaluated. Index 1 is not among them.
    let program = program("{count: 10000000, parameters: {p: {type: u8, cel: 'index == 1 ? 300 : 0'}}}");
    let error = program.evaluate(1, &mut Vec::new()).unwrap_err();
    assert_eq!((error.parameter.as_str(), error.index), ("p", 1));
    assert!(error.message.contains("300 is out of range"), "{error}");
    assert_eq!(values(&program, 2), [Scalar::U8(0)]);
}

#[test]
fn an_index_beyond_the_last_is_an_error() {
    let program = program("{count: 3, parameters: {p: {type: u8, list: [1]}}}");
    assert!(program.evaluate(3, &mut Vec::new()).is_err());
    assert!(program.evaluate(u64::MAX, &mut Vec::new()).is_err());
}

#[test]
fn the_last_list_of_a_product_varies_fastest() {
    let program = program("{product: [{name: z, type: u8, list: [1, 2]}, {name: a, type: u8, list: [7, 8, 9]}]}");
    let all: Vec<_> = (0..program.count()).map(|index| values(&program, index)).collect();
    let expected: Vec<_> = [(7, 1), (8, 1), (9, 1), (7, 2), (8, 2), (9, 2)]
        .map(|(a, z)| vec![Scalar::U8(a), Scalar::U8(z)])
        .into();
    assert_eq!(all, expected);
}

#[test]
fn random_values_are_those_of_the_documented_algorithm() {
    // Computed independently in Python from the description in `random.rs`.
    let program = program(
        "{count: 5, seed: 42, parameters: {
            u: {type: f64, random: {uniform: {min: -1, max: 3}}},
            k: {type: u32, random: {uniform: {min: 10, max: 1000}}},
            c: {type: s32, random: {choice: [-5, 0, 5]}}}}",
    );
    let all: Vec<_> = (0..5).map(|index| values(&program, index)).collect();
    assert_eq!(all, expected_random_values());
}

fn expected_random_values() -> Vec<Vec<Scalar>> {
    vec![
        vec![Scalar::S32(0), Scalar::U32(562), Scalar::F64(2.857033505508497)],
        vec![Scalar::S32(-5), Scalar::U32(971), Scalar::F64(0.15971986723775666)],
        vec![Scalar::S32(-5), Scalar::U32(154), Scalar::F64(2.1907938703843386)],
        vec![Scalar::S32(0), Scalar::U32(849), Scalar::F64(1.7701338956988804)],
        vec![Scalar::S32(-5), Scalar::U32(369), Scalar::F64(-0.0011073961923209197)],
    ]
}

#[test]
fn random_values_fill_their_interval_evenly() {
    let program = program(
        "{count: 100000, seed: 7, parameters: {
            log: {type: f64, random: {logUniform: {min: 0.0001, max: 1}}},
            pick: {type: u8, random: {choice: [0, 1, 2, 3]}},
            uniform: {type: f32, random: {uniform: {min: 0, max: 1}}},
            whole: {type: u8, random: {uniform: {min: 0, max: 256}}}}}",
    );
    let mut counts = [[0_u32; 4]; 4];
    for index in 0..program.count() {
        let values = values(&program, index);
        let quarters = [
            (values[0].as_f64().log10() + 4.0).floor(),
            values[1].as_f64(),
            (values[2].as_f64() * 4.0).floor(),
            (values[3].as_f64() / 64.0).floor(),
        ];
        for (count, quarter) in counts.iter_mut().zip(quarters) {
            count[quarter as usize] += 1;
        }
    }
    // Expected are 25,000 with a standard deviation of 137; the limits are six standard deviations away.
    for count in counts.as_flattened() {
        assert!((24_178..=25_822).contains(count), "{counts:?}");
    }
}

#[test]
fn a_number_that_the_manifest_cannot_hold_is_told_with_the_range() {
    for written in ["18446744073709551615", "9007199254740993000"] {
        let told = refusal(&format!("{{count: 1, parameters: {{seed: {{type: u64, list: [{written}]}}}}}}")).to_string();
        assert!(
            told.contains("seed.list[0]: a number in a manifest is exact below 2^53") && told.contains("it was read as"),
            "{told}"
        );
    }
}
