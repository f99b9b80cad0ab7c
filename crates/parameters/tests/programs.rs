//! What holds of every program.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sahasra_crds::burst_job::{
    Chunks, ParameterSpec, ScalarType,
    chunks::{Interval, ProductAxis, RandomSpec, RangeSpec},
};
use sahasra_parameters::{CompileError, Program, Scalar};

const TYPES: [ScalarType; 7] = [
    ScalarType::U8,
    ScalarType::S32,
    ScalarType::U32,
    ScalarType::S64,
    ScalarType::U64,
    ScalarType::F32,
    ScalarType::F64,
];

fn chunks(yaml: &str) -> Chunks {
    serde_yaml::from_str(yaml).unwrap()
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
            "its own name",
        ),
        (
            "{product: [{name: a, type: u8, list: [1]}], parameters: {a: {type: u8, list: [1]}}}".to_owned(),
            "spec.chunks.product[0].name",
            "its own name",
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
            "raise max",
        ),
        (
            parameter("{type: f32, random: {uniform: {min: 1, max: 1.00000001}}}"),
            "spec.chunks.parameters.p.random.uniform.min",
            "as f32 has them",
        ),
        (
            parameter("{type: u8, random: {uniform: {min: 0, max: 257}}}"),
            "spec.chunks.parameters.p.random.uniform.max",
            "0 to 255",
        ),
        (
            parameter("{type: f32, random: {logUniform: {min: 0, max: 1}}}"),
            "spec.chunks.parameters.p.random.logUniform.min",
            "above 0",
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
    // 4096 of 10 million chunks are computed at compilation; index 1 is not among them.
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
    // Computed independently, in Python, from the description in `random.rs`.
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
    // 25,000 expected, standard deviation 137: six of them on either side.
    for count in counts.as_flattened() {
        assert!((24_178..=25_822).contains(count), "{counts:?}");
    }
}

fn type_() -> impl Strategy<Value = ScalarType> {
    prop::sample::select(TYPES.to_vec())
}

fn parameter() -> impl Strategy<Value = ParameterSpec> {
    let number = || prop_oneof![(-300_i32..300).prop_map(f64::from), -1e12..1e12_f64, -1.0..1.0_f64];
    let interval = move || (number(), number()).prop_map(|(min, max)| Interval { min, max });
    let empty = |type_| ParameterSpec {
        type_,
        cel: None,
        list: None,
        range: None,
        random: None,
    };
    let formulas = vec![
        "index",
        "double(index) / double(count)",
        "index * 1000003 % 256",
        "index % 2 == 0 ? 1 : 200",
        "math.pow(10.0, -double(index % 7))",
        "100 / (index % 3)",
    ];
    prop_oneof![
        (type_(), prop::sample::select(formulas)).prop_map(move |(type_, text)| ParameterSpec {
            cel: Some(text.to_owned()),
            ..empty(type_)
        }),
        (type_(), prop::collection::vec(number(), 1..6)).prop_map(move |(type_, list)| ParameterSpec {
            list: Some(list),
            ..empty(type_)
        }),
        (type_(), number(), number(), any::<bool>()).prop_map(move |(type_, start, other, by_step)| ParameterSpec {
            range: Some(RangeSpec {
                start,
                step: by_step.then_some(other),
                stop: (!by_step).then_some(other),
            }),
            ..empty(type_)
        }),
        (type_(), interval(), 0..2).prop_map(move |(type_, interval, kind)| ParameterSpec {
            random: Some(RandomSpec {
                uniform: (kind == 0).then(|| interval.clone()),
                log_uniform: (kind == 1).then_some(interval),
                choice: None,
            }),
            ..empty(type_)
        }),
    ]
}

fn any_chunks() -> impl Strategy<Value = Chunks> {
    let names = prop::collection::btree_map("[a-z]{1,3}", parameter(), 0..5);
    let axes = prop::collection::vec(
        ("[A-Z]{1,2}", type_(), prop::collection::vec(0_u8..200, 1..5)).prop_map(|(name, type_, list)| ProductAxis {
            name,
            type_,
            list: list.into_iter().map(f64::from).collect(),
        }),
        1..4,
    );
    (names, prop_oneof![(1_i64..300).prop_map(Ok), axes.prop_map(Err)], 0..i64::MAX).prop_map(|(parameters, size, seed)| {
        let (count, product) = match size {
            Ok(count) => (Some(count), None),
            Err(axes) => (None, Some(axes)),
        };
        Chunks {
            count,
            product,
            parameters,
            seed,
        }
    })
}

proptest! {
    #[test]
    fn values_are_of_their_type_finite_and_within_their_bounds(chunks in any_chunks()) {
        let Ok(program) = Program::compile(&chunks) else { return Ok(()) };
        for index in 0..program.count() {
            let values = values(&program, index);
            prop_assert_eq!(values.len(), program.parameters().len());
            for (parameter, value) in program.parameters().iter().zip(values) {
                prop_assert_eq!(value.type_(), parameter.type_);
                prop_assert!(value.as_f64().is_finite());
                let mut bytes = Vec::new();
                value.write_le(&mut bytes);
                prop_assert_eq!(bytes.len(), parameter.type_.bytes());
                let random = chunks.parameters.get(&parameter.name).and_then(|spec| spec.random.as_ref());
                if let Some(interval) = random.and_then(|random| random.uniform.as_ref().or(random.log_uniform.as_ref())) {
                    // The bounds as the type has them.
                    let round = |bound: f64| if parameter.type_ == ScalarType::F32 { f64::from(bound as f32) } else { bound };
                    let (min, max) = (round(interval.min), round(interval.max));
                    prop_assert!(value.as_f64() >= min && value.as_f64() < max, "{:?} outside [{}, {})", value, min, max);
                }
            }
        }
    }

    #[test]
    fn values_depend_on_program_and_index_alone(chunks in any_chunks(), order in prop::collection::vec(0_u64..300, 1..40)) {
        let Ok(program) = Program::compile(&chunks) else { return Ok(()) };
        let again = Program::compile(&chunks).unwrap();
        let in_order: Vec<_> = (0..program.count()).map(|index| values(&program, index)).collect();
        let mut reused = Vec::new();
        for index in order.into_iter().map(|index| index % program.count()) {
            again.evaluate(index, &mut reused).unwrap();
            prop_assert_eq!(&reused, &in_order[index as usize]);
        }
    }

    #[test]
    fn another_parameter_changes_no_random_value(seed in 0..i64::MAX) {
        let random = "{type: u64, random: {uniform: {min: 0, max: 9007199254740992}}}";
        let alone = program(&format!("{{count: 20, seed: {seed}, parameters: {{m: {random}}}}}"));
        let among = program(&format!("{{count: 20, seed: {seed}, parameters: {{a: {random}, m: {random}, z: {random}}}}}"));
        for index in 0..20 {
            prop_assert_eq!(values(&alone, index)[0], values(&among, index)[1]);
            prop_assert_ne!(values(&among, index)[0], values(&among, index)[1]);
        }
    }

    #[test]
    fn a_product_covers_each_combination_once(lengths in prop::collection::vec(1_usize..6, 1..5)) {
        let axes = lengths.iter().enumerate().map(|(at, length)| ProductAxis {
            name: format!("p{at}"),
            type_: ScalarType::U32,
            list: (0..*length).map(|value| value as f64).collect(),
        });
        let chunks = Chunks { product: Some(axes.collect()), ..Chunks::default() };
        let program = Program::compile(&chunks).unwrap();
        let combinations: usize = lengths.iter().product();
        prop_assert_eq!(program.count(), combinations as u64);
        let seen: BTreeSet<Vec<u64>> = (0..program.count())
            .map(|index| values(&program, index).iter().map(|value| value.as_f64() as u64).collect())
            .collect();
        prop_assert_eq!(seen.len(), combinations);
    }

    #[test]
    fn both_ends_of_a_range_are_reached(type_ in type_(), start in 0_i32..100, steps in 0_i32..20, last in 1_i32..8) {
        let stop = start + steps * last;
        prop_assume!(stop < 256);
        let range = RangeSpec { start: start.into(), step: None, stop: Some(stop.into()) };
        let spec = ParameterSpec { type_, cel: None, list: None, range: Some(range), random: None };
        let chunks = Chunks {
            count: Some(i64::from(last) + 1),
            parameters: BTreeMap::from([("p".to_owned(), spec)]),
            ..Chunks::default()
        };
        let program = Program::compile(&chunks).unwrap();
        let all: Vec<f64> = (0..program.count()).map(|index| values(&program, index)[0].as_f64()).collect();
        prop_assert_eq!(all[0], f64::from(start));
        prop_assert_eq!(all[last as usize], f64::from(stop));
        prop_assert!(all.is_sorted());
    }
}
