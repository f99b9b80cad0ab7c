//! Type checking of a parsed expression, and its compilation to closures. Their semantics are CEL's: int arithmetic is checked, doubles are
//! IEEE binary64, and `&&` and `||` have a value if either side determines it.

use std::{
    cmp::Ordering,
    ops::{Add, Div, Mul, Sub},
};

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{Fault, Formula};

/// The available functions, for error messages.
const FUNCTIONS: &str = "double, int, math.least, math.greatest, math.abs, math.sign, math.floor, math.ceil, math.round, math.trunc, math.sqrt, \
                         math.exp, math.log, math.log2, math.log10, math.pow, math.sin, math.cos";

/// A checked expression: returns its value at an index.
pub(super) type Compiled<T> = Box<dyn Fn(i64) -> Result<T, Fault> + Send + Sync>;

/// A checked expression of any type.
enum Typed {
    Integer(Compiled<i64>),
    Double(Compiled<f64>),
    Boolean(Compiled<bool>),
}

impl Typed {
    fn name(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an int",
            Self::Double(_) => "a double",
            Self::Boolean(_) => "a bool",
        }
    }
}

/// Elements of a list, all of the same type.
enum List {
    Integers(Box<[Compiled<i64>]>),
    Doubles(Box<[Compiled<f64>]>),
}

/// Checks an expression for `count` chunks. An error describes the problem and the remedy.
pub(crate) fn formula(expression: &IdedExpr, count: i64) -> Result<Formula, String> {
    match (Checker { count }).expression(expression)? {
        Typed::Integer(compiled) => Ok(Formula::Integer(compiled)),
        Typed::Double(compiled) => Ok(Formula::Double(compiled)),
        Typed::Boolean(_) => Err("the formula gives a bool, not a number: write `condition ? 1 : 0`".to_owned()),
    }
}

struct Checker {
    count: i64,
}

impl Checker {
    fn expression(&self, expression: &IdedExpr) -> Result<Typed, String> {
        match &expression.expr {
            Expr::Literal(literal) => self.literal(literal),
            Expr::Ident(name) => match name.as_str() {
                "index" => Ok(Typed::Integer(Box::new(Ok))),
                "count" => Ok(Typed::Integer(constant(self.count))),
                name => Err(format!("unknown variable `{name}`: a formula sees index and count")),
            },
            Expr::Call(call) => self.call(call),
            Expr::List(_) => Err("a list is not a number: take an element, such as `[0.1, 0.2][index % 2]`".to_owned()),
            Expr::Select(select) => Err(format!(
                "`.{}` selects a field, but there are only numbers: a formula sees index and count",
                select.field
            )),
            Expr::Comprehension(_) => {
                Err("macros over lists (map, filter, all, exists) are not available: use arithmetic on index".to_owned())
            }
            Expr::Map(_) | Expr::Struct(_) => Err("maps and messages are not available: a formula computes with numbers".to_owned()),
            Expr::Unspecified => Err("not a CEL expression".to_owned()),
        }
    }

    fn literal(&self, literal: &LiteralValue) -> Result<Typed, String> {
        Ok(match literal {
            LiteralValue::Int(value) => Typed::Integer(constant(*value.inner())),
            LiteralValue::Double(value) => Typed::Double(constant(*value.inner())),
            LiteralValue::Boolean(value) => Typed::Boolean(constant(*value.inner())),
            LiteralValue::UInt(value) => {
                return Err(format!(
                    "`{0}u` is a uint: write {0}, an int becomes the declared type",
                    value.inner()
                ));
            }
            LiteralValue::String(_) | LiteralValue::Bytes(_) | LiteralValue::Null => {
                return Err("text, bytes and null are not available: a formula computes with numbers".to_owned());
            }
        })
    }

    fn call(&self, call: &CallExpr) -> Result<Typed, String> {
        let name = call.func_name.as_str();
        if let Some(target) = &call.target {
            return match &target.expr {
                Expr::Ident(library) if library == "math" => self.mathematics(name, &call.args),
                _ => Err(format!("unknown method `{name}`: available are {FUNCTIONS}")),
            };
        }
        match (name, call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => self.conditional(condition, yes, no),
            (operators::LOGICAL_AND, [left, right]) => self.logical("&&", false, left, right),
            (operators::LOGICAL_OR, [left, right]) => self.logical("||", true, left, right),
            (operators::LOGICAL_NOT, [operand]) => Ok(Typed::Boolean(map(self.boolean("!", operand)?, |operand| Ok(!operand)))),
            (operators::NEGATE, [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(map(operand, |value| {
                    value.checked_neg().ok_or(Fault::Overflow("-"))
                }))),
                Typed::Double(operand) => Ok(Typed::Double(map(operand, |value| Ok(-value)))),
                Typed::Boolean(_) => Err("`-` needs a number: use `!` on a bool".to_owned()),
            },
            (operators::ADD, [left, right]) => self.arithmetic("+", i64::checked_add, Some(f64::add), left, right),
            (operators::SUBSTRACT, [left, right]) => self.arithmetic("-", i64::checked_sub, Some(f64::sub), left, right),
            (operators::MULTIPLY, [left, right]) => self.arithmetic("*", i64::checked_mul, Some(f64::mul), left, right),
            (operators::DIVIDE, [left, right]) => self.arithmetic("/", i64::checked_div, Some(f64::div), left, right),
            (operators::MODULO, [left, right]) => self.arithmetic("%", i64::checked_rem, None, left, right),
            (operators::EQUALS, [left, right]) => self.comparison("==", |order| order == Some(Ordering::Equal), left, right),
            (operators::NOT_EQUALS, [left, right]) => self.comparison("!=", |order| order != Some(Ordering::Equal), left, right),
            (operators::LESS, [left, right]) => self.comparison("<", |order| order.is_some_and(Ordering::is_lt), left, right),
            (operators::LESS_EQUALS, [left, right]) => self.comparison("<=", |order| order.is_some_and(Ordering::is_le), left, right),
            (operators::GREATER, [left, right]) => self.comparison(">", |order| order.is_some_and(Ordering::is_gt), left, right),
            (operators::GREATER_EQUALS, [left, right]) => self.comparison(">=", |order| order.is_some_and(Ordering::is_ge), left, right),
            (operators::IN, [value, list]) => self.membership(value, list),
            (operators::INDEX, [list, at]) => self.element(list, at),
            ("double", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Double(map(operand, |value| Ok(value as f64)))),
                Typed::Double(operand) => Ok(Typed::Double(operand)),
                Typed::Boolean(_) => Err("`double` needs a number: write `condition ? 1.0 : 0.0`".to_owned()),
            },
            ("int", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(operand)),
                Typed::Double(operand) => Ok(Typed::Integer(map(operand, truncate))),
                Typed::Boolean(_) => Err("`int` needs a number: write `condition ? 1 : 0`".to_owned()),
            },
            ("double" | "int", arguments) => Err(format!("`{name}` takes 1 argument, {} were passed", arguments.len())),
            ("uint", _) => Err("uint is not available: an int becomes the declared type".to_owned()),
            ("min", _) => Err("unknown function `min`: CEL's is math.least".to_owned()),
            ("max", _) => Err("unknown function `max`: CEL's is math.greatest".to_owned()),
            (name, _) if name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                Err(format!("unknown function `{name}`: available are {FUNCTIONS}"))
            }
            _ => Err("optional values are not available: a formula computes with numbers".to_owned()),
        }
    }

    fn mathematics(&self, name: &str, arguments: &[IdedExpr]) -> Result<Typed, String> {
        match (name, arguments) {
            // `f64::min` and `f64::max` do not specify which of 0.0 and -0.0 they return.
            ("least", [first, rest @ ..]) if !rest.is_empty() => {
                let double = |left, right| if right < left { right } else { left };
                self.fold("math.least", |left, right| Some(left.min(right)), double, first, rest)
            }
            ("greatest", [first, rest @ ..]) if !rest.is_empty() => {
                let double = |left, right| if right > left { right } else { left };
                self.fold("math.greatest", |left, right| Some(left.max(right)), double, first, rest)
            }
            ("least" | "greatest", _) => Err(format!("`math.{name}` takes 2 or more arguments")),
            ("abs", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(map(operand, |value| {
                    value.checked_abs().ok_or(Fault::Overflow("math.abs"))
                }))),
                Typed::Double(operand) => Ok(Typed::Double(map(operand, |value| Ok(value.abs())))),
                Typed::Boolean(_) => Err("`math.abs` needs a number".to_owned()),
            },
            ("pow", [base, exponent]) => {
                let (base, exponent) = (self.double("math.pow", base)?, self.double("math.pow", exponent)?);
                Ok(Typed::Double(both(base, exponent, |base, exponent| Ok(libm::pow(base, exponent)))))
            }
            ("pow", arguments) => Err(format!("`math.pow` takes 2 arguments, {} were passed", arguments.len())),
            (name, arguments) => {
                let function: fn(f64) -> f64 = match name {
                    "sign" => sign,
                    "floor" => libm::floor,
                    "ceil" => libm::ceil,
                    "round" => libm::round,
                    "trunc" => libm::trunc,
                    "sqrt" => libm::sqrt,
                    "exp" => libm::exp,
                    "log" => libm::log,
                    "log2" => libm::log2,
                    "log10" => libm::log10,
                    "sin" => libm::sin,
                    "cos" => libm::cos,
                    _ => return Err(format!("unknown function `math.{name}`: available are {FUNCTIONS}")),
                };
                match arguments {
                    [operand] => {
                        let operand = self.double(&format!("math.{name}"), operand)?;
                        Ok(Typed::Double(map(operand, move |value| Ok(function(value)))))
                    }
                    _ => Err(format!("`math.{name}` takes 1 argument, {} were passed", arguments.len())),
                }
            }
        }
    }

    fn fold(&self, name: &'static str, integer: Integers, double: Doubles, first: &IdedExpr, rest: &[IdedExpr]) -> Result<Typed, String> {
        let mut all = self.expression(first)?;
        for operand in rest {
            all = pair(name, integer, Some(double), all, self.expression(operand)?)?;
        }
        Ok(all)
    }

    fn arithmetic(
        &self,
        symbol: &'static str,
        integer: Integers,
        double: Option<Doubles>,
        left: &IdedExpr,
        right: &IdedExpr,
    ) -> Result<Typed, String> {
        pair(symbol, integer, double, self.expression(left)?, self.expression(right)?)
    }

    /// `&&` (`decisive` is false) or `||` (`decisive` is true). An operand with the decisive value hides an error of the other operand.
    fn logical(&self, symbol: &str, decisive: bool, left: &IdedExpr, right: &IdedExpr) -> Result<Typed, String> {
        let (left, right) = (self.boolean(symbol, left)?, self.boolean(symbol, right)?);
        Ok(Typed::Boolean(Box::new(move |index| match left(index) {
            Ok(left) if left == decisive => Ok(decisive),
            Ok(_) => right(index),
            Err(fault) => match right(index) {
                Ok(right) if right == decisive => Ok(decisive),
                _ => Err(fault),
            },
        })))
    }

    /// A comparison, which `holds` for the order of its operands: `None` if one is NaN.
    fn comparison(&self, symbol: &str, holds: fn(Option<Ordering>) -> bool, left: &IdedExpr, right: &IdedExpr) -> Result<Typed, String> {
        Ok(Typed::Boolean(match (self.expression(left)?, self.expression(right)?) {
            (Typed::Integer(left), Typed::Integer(right)) => compare(left, right, holds),
            (Typed::Double(left), Typed::Double(right)) => compare(left, right, holds),
            (Typed::Boolean(left), Typed::Boolean(right)) if matches!(symbol, "==" | "!=") => compare(left, right, holds),
            (Typed::Boolean(_), Typed::Boolean(_)) => return Err(format!("`{symbol}` needs numbers: compare bools with == or !=")),
            (left, right) => return Err(mixed(symbol, &left, &right)),
        }))
    }

    fn conditional(&self, condition: &IdedExpr, yes: &IdedExpr, no: &IdedExpr) -> Result<Typed, String> {
        let condition = self.boolean("? :", condition)?;
        Ok(match (self.expression(yes)?, self.expression(no)?) {
            (Typed::Integer(yes), Typed::Integer(no)) => Typed::Integer(select(condition, yes, no)),
            (Typed::Double(yes), Typed::Double(no)) => Typed::Double(select(condition, yes, no)),
            (Typed::Boolean(yes), Typed::Boolean(no)) => Typed::Boolean(select(condition, yes, no)),
            (yes, no) => {
                return Err(format!(
                    "the branches of `? :` are {} and {}: make them one type with double(...) or int(...)",
                    yes.name(),
                    no.name()
                ));
            }
        })
    }

    fn membership(&self, value: &IdedExpr, list: &IdedExpr) -> Result<Typed, String> {
        Ok(Typed::Boolean(match (self.expression(value)?, self.list("in", list)?) {
            (Typed::Integer(value), List::Integers(list)) => contained(value, list),
            (Typed::Double(value), List::Doubles(list)) => contained(value, list),
            (value, List::Integers(_)) => return Err(format!("`in` looks for {} in a list of ints: make them one type", value.name())),
            (value, List::Doubles(_)) => return Err(format!("`in` looks for {} in a list of doubles: make them one type", value.name())),
        }))
    }

    fn element(&self, list: &IdedExpr, at: &IdedExpr) -> Result<Typed, String> {
        let list = self.list("[ ]", list)?;
        let at = match self.expression(at)? {
            Typed::Integer(at) => at,
            other => return Err(format!("a list's element is chosen by an int, not {}: use int(...)", other.name())),
        };
        Ok(match list {
            List::Integers(list) => Typed::Integer(element(list, at)),
            List::Doubles(list) => Typed::Double(element(list, at)),
        })
    }

    fn list(&self, symbol: &str, list: &IdedExpr) -> Result<List, String> {
        let Expr::List(list) = &list.expr else {
            return Err(format!("`{symbol}` needs a list written out, such as `[0.1, 0.2]`"));
        };
        if !list.optional_indices.is_empty() {
            return Err("optional values are not available: a formula computes with numbers".to_owned());
        }
        let mut integers = Vec::new();
        let mut doubles = Vec::new();
        for element in &list.elements {
            match self.expression(element)? {
                Typed::Integer(element) => integers.push(element),
                Typed::Double(element) => doubles.push(element),
                Typed::Boolean(_) => return Err("a list holds numbers, not bools".to_owned()),
            }
        }
        match (integers.is_empty(), doubles.is_empty()) {
            (false, true) => Ok(List::Integers(integers.into())),
            (true, false) => Ok(List::Doubles(doubles.into())),
            (true, true) => Err("the list is empty: expected numbers".to_owned()),
            (false, false) => Err("the list mixes ints and doubles: write every element with a decimal point, or none".to_owned()),
        }
    }

    fn boolean(&self, symbol: &str, expression: &IdedExpr) -> Result<Compiled<bool>, String> {
        match self.expression(expression)? {
            Typed::Boolean(compiled) => Ok(compiled),
            other => Err(format!(
                "`{symbol}` needs a bool, not {}: compare first, such as `index < 10`",
                other.name()
            )),
        }
    }

    fn double(&self, function: &str, expression: &IdedExpr) -> Result<Compiled<f64>, String> {
        match self.expression(expression)? {
            Typed::Double(compiled) => Ok(compiled),
            other => Err(match self.constant(expression) {
                Some(value) => format!("`{function}` needs a double, not an int: write {value}.0"),
                None => format!("`{function}` needs a double, not {}: convert with double(...)", other.name()),
            }),
        }
    }

    /// The value of an int that does not depend on the index, and is not computed.
    fn constant(&self, expression: &IdedExpr) -> Option<i64> {
        match &expression.expr {
            Expr::Literal(LiteralValue::Int(value)) => Some(*value.inner()),
            Expr::Ident(name) if name == "count" => Some(self.count),
            Expr::Call(call) if call.func_name == "int" && call.target.is_none() => self.constant(call.args.first()?),
            _ => None,
        }
    }
}

/// An operator of ints; `None` if the result leaves the range, or for a division by zero.
type Integers = fn(i64, i64) -> Option<i64>;
type Doubles = fn(f64, f64) -> f64;

fn pair(symbol: &'static str, integer: Integers, double: Option<Doubles>, left: Typed, right: Typed) -> Result<Typed, String> {
    match (left, right, double) {
        (Typed::Integer(left), Typed::Integer(right), _) => Ok(Typed::Integer(both(left, right, move |left, right| {
            integer(left, right).ok_or(match symbol {
                "/" if right == 0 => Fault::DivisionByZero,
                "%" if right == 0 => Fault::RemainderByZero,
                _ => Fault::Overflow(symbol),
            })
        }))),
        (Typed::Double(left), Typed::Double(right), Some(double)) => {
            Ok(Typed::Double(both(left, right, move |left, right| Ok(double(left, right)))))
        }
        (Typed::Double(_), Typed::Double(_), None) => Err(format!("`{symbol}` needs ints: convert with int(...)")),
        (left, right, _) => Err(mixed(symbol, &left, &right)),
    }
}

fn constant<T: Copy + Send + Sync + 'static>(value: T) -> Compiled<T> {
    Box::new(move |_| Ok(value))
}

fn map<A: 'static, T>(operand: Compiled<A>, apply: impl Fn(A) -> Result<T, Fault> + Send + Sync + 'static) -> Compiled<T> {
    Box::new(move |index| apply(operand(index)?))
}

fn both<A: 'static, T>(
    left: Compiled<A>,
    right: Compiled<A>,
    apply: impl Fn(A, A) -> Result<T, Fault> + Send + Sync + 'static,
) -> Compiled<T> {
    Box::new(move |index| apply(left(index)?, right(index)?))
}

fn compare<T: PartialOrd + 'static>(left: Compiled<T>, right: Compiled<T>, holds: fn(Option<Ordering>) -> bool) -> Compiled<bool> {
    both(left, right, move |left, right| Ok(holds(left.partial_cmp(&right))))
}

fn select<T: 'static>(condition: Compiled<bool>, yes: Compiled<T>, no: Compiled<T>) -> Compiled<T> {
    Box::new(move |index| if condition(index)? { yes(index) } else { no(index) })
}

fn contained<T: PartialEq + 'static>(value: Compiled<T>, list: Box<[Compiled<T>]>) -> Compiled<bool> {
    Box::new(move |index| {
        let value = value(index)?;
        list.iter().try_fold(false, |found, element| Ok(found | (element(index)? == value)))
    })
}

/// Element `at` of a list. CEL evaluates the whole list first, so an error in any element is an error of the list.
fn element<T: 'static>(list: Box<[Compiled<T>]>, at: Compiled<i64>) -> Compiled<T> {
    Box::new(move |index| {
        let at = at(index)?;
        let mut chosen = None;
        for (place, element) in (0..).zip(&list) {
            let value = element(index)?;
            if place == at {
                chosen = Some(value);
            }
        }
        chosen.ok_or(Fault::OutsideList {
            index: at,
            length: list.len(),
        })
    })
}

fn truncate(value: f64) -> Result<i64, Fault> {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    // CEL excludes both bounds: https://github.com/google/cel-spec/blob/master/doc/langdef.md, "int".
    if value > -TWO_TO_63 && value < TWO_TO_63 {
        Ok(value as i64)
    } else {
        Err(Fault::NoInteger(value))
    }
}

fn mixed(symbol: &str, left: &Typed, right: &Typed) -> String {
    format!(
        "`{symbol}` has {} on the left and {} on the right: make them one type with double(...) or int(...)",
        left.name(),
        right.name()
    )
}

/// Returns -1, 0 or 1, or NaN for NaN, like `math.sign` in cel-go's library.
fn sign(value: f64) -> f64 {
    if value > 0.0 {
        1.0
    } else if value < 0.0 {
        -1.0
    } else {
        value
    }
}
