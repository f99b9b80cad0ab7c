//! Type checking of a parsed expression.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{
    Formula,
    typed::{Boolean, Comparison, Double, DoubleOperator, Integer, IntegerOperator},
};

/// The available functions, for error messages.
const FUNCTIONS: &str = "double, int, math.least, math.greatest, math.abs, math.sign, math.floor, math.ceil, math.round, math.trunc, math.sqrt, \
                         math.exp, math.log, math.log2, math.log10, math.pow, math.sin, math.cos";

/// A checked expression of any type.
enum Typed {
    Integer(Integer),
    Double(Double),
    Boolean(Boolean),
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
    Integers(Box<[Integer]>),
    Doubles(Box<[Double]>),
}

/// Checks an expression for `count` chunks. An error describes the problem and the remedy.
pub(crate) fn formula(expression: &IdedExpr, count: i64) -> Result<Formula, String> {
    match (Checker { count }).expression(expression)? {
        Typed::Integer(tree) => Ok(Formula::Integer(tree)),
        Typed::Double(tree) => Ok(Formula::Double(tree)),
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
                "index" => Ok(Typed::Integer(Integer::Index)),
                "count" => Ok(Typed::Integer(Integer::Constant(self.count))),
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
            LiteralValue::Int(value) => Typed::Integer(Integer::Constant(*value.inner())),
            LiteralValue::Double(value) => Typed::Double(Double::Constant(*value.inner())),
            LiteralValue::Boolean(value) => Typed::Boolean(Boolean::Constant(*value.inner())),
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
            (operators::LOGICAL_AND, [left, right]) => Ok(Typed::Boolean(Boolean::And(Box::new((
                self.boolean("&&", left)?,
                self.boolean("&&", right)?,
            ))))),
            (operators::LOGICAL_OR, [left, right]) => Ok(Typed::Boolean(Boolean::Or(Box::new((
                self.boolean("||", left)?,
                self.boolean("||", right)?,
            ))))),
            (operators::LOGICAL_NOT, [operand]) => Ok(Typed::Boolean(Boolean::Not(Box::new(self.boolean("!", operand)?)))),
            (operators::NEGATE, [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(Integer::Negate(Box::new(operand)))),
                Typed::Double(operand) => Ok(Typed::Double(Double::Negate(Box::new(operand)))),
                Typed::Boolean(_) => Err("`-` needs a number: use `!` on a bool".to_owned()),
            },
            (operators::ADD, [left, right]) => self.arithmetic("+", IntegerOperator::Add, Some(DoubleOperator::Add), left, right),
            (operators::SUBSTRACT, [left, right]) => {
                self.arithmetic("-", IntegerOperator::Subtract, Some(DoubleOperator::Subtract), left, right)
            }
            (operators::MULTIPLY, [left, right]) => {
                self.arithmetic("*", IntegerOperator::Multiply, Some(DoubleOperator::Multiply), left, right)
            }
            (operators::DIVIDE, [left, right]) => self.arithmetic("/", IntegerOperator::Divide, Some(DoubleOperator::Divide), left, right),
            (operators::MODULO, [left, right]) => self.arithmetic("%", IntegerOperator::Remainder, None, left, right),
            (operators::EQUALS, [left, right]) => self.comparison("==", Comparison::Equal, left, right),
            (operators::NOT_EQUALS, [left, right]) => self.comparison("!=", Comparison::NotEqual, left, right),
            (operators::LESS, [left, right]) => self.comparison("<", Comparison::Less, left, right),
            (operators::LESS_EQUALS, [left, right]) => self.comparison("<=", Comparison::LessOrEqual, left, right),
            (operators::GREATER, [left, right]) => self.comparison(">", Comparison::Greater, left, right),
            (operators::GREATER_EQUALS, [left, right]) => self.comparison(">=", Comparison::GreaterOrEqual, left, right),
            (operators::IN, [value, list]) => self.membership(value, list),
            (operators::INDEX, [list, at]) => self.element(list, at),
            ("double", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Double(Double::Convert(Box::new(operand)))),
                Typed::Double(operand) => Ok(Typed::Double(operand)),
                Typed::Boolean(_) => Err("`double` needs a number: write `condition ? 1.0 : 0.0`".to_owned()),
            },
            ("int", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(operand)),
                Typed::Double(operand) => Ok(Typed::Integer(Integer::Truncate(Box::new(operand)))),
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
            ("least", [first, rest @ ..]) if !rest.is_empty() => {
                self.fold("math.least", IntegerOperator::Least, DoubleOperator::Least, first, rest)
            }
            ("greatest", [first, rest @ ..]) if !rest.is_empty() => {
                self.fold("math.greatest", IntegerOperator::Greatest, DoubleOperator::Greatest, first, rest)
            }
            ("least" | "greatest", _) => Err(format!("`math.{name}` takes 2 or more arguments")),
            ("abs", [operand]) => match self.expression(operand)? {
                Typed::Integer(operand) => Ok(Typed::Integer(Integer::Absolute(Box::new(operand)))),
                Typed::Double(operand) => Ok(Typed::Double(Double::Unary(f64::abs, Box::new(operand)))),
                Typed::Boolean(_) => Err("`math.abs` needs a number".to_owned()),
            },
            ("pow", [base, exponent]) => Ok(Typed::Double(Double::Binary(
                DoubleOperator::Power,
                Box::new((self.double("math.pow", base)?, self.double("math.pow", exponent)?)),
            ))),
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
                    [operand] => Ok(Typed::Double(Double::Unary(
                        function,
                        Box::new(self.double(&format!("math.{name}"), operand)?),
                    ))),
                    _ => Err(format!("`math.{name}` takes 1 argument, {} were passed", arguments.len())),
                }
            }
        }
    }

    fn fold(
        &self,
        name: &str,
        integer: IntegerOperator,
        double: DoubleOperator,
        first: &IdedExpr,
        rest: &[IdedExpr],
    ) -> Result<Typed, String> {
        let mut all = self.expression(first)?;
        for operand in rest {
            all = pair(name, integer, Some(double), all, self.expression(operand)?)?;
        }
        Ok(all)
    }

    fn arithmetic(
        &self,
        symbol: &str,
        integer: IntegerOperator,
        double: Option<DoubleOperator>,
        left: &IdedExpr,
        right: &IdedExpr,
    ) -> Result<Typed, String> {
        pair(symbol, integer, double, self.expression(left)?, self.expression(right)?)
    }

    fn comparison(&self, symbol: &str, comparison: Comparison, left: &IdedExpr, right: &IdedExpr) -> Result<Typed, String> {
        Ok(Typed::Boolean(match (self.expression(left)?, self.expression(right)?) {
            (Typed::Integer(left), Typed::Integer(right)) => Boolean::CompareIntegers(comparison, Box::new((left, right))),
            (Typed::Double(left), Typed::Double(right)) => Boolean::CompareDoubles(comparison, Box::new((left, right))),
            (Typed::Boolean(left), Typed::Boolean(right)) => match comparison {
                Comparison::Equal => Boolean::Equal(Box::new((left, right))),
                Comparison::NotEqual => Boolean::Not(Box::new(Boolean::Equal(Box::new((left, right))))),
                _ => return Err(format!("`{symbol}` needs numbers: compare bools with == or !=")),
            },
            (left, right) => return Err(mixed(symbol, &left, &right)),
        }))
    }

    fn conditional(&self, condition: &IdedExpr, yes: &IdedExpr, no: &IdedExpr) -> Result<Typed, String> {
        let condition = self.boolean("? :", condition)?;
        Ok(match (self.expression(yes)?, self.expression(no)?) {
            (Typed::Integer(yes), Typed::Integer(no)) => Typed::Integer(Integer::Select(Box::new((condition, yes, no)))),
            (Typed::Double(yes), Typed::Double(no)) => Typed::Double(Double::Select(Box::new((condition, yes, no)))),
            (Typed::Boolean(yes), Typed::Boolean(no)) => Typed::Boolean(Boolean::Select(Box::new((condition, yes, no)))),
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
            (Typed::Integer(value), List::Integers(list)) => Boolean::IntegerIn(Box::new(value), list),
            (Typed::Double(value), List::Doubles(list)) => Boolean::DoubleIn(Box::new(value), list),
            (value, List::Integers(_)) => return Err(format!("`in` looks for {} in a list of ints: make them one type", value.name())),
            (value, List::Doubles(_)) => return Err(format!("`in` looks for {} in a list of doubles: make them one type", value.name())),
        }))
    }

    fn element(&self, list: &IdedExpr, at: &IdedExpr) -> Result<Typed, String> {
        let list = self.list("[ ]", list)?;
        let at = match self.expression(at)? {
            Typed::Integer(at) => Box::new(at),
            other => return Err(format!("a list's element is chosen by an int, not {}: use int(...)", other.name())),
        };
        Ok(match list {
            List::Integers(list) => Typed::Integer(Integer::Element(list, at)),
            List::Doubles(list) => Typed::Double(Double::Element(list, at)),
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

    fn boolean(&self, symbol: &str, expression: &IdedExpr) -> Result<Boolean, String> {
        match self.expression(expression)? {
            Typed::Boolean(tree) => Ok(tree),
            other => Err(format!(
                "`{symbol}` needs a bool, not {}: compare first, such as `index < 10`",
                other.name()
            )),
        }
    }

    fn double(&self, function: &str, expression: &IdedExpr) -> Result<Double, String> {
        match self.expression(expression)? {
            Typed::Double(tree) => Ok(tree),
            Typed::Integer(Integer::Constant(value)) => Err(format!("`{function}` needs a double, not an int: write {value}.0")),
            other => Err(format!(
                "`{function}` needs a double, not {}: convert with double(...)",
                other.name()
            )),
        }
    }
}

fn pair(symbol: &str, integer: IntegerOperator, double: Option<DoubleOperator>, left: Typed, right: Typed) -> Result<Typed, String> {
    match (left, right, double) {
        (Typed::Integer(left), Typed::Integer(right), _) => Ok(Typed::Integer(Integer::Binary(integer, Box::new((left, right))))),
        (Typed::Double(left), Typed::Double(right), Some(double)) => Ok(Typed::Double(Double::Binary(double, Box::new((left, right))))),
        (Typed::Double(_), Typed::Double(_), None) => Err(format!("`{symbol}` needs ints: convert with int(...)")),
        (left, right, _) => Err(mixed(symbol, &left, &right)),
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
