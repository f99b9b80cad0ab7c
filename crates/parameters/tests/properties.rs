//! Property tests that hold for every program.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sahasra_crds::burst_job::{
    Chunks, ParameterSpec, ScalarType,
    chunks::{Interval, ProductAxis, RandomSpec, RangeSpec},
};
use sahasra_parameters::{Program, Scalar};

const TYPES: [ScalarType; 7] = [
    ScalarType::U8,
    ScalarType::S32,
    ScalarType::U32,
    ScalarType::S64,
    ScalarType::U64,
    ScalarType::F32,
    ScalarType::F64,
];

fn program(yaml: &str) -> Program {
    Program::compile(&sahasra_crds::yaml::parse(yaml).unwrap()).unwrap()
}

fn values(program: &Program, index: u64) -> Vec<Scalar> {
    let mut values = Vec::new();
    program.evaluate(index, &mut values).unwrap();
    values
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
                    // The bounds, rounded to the type.
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
        let random = "{type: u64, random: {uniform: {min: 0, max: 9007199254740991}}}";
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
