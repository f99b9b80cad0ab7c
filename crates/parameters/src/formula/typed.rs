//! Typed expression trees and their evaluation. The semantics are CEL's: int arithmetic is checked, doubles are IEEE binary64, and `&&` and
//! `||` have a value if either side determines it.

use super::Fault;

/// Expression of type int.
#[derive(Debug)]
pub(crate) enum Integer {
    Constant(i64),
    Index,
    Negate(Box<Integer>),
    Absolute(Box<Integer>),
    Binary(IntegerOperator, Box<(Integer, Integer)>),
    /// A double, truncated towards zero.
    Truncate(Box<Double>),
    Select(Box<(Boolean, Integer, Integer)>),
    Element(Box<[Integer]>, Box<Integer>),
}

/// Expression of type double.
#[derive(Debug)]
pub(crate) enum Double {
    Constant(f64),
    Convert(Box<Integer>),
    Negate(Box<Double>),
    Unary(fn(f64) -> f64, Box<Double>),
    Binary(DoubleOperator, Box<(Double, Double)>),
    Select(Box<(Boolean, Double, Double)>),
    Element(Box<[Double]>, Box<Integer>),
}

/// Expression of type bool.
#[derive(Debug)]
pub(crate) enum Boolean {
    Constant(bool),
    Not(Box<Boolean>),
    And(Box<(Boolean, Boolean)>),
    Or(Box<(Boolean, Boolean)>),
    Equal(Box<(Boolean, Boolean)>),
    CompareIntegers(Comparison, Box<(Integer, Integer)>),
    CompareDoubles(Comparison, Box<(Double, Double)>),
    IntegerIn(Box<Integer>, Box<[Integer]>),
    DoubleIn(Box<Double>, Box<[Double]>),
    Select(Box<(Boolean, Boolean, Boolean)>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum IntegerOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Least,
    Greatest,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum DoubleOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Least,
    Greatest,
    Power,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds<T: PartialOrd>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }
}

impl Integer {
    pub(crate) fn evaluate(&self, index: i64) -> Result<i64, Fault> {
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Index => index,
            Self::Negate(operand) => operand.evaluate(index)?.checked_neg().ok_or(Fault::Overflow("-"))?,
            Self::Absolute(operand) => operand.evaluate(index)?.checked_abs().ok_or(Fault::Overflow("math.abs"))?,
            Self::Binary(operator, operands) => operator.apply(operands.0.evaluate(index)?, operands.1.evaluate(index)?)?,
            Self::Truncate(operand) => truncate(operand.evaluate(index)?)?,
            Self::Select(parts) => match parts.0.evaluate(index)? {
                true => parts.1.evaluate(index)?,
                false => parts.2.evaluate(index)?,
            },
            Self::Element(list, at) => element(list, at.evaluate(index)?, |element| element.evaluate(index))?,
        })
    }
}

impl IntegerOperator {
    fn apply(self, left: i64, right: i64) -> Result<i64, Fault> {
        match self {
            Self::Add => left.checked_add(right).ok_or(Fault::Overflow("+")),
            Self::Subtract => left.checked_sub(right).ok_or(Fault::Overflow("-")),
            Self::Multiply => left.checked_mul(right).ok_or(Fault::Overflow("*")),
            Self::Divide if right == 0 => Err(Fault::DivisionByZero),
            Self::Divide => left.checked_div(right).ok_or(Fault::Overflow("/")),
            Self::Remainder if right == 0 => Err(Fault::RemainderByZero),
            Self::Remainder => left.checked_rem(right).ok_or(Fault::Overflow("%")),
            Self::Least => Ok(left.min(right)),
            Self::Greatest => Ok(left.max(right)),
        }
    }
}

impl Double {
    pub(crate) fn evaluate(&self, index: i64) -> Result<f64, Fault> {
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Convert(operand) => operand.evaluate(index)? as f64,
            Self::Negate(operand) => -operand.evaluate(index)?,
            Self::Unary(function, operand) => function(operand.evaluate(index)?),
            Self::Binary(operator, operands) => operator.apply(operands.0.evaluate(index)?, operands.1.evaluate(index)?),
            Self::Select(parts) => match parts.0.evaluate(index)? {
                true => parts.1.evaluate(index)?,
                false => parts.2.evaluate(index)?,
            },
            Self::Element(list, at) => element(list, at.evaluate(index)?, |element| element.evaluate(index))?,
        })
    }
}

impl DoubleOperator {
    fn apply(self, left: f64, right: f64) -> f64 {
        match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            // `f64::min` and `f64::max` do not specify which of 0.0 and -0.0 they return.
            Self::Least if right < left => right,
            Self::Greatest if right > left => right,
            Self::Least | Self::Greatest => left,
            Self::Power => libm::pow(left, right),
        }
    }
}

impl Boolean {
    pub(crate) fn evaluate(&self, index: i64) -> Result<bool, Fault> {
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Not(operand) => !operand.evaluate(index)?,
            Self::And(operands) => decide(operands, false, index)?,
            Self::Or(operands) => decide(operands, true, index)?,
            Self::Equal(operands) => operands.0.evaluate(index)? == operands.1.evaluate(index)?,
            Self::CompareIntegers(comparison, operands) => comparison.holds(&operands.0.evaluate(index)?, &operands.1.evaluate(index)?),
            Self::CompareDoubles(comparison, operands) => comparison.holds(&operands.0.evaluate(index)?, &operands.1.evaluate(index)?),
            Self::IntegerIn(value, list) => {
                let value = value.evaluate(index)?;
                let mut found = false;
                for element in list {
                    found |= element.evaluate(index)? == value;
                }
                found
            }
            Self::DoubleIn(value, list) => {
                let value = value.evaluate(index)?;
                let mut found = false;
                for element in list {
                    found |= element.evaluate(index)? == value;
                }
                found
            }
            Self::Select(parts) => match parts.0.evaluate(index)? {
                true => parts.1.evaluate(index)?,
                false => parts.2.evaluate(index)?,
            },
        })
    }
}

/// Evaluates `&&` (`decisive` is false) or `||` (`decisive` is true). An operand with the decisive value hides an error of the other
/// operand.
fn decide(operands: &(Boolean, Boolean), decisive: bool, index: i64) -> Result<bool, Fault> {
    match operands.0.evaluate(index) {
        Ok(left) if left == decisive => Ok(decisive),
        Ok(_) => operands.1.evaluate(index),
        Err(fault) => match operands.1.evaluate(index) {
            Ok(right) if right == decisive => Ok(decisive),
            _ => Err(fault),
        },
    }
}

/// Returns element `at` of a list. CEL evaluates the whole list first, so an error in any element is an error of the list.
fn element<E, V>(list: &[E], at: i64, evaluate: impl Fn(&E) -> Result<V, Fault>) -> Result<V, Fault> {
    let mut chosen = None;
    for (place, element) in list.iter().enumerate() {
        let value = evaluate(element)?;
        if i64::try_from(place) == Ok(at) {
            chosen = Some(value);
        }
    }
    chosen.ok_or(Fault::OutsideList {
        index: at,
        length: list.len(),
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
