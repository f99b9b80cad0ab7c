//! Constant expressions (PTX ISA §4.5.5 and 4.5.6), which are evaluated in 64 bits, with or without a sign.

use std::cmp::Ordering;

use super::Parser;
use crate::error::LoadError;
use crate::lexer::Token;
use crate::syntax::Constant;

/// Value of an integer expression and its type, which is `.u64` or `.s64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Integer {
    pub(super) bits: u64,
    is_unsigned: bool,
}

impl Integer {
    fn signed(value: i64) -> Self {
        Self {
            bits: value as u64,
            is_unsigned: false,
        }
    }

    fn unsigned(bits: u64) -> Self {
        Self { bits, is_unsigned: true }
    }

    fn truth(value: bool) -> Self {
        Self::signed(i64::from(value))
    }

    /// Returns whether the value is not zero.
    fn holds(self) -> bool {
        self.bits != 0
    }

    /// Returns bits computed from both operands, with their common type: `.u64` if either has it.
    fn with(self, other: Self, bits: u64) -> Self {
        Self {
            bits,
            is_unsigned: self.is_unsigned || other.is_unsigned,
        }
    }

    /// Returns the value shifted by a number of bits that is unsigned. The type decides what a shift to the right inserts.
    fn shift(self, left: bool, by: Self) -> Self {
        let by = by.bits.min(64) as u32;
        let bits = match (left, self.is_unsigned) {
            (true, _) => self.bits.checked_shl(by).unwrap_or(0),
            (false, true) => self.bits.checked_shr(by).unwrap_or(0),
            (false, false) => (self.bits as i64 >> by.min(63)) as u64,
        };
        Self { bits, ..self }
    }

    /// Returns the quotient, or 0 if the divisor is 0.
    fn divide(self, by: Self) -> Self {
        let bits = match self.with(by, by.bits) {
            Self { bits: 0, .. } => 0,
            Self { is_unsigned: true, .. } => self.bits / by.bits,
            _ => (self.bits as i64).wrapping_div(by.bits as i64) as u64,
        };
        self.with(by, bits)
    }

    fn compare(self, other: Self) -> Ordering {
        if self.is_unsigned || other.is_unsigned {
            self.bits.cmp(&other.bits)
        } else {
            (self.bits as i64).cmp(&(other.bits as i64))
        }
    }
}

/// Binary operators with their characters and precedence; longer ones first.
const OPERATORS: [(&[u8], u8, Operator); 18] = [
    (b"||", 2, |a, b| Integer::truth(a.holds() || b.holds())),
    (b"&&", 3, |a, b| Integer::truth(a.holds() && b.holds())),
    (b"==", 7, |a, b| Integer::truth(a.bits == b.bits)),
    (b"!=", 7, |a, b| Integer::truth(a.bits != b.bits)),
    (b"<=", 8, |a, b| Integer::truth(a.compare(b).is_le())),
    (b">=", 8, |a, b| Integer::truth(a.compare(b).is_ge())),
    (b"<<", 9, |a, b| a.shift(true, b)),
    (b">>", 9, |a, b| a.shift(false, b)),
    // By the text of §4.5.5; the table of §4.5.6 has the type `.u64`.
    (b"|", 4, |a, b| a.with(b, a.bits | b.bits)),
    (b"^", 5, |a, b| a.with(b, a.bits ^ b.bits)),
    (b"&", 6, |a, b| a.with(b, a.bits & b.bits)),
    (b"<", 8, |a, b| Integer::truth(a.compare(b).is_lt())),
    (b">", 8, |a, b| Integer::truth(a.compare(b).is_gt())),
    (b"+", SUM, |a, b| a.with(b, a.bits.wrapping_add(b.bits))),
    (b"-", SUM, |a, b| a.with(b, a.bits.wrapping_sub(b.bits))),
    (b"*", SUM + 1, |a, b| a.with(b, a.bits.wrapping_mul(b.bits))),
    (b"/", SUM + 1, Integer::divide),
    // Unlike in C, the operands of `%` are unsigned, and its result is signed.
    (
        b"%",
        SUM + 1,
        |a, b| Integer::signed(a.bits.checked_rem(b.bits).unwrap_or(0) as i64),
    ),
];

type Operator = fn(Integer, Integer) -> Integer;

/// Precedence of `+` and `-`.
const SUM: u8 = 10;

impl<'a> Parser<'a> {
    pub(super) fn constant(&mut self) -> Result<Constant, LoadError> {
        let negative = self.peek() == Token::Mark(b'-');
        let constant = match self.peek_at(usize::from(negative)) {
            Token::Single(bits) => Constant::Single(if negative { bits ^ (1 << 31) } else { bits }),
            Token::Double(bits) => Constant::Double(if negative { bits ^ (1 << 63) } else { bits }),
            _ => return Ok(Constant::Integer(self.expression(0)?.bits)),
        };
        self.at += 1 + usize::from(negative);
        Ok(constant)
    }

    /// Parses `+ 4`, `- 2*4` and so on after a name. Returns the sum.
    pub(super) fn addend(&mut self) -> Result<i64, LoadError> {
        let mut sum = 0i64;
        loop {
            if self.accept(b'+') {
                sum = sum.wrapping_add(self.expression(SUM + 1)?.bits as i64);
            } else if self.accept(b'-') {
                sum = sum.wrapping_sub(self.expression(SUM + 1)?.bits as i64);
            } else {
                return Ok(sum);
            }
        }
    }

    /// Parses an expression whose operators have at least this precedence.
    pub(super) fn expression(&mut self, lowest: u8) -> Result<Integer, LoadError> {
        self.enter()?;
        let mut value = self.unary()?;
        while let Some((length, precedence, operator)) = self.operator().filter(|(_, precedence, _)| *precedence >= lowest) {
            self.at += length;
            let right = self.expression(precedence + 1)?;
            value = operator(value, right);
        }
        if lowest <= 1 && self.accept(b'?') {
            let first = self.expression(0)?;
            self.expect(b':')?;
            let second = self.expression(0)?;
            value = first.with(second, if value.holds() { first.bits } else { second.bits });
        }
        self.leave();
        Ok(value)
    }

    fn operator(&self) -> Option<(usize, u8, Operator)> {
        OPERATORS.iter().find_map(|(marks, precedence, operator)| {
            let found = marks
                .iter()
                .enumerate()
                .all(|(ahead, mark)| self.peek_at(ahead) == Token::Mark(*mark));
            found.then_some((marks.len(), *precedence, *operator))
        })
    }

    fn unary(&mut self) -> Result<Integer, LoadError> {
        match self.peek() {
            Token::Mark(sign @ (b'-' | b'+' | b'!' | b'~')) => {
                self.at += 1;
                self.enter()?;
                let value = self.unary()?;
                self.leave();
                Ok(match sign {
                    b'-' => value.with(value, value.bits.wrapping_neg()),
                    b'!' => Integer::truth(!value.holds()),
                    b'~' => Integer::unsigned(!value.bits),
                    _ => value,
                })
            }
            Token::Mark(b'(') => {
                self.at += 1;
                // `(.s64)` and `(.u64)` change the type, not the bits.
                let is_unsigned = self.accept_dot("u64");
                if is_unsigned || self.accept_dot("s64") {
                    self.expect(b')')?;
                    self.enter()?;
                    let bits = self.unary()?.bits;
                    self.leave();
                    return Ok(Integer { bits, is_unsigned });
                }
                let value = self.expression(0)?;
                self.expect(b')')?;
                Ok(value)
            }
            Token::Integer { bits, is_unsigned } => {
                self.at += 1;
                Ok(Integer { bits, is_unsigned })
            }
            Token::Name("WARP_SZ") => {
                self.at += 1;
                Ok(Integer::signed(32))
            }
            _ => Err(self.error("expected a constant")),
        }
    }
}
