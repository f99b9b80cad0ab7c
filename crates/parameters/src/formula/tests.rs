use std::thread;

use proptest::prelude::*;

use super::{Fault, Formula};

/// Result of a formula.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Integer(i64),
    Double(f64),
}

fn evaluate(formula: &Formula, index: i64) -> Result<Number, Fault> {
    match formula {
        Formula::Integer(compiled) => compiled(index).map(Number::Integer),
        Formula::Double(compiled) => compiled(index).map(Number::Double),
    }
}

fn value(text: &str, index: i64) -> Result<Number, Fault> {
    let formula = Formula::compile(text, 1000).unwrap_or_else(|message| panic!("{text}: {message}"));
    evaluate(&formula, index)
}

fn refusal(text: &str) -> String {
    match Formula::compile(text, 1000) {
        Ok(_) => panic!("{text} was accepted"),
        Err(message) => message,
    }
}

#[test]
fn formulas_compute_as_cel_says() {
    for (text, index, expected) in [
        ("32 * (1 + index / 100)", 250, Number::Integer(96)),
        ("0.1 + double(index % 10) * 0.05", 13, Number::Double(0.1 + 3.0 * 0.05)),
        ("index < count / 2 ? 1 : -1", 500, Number::Integer(-1)),
        ("[0.1, 0.2, 0.4][index % 3]", 5, Number::Double(0.4)),
        ("index in [1, 2, 3] ? 1.0 : 0.0", 2, Number::Double(1.0)),
        ("-7 / 2", 0, Number::Integer(-3)),
        ("-7 % 2", 0, Number::Integer(-1)),
        ("int(-2.9)", 0, Number::Integer(-2)),
        ("math.greatest(index, 3, 5)", 4, Number::Integer(5)),
        ("math.least(1.5, double(index))", 4, Number::Double(1.5)),
        ("math.pow(2.0, -3.0)", 0, Number::Double(0.125)),
        ("math.round(2.5) + math.floor(-0.5)", 0, Number::Double(2.0)),
        ("math.abs(index - 10)", 3, Number::Integer(7)),
        ("math.sign(-0.25)", 3, Number::Double(-1.0)),
        ("9223372036854775807", 0, Number::Integer(i64::MAX)),
        ("1 / index > 0 || true ? 1 : 0", 0, Number::Integer(1)),
    ] {
        assert_eq!(value(text, index), Ok(expected), "{text}");
    }
}

#[test]
fn an_even_number_of_signs_cancels() {
    for (text, expected) in [
        ("--index", 7),
        ("---index", -7),
        ("- -index", 7),
        ("-\n-\n- index", -7),
        ("--1", 1),
        ("2*--index", 14),
        ("1-index", -6),
        ("1--index", 8),
        ("1---index", -6),
        ("1----index", 8),
        ("(2)--index", 9),
        ("--(index+1)", 8),
        ("-(-index)", 7),
        ("!!(index>1) ? 1 : 0", 1),
        ("!!!(index>1) ? 1 : 0", 0),
        ("! !true ? 1 : --2", 1),
        ("index != 7 ? 1 : --2", 2),
    ] {
        assert_eq!(value(text, 7), Ok(Number::Integer(expected)), "{text}");
    }
}

#[test]
fn a_formula_without_a_value_says_why() {
    assert_eq!(value("1 / index", 0), Err(Fault::DivisionByZero));
    assert_eq!(value("index > 0 || 1 / index > 0 ? 1 : 0", 0), Err(Fault::DivisionByZero));
    assert_eq!(value("1 % index", 0), Err(Fault::RemainderByZero));
    assert_eq!(value("9223372036854775807 + index", 1), Err(Fault::Overflow("+")));
    assert_eq!(value("-(-9223372036854775807 - index)", 1), Err(Fault::Overflow("-")));
    assert_eq!(value("[1, 2][index]", 2), Err(Fault::OutsideList { index: 2, length: 2 }));
    assert_eq!(value("[7, 1 / index][0]", 0), Err(Fault::DivisionByZero));
    assert_eq!(value("int(1e300)", 0), Err(Fault::NoInteger(1e300)));
}

#[test]
fn wrong_formulas_are_refused_with_the_cause_and_a_remedy() {
    for (text, expected) in [
        ("", "empty"),
        ("index +", "line 1"),
        ("idx * 2", "unknown variable `idx`"),
        ("sqrt(2.0)", "unknown function `sqrt`"),
        ("math.cbrt(2.0)", "unknown function `math.cbrt`"),
        ("max(1, 2)", "math.greatest"),
        ("0.1 * index", "`*` has a double on the left and an int on the right"),
        ("index < 0.5 ? 1 : 2", "`<` has an int on the left"),
        ("index < 5 ? 1 : 2.0", "branches"),
        ("index == 3", "gives a bool"),
        ("'text'", "text"),
        ("{1: 2}[1]", "list written out"),
        ("[1, 2]", "take an element"),
        ("[1, 2.0][index]", "mixes"),
        ("[][index]", "empty"),
        ("[1, 2].map(x, x * 2)[0]", "list written out"),
        ("index.foo", "field"),
        ("5.5 % 2.0", "needs ints"),
        ("10u", "write 10"),
        ("index && true ? 1 : 0", "needs a bool"),
        ("math.sqrt(2)", "write 2.0"),
        ("math.pow(2.0)", "takes 2 arguments"),
        ("Type{a: 1}", "not available"),
        ("[1, 2][?0]", ""),
    ] {
        let message = refusal(text);
        assert!(message.contains(expected), "{text}: {message}");
        assert!(!message.contains('\n'), "{text}: {message}");
    }
    assert!(refusal(&"1+".repeat(600)).contains("1024"));
}

#[test]
fn hostile_texts_are_refused_or_computed_without_harm() {
    let deep = [
        format!("{}1{}", "(".repeat(500), ")".repeat(500)),
        format!("{}1", "-".repeat(1000)),
        format!("{}1", "-(".repeat(300)),
        format!("{}true ? 1 : 0", "!".repeat(1000)),
        format!("1{}", "+1".repeat(511)),
        format!("{}1{}", "(".repeat(48), ")".repeat(48)),
        format!("1{}", "?1:1".repeat(48)),
        format!("{}1{}", "[".repeat(47), "][0]".repeat(47)),
        format!("{}1{}", "math.abs(".repeat(48), ")".repeat(48)),
        format!("1{}", "?1:1".repeat(250)),
        "[".repeat(1000),
        format!("{}1", "index<1?".repeat(120)),
        format!("1{}", "[1]".repeat(300)),
        "\u{1F600}\0\"".to_owned(),
    ];
    for text in deep {
        if let Ok(formula) = Formula::compile(&text, 10) {
            let _ = evaluate(&formula, 3);
        }
    }
}

/// Generates expressions of type int; the other functions generate the other types. They avoid cases in which the crate's interpreter
/// differs from CEL: comparisons of NaN (an error in the interpreter) and negation of the smallest int (a panic in the interpreter).
fn integer() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("index".to_owned()),
        Just("count".to_owned()),
        (-20_i64..20).prop_map(|value| if value < 0 { format!("({value})") } else { value.to_string() }),
        Just("9223372036854775807".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            4 => (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/", "%"]), inner.clone())
                .prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            1 => (boolean(inner.clone()), inner.clone(), inner.clone()).prop_map(|(c, yes, no)| format!("({c} ? {yes} : {no})")),
            1 => (prop::collection::vec(inner.clone(), 1..4), inner.clone())
                .prop_map(|(list, at)| format!("[{}][{at}]", list.join(", "))),
            1 => inner.clone().prop_map(|value| format!("int({value})")),
            1 => inner.prop_map(|value| format!("int(double({value}) / 3.0)")),
        ]
    })
}

fn boolean(integer: impl Strategy<Value = String> + Clone + 'static) -> impl Strategy<Value = String> {
    let comparison = prop::sample::select(vec!["<", "<=", ">", ">=", "==", "!="]);
    let leaf = prop_oneof![
        Just("true".to_owned()),
        (integer.clone(), comparison.clone(), integer.clone()).prop_map(|(l, o, r)| format!("({l} {o} {r})")),
        (integer.clone(), comparison, integer.clone()).prop_map(|(l, o, r)| format!("(double({l}) {o} double({r}))")),
        (integer.clone(), prop::collection::vec(integer, 1..4)).prop_map(|(v, list)| format!("({v} in [{}])", list.join(", "))),
    ];
    leaf.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l} && {r})")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l} || {r})")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l} == {r})")),
            inner.prop_map(|b| format!("!{b}")),
        ]
    })
}

fn double() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        integer().prop_map(|value| format!("double({value})")),
        (-4.0_f64..4.0).prop_map(|value| format!("({value:?})")),
    ];
    leaf.prop_recursive(4, 20, 3, |inner| {
        prop_oneof![
            4 => (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/"]), inner.clone())
                .prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            1 => inner.clone().prop_map(|value| format!("(-{value})")),
            1 => (boolean(integer().boxed()), inner.clone(), inner).prop_map(|(c, yes, no)| format!("({c} ? {yes} : {no})")),
        ]
    })
}

/// Returns the interpreter's result, computed on a thread whose stack is large enough for the parser.
fn interpreted(text: &str, index: i64, count: i64) -> Option<Number> {
    let interpret = || {
        let mut context = cel::Context::default();
        context.add_variable_from_value("index", index);
        context.add_variable_from_value("count", count);
        match cel::Program::compile(text).unwrap().execute(&context) {
            Ok(cel::Value::Int(value)) => Some(Number::Integer(value)),
            Ok(cel::Value::Float(value)) => Some(Number::Double(value)),
            Ok(other) => panic!("{text} gives {other:?}"),
            Err(_) => None,
        }
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(super::PARSER_STACK_BYTES);
        thread.spawn_scoped(scope, interpret).unwrap().join().unwrap()
    })
}

fn same(left: Option<Number>, right: Option<Number>) -> bool {
    match (left, right) {
        (Some(Number::Double(left)), Some(Number::Double(right))) => left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan(),
        (left, right) => left == right,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn results_agree_with_the_interpreter(text in prop_oneof![integer(), double()], index in 0_i64..50, count in 1_i64..50) {
        prop_assume!(text.len() <= super::MAX_FORMULA_LENGTH && super::nesting(&text) <= super::DEEPEST);
        if let Ok(formula) = Formula::compile(&text, count) {
            let ours = evaluate(&formula, index).ok();
            let theirs = interpreted(&text, index, count);
            prop_assert!(same(ours, theirs), "{text} at {index} of {count}: {ours:?}, the interpreter says {theirs:?}");
        } else {
            // For generated texts, only the parser's depth limit is a valid reason for an error.
            let message = Formula::compile(&text, count).err().unwrap_or_default();
            prop_assert!(message.contains("not a CEL expression"), "{text}: {message}");
        }
    }

    #[test]
    fn any_text_is_compiled_or_refused_in_one_line(text in "[a-z0-9().+*/%<>=!&|?:,\\[\\] {}'\"-]{0,60}") {
        if let Err(message) = Formula::compile(&text, 7) {
            prop_assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
    }
}
