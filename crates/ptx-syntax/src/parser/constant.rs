//! Constant expressions (PTX ISA §4.6), which are evaluated in 64 bits.

use super::Parser;
use crate::error::LoadError;
use crate::lexer::Token;
use crate::syntax::Constant;

/// Binary operators with their characters and precedence; longer ones first.
const OPERATORS: [(&[u8], u8, Operator); 18] = [
    (b"||", 2, |a, b| i64::from(a != 0 || b != 0)),
    (b"&&", 3, |a, b| i64::from(a != 0 && b != 0)),
    (b"==", 7, |a, b| i64::from(a == b)),
    (b"!=", 7, |a, b| i64::from(a != b)),
    (b"<=", 8, |a, b| i64::from(a <= b)),
    (b">=", 8, |a, b| i64::from(a >= b)),
    (b"<<", 9, |a, b| a.checked_shl(b as u32).unwrap_or(0)),
    (b">>", 9, |a, b| a.checked_shr(b as u32).unwrap_or(a >> 63)),
    (b"|", 4, |a, b| a | b),
    (b"^", 5, |a, b| a ^ b),
    (b"&", 6, |a, b| a & b),
    (b"<", 8, |a, b| i64::from(a < b)),
    (b">", 8, |a, b| i64::from(a > b)),
    (b"+", SUM, i64::wrapping_add),
    (b"-", SUM, i64::wrapping_sub),
    (b"*", SUM + 1, i64::wrapping_mul),
    (b"/", SUM + 1, |a, b| a.checked_div(b).unwrap_or(0)),
    (b"%", SUM + 1, |a, b| a.checked_rem(b).unwrap_or(0)),
];

type Operator = fn(i64, i64) -> i64;

/// Precedence of `+` and `-`.
const SUM: u8 = 10;

impl<'a> Parser<'a> {
    pub(super) fn constant(&mut self) -> Result<Constant, LoadError> {
        let negative = self.peek() == Token::Mark(b'-');
        let constant = match self.peek_at(usize::from(negative)) {
            Token::Single(bits) => Constant::Single(if negative { bits ^ (1 << 31) } else { bits }),
            Token::Double(bits) => Constant::Double(if negative { bits ^ (1 << 63) } else { bits }),
            _ => return Ok(Constant::Integer(self.expression(0)? as u64)),
        };
        self.at += 1 + usize::from(negative);
        Ok(constant)
    }

    /// Parses `+ 4`, `- 2*4` and so on after a name. Returns the sum.
    pub(super) fn addend(&mut self) -> Result<i64, LoadError> {
        let mut sum = 0i64;
        loop {
            if self.accept(b'+') {
                sum = sum.wrapping_add(self.expression(SUM + 1)?);
            } else if self.accept(b'-') {
                sum = sum.wrapping_sub(self.expression(SUM + 1)?);
            } else {
                return Ok(sum);
            }
        }
    }

    /// Parses an expression whose operators have at least this precedence.
    pub(super) fn expression(&mut self, lowest: u8) -> Result<i64, LoadError> {
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
            value = if value != 0 { first } else { second };
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

    fn unary(&mut self) -> Result<i64, LoadError> {
        match self.peek() {
            Token::Mark(sign @ (b'-' | b'+' | b'!' | b'~')) => {
                self.at += 1;
                self.enter()?;
                let value = self.unary()?;
                self.leave();
                Ok(match sign {
                    b'-' => value.wrapping_neg(),
                    b'!' => i64::from(value == 0),
                    b'~' => !value,
                    _ => value,
                })
            }
            Token::Mark(b'(') => {
                self.at += 1;
                // `(.s64)` and `(.u64)` change the type, not the bits.
                if self.accept_dot("s64") || self.accept_dot("u64") {
                    self.expect(b')')?;
                    self.enter()?;
                    let value = self.unary();
                    self.leave();
                    return value;
                }
                let value = self.expression(0)?;
                self.expect(b')')?;
                Ok(value)
            }
            Token::Integer(value) => {
                self.at += 1;
                Ok(value as i64)
            }
            Token::Name("WARP_SZ") => {
                self.at += 1;
                Ok(32)
            }
            _ => Err(self.error("expected a constant")),
        }
    }
}
