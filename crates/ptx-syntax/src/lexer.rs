//! Lexer: splits PTX text into tokens (PTX ISA §4.2 comments, §4.4 identifiers, §4.5 constants).

use crate::error::{LoadError, LoadErrorKind, Position};

/// Token. Names borrow from the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// Identifier, including registers (`%r1`) and labels (`$L__BB0_1`).
    Name(&'a str),
    /// Word after a dot, without the dot: directives, modifiers, types, `.x`.
    Dot(&'a str),
    /// Integer constant, two's complement, and whether its type is `.u64`: it has the suffix `U` or does not fit into `.s64`.
    Integer {
        bits: u64,
        is_unsigned: bool,
    },
    /// `0f` constant: the bits of an f32.
    Single(u32),
    /// `0d` or decimal constant: the bits of an f64.
    Double(u64),
    /// String without its quotes. Escapes are not processed.
    Text(&'a str),
    /// Any other single character.
    Mark(u8),
    End,
}

/// Token, its position, and the range of bytes that it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spanned<'a> {
    pub token: Token<'a>,
    pub position: Position,
    pub start: usize,
    pub end: usize,
}

struct Cursor<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

/// Splits `text` into tokens; the last one is [`Token::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<Spanned<'_>>, LoadError> {
    // Drivers accept NUL-terminated images, so callers often include the terminator.
    let text = text.trim_end_matches('\0');
    let mut cursor = Cursor {
        text,
        bytes: text.as_bytes(),
        at: 0,
        line: 1,
        line_start: 0,
    };
    let mut found = Vec::with_capacity(text.len() / 4 + 1);
    loop {
        cursor.skip_blank()?;
        let start = cursor.at;
        let position = cursor.position();
        let token = cursor.token()?;
        found.push(Spanned {
            token,
            position,
            start,
            end: cursor.at,
        });
        if token == Token::End {
            return Ok(found);
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Cursor<'a> {
    fn position(&self) -> Position {
        Position {
            line: self.line,
            column: u32::try_from(self.at - self.line_start + 1).unwrap_or(u32::MAX),
        }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, position: Position, reason: impl Into<String>) -> LoadError {
        LoadError::new(position, "", LoadErrorKind::Syntax(reason.into()))
    }

    fn advance(&mut self) {
        if self.peek(0) == b'\n' {
            self.line += 1;
            self.line_start = self.at + 1;
        }
        self.at += 1;
    }

    fn skip_blank(&mut self) -> Result<(), LoadError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                // Debug data of old compilers, one line each: `@@DWARF .byte 0`.
                (b'@', b'@') if self.text[self.line_start..self.at].trim_ascii().is_empty() => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    let opened = self.position();
                    self.at += 2;
                    while (self.peek(0), self.peek(1)) != (b'*', b'/') {
                        if self.at >= self.bytes.len() {
                            return Err(self.error(opened, "comment is not closed"));
                        }
                        self.advance();
                    }
                    self.at += 2;
                }
                (byte, _) if byte.is_ascii_whitespace() => self.advance(),
                _ => return Ok(()),
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        while is_word(self.peek(0)) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn token(&mut self) -> Result<Token<'a>, LoadError> {
        let position = self.position();
        if self.at >= self.bytes.len() {
            return Ok(Token::End);
        }
        let byte = self.peek(0);
        match byte {
            b'0'..=b'9' => self.number(position),
            b'.' if is_word(self.peek(1)) => {
                self.at += 1;
                let start = self.at;
                self.word();
                // `.shared::cta`, `.L1::no_allocate`, `.mbarrier::complete_tx::bytes`
                while self.peek(0) == b':' && self.peek(1) == b':' && is_word(self.peek(2)) {
                    self.at += 2;
                    self.word();
                }
                Ok(Token::Dot(&self.text[start..self.at]))
            }
            b'%' if is_word(self.peek(1)) => {
                let start = self.at;
                self.at += 1;
                self.word();
                Ok(Token::Name(&self.text[start..self.at]))
            }
            b'"' => self.string(position),
            _ if is_word(byte) => Ok(Token::Name(self.word())),
            _ if byte.is_ascii_graphic() => {
                self.at += 1;
                Ok(Token::Mark(byte))
            }
            _ => {
                let character = self.text[self.at..].chars().next().unwrap_or('?');
                Err(self.error(position, format!("character {character:?} has no place here")))
            }
        }
    }

    fn string(&mut self, position: Position) -> Result<Token<'a>, LoadError> {
        self.at += 1;
        let start = self.at;
        while self.peek(0) != b'"' {
            if self.at >= self.bytes.len() {
                return Err(self.error(position, "string is not closed"));
            }
            if self.peek(0) == b'\\' {
                self.at += 1;
            }
            if self.at < self.bytes.len() {
                self.advance();
            }
        }
        let text = self
            .text
            .get(start..self.at)
            .ok_or_else(|| self.error(position, "string is cut inside a character"))?;
        self.at += 1;
        Ok(Token::Text(text))
    }

    fn number(&mut self, position: Position) -> Result<Token<'a>, LoadError> {
        let start = self.at;
        let digits = self.word();
        let lower = digits.to_ascii_lowercase();
        if let Some(hex) = lower.strip_prefix("0f")
            && hex.len() == 8
            && let Ok(bits) = u32::from_str_radix(hex, 16)
        {
            return Ok(Token::Single(bits));
        }
        if let Some(hex) = lower.strip_prefix("0d")
            && hex.len() == 16
            && let Ok(bits) = u64::from_str_radix(hex, 16)
        {
            return Ok(Token::Double(bits));
        }
        let fraction = self.peek(0) == b'.' && self.peek(1).is_ascii_digit();
        let exponent = !lower.starts_with("0x") && lower.contains('e');
        if fraction || exponent {
            if fraction {
                self.at += 1;
                self.word();
            }
            if self.text[start..self.at].ends_with(['e', 'E']) && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
                self.word();
            }
            let text = &self.text[start..self.at];
            return match text.parse::<f64>() {
                Ok(value) => Ok(Token::Double(value.to_bits())),
                Err(_) => Err(self.error(position, format!("`{text}` is not a number"))),
            };
        }
        let suffixed = lower.strip_suffix('u');
        let plain = suffixed.unwrap_or(&lower);
        let parsed = if let Some(hex) = plain.strip_prefix("0x") {
            u64::from_str_radix(hex, 16)
        } else if let Some(binary) = plain.strip_prefix("0b") {
            u64::from_str_radix(binary, 2)
        } else if plain.len() > 1 && plain.starts_with('0') {
            u64::from_str_radix(&plain[1..], 8)
        } else {
            plain.parse()
        };
        parsed
            .map(|bits| Token::Integer {
                bits,
                is_unsigned: suffixed.is_some() || bits > i64::MAX as u64,
            })
            .map_err(|_| self.error(position, format!("`{digits}` is not a number of at most 64 bits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Token<'_>> {
        tokens(text).expect("lexes").into_iter().map(|spanned| spanned.token).collect()
    }

    fn integer(bits: u64, is_unsigned: bool) -> Token<'static> {
        Token::Integer { bits, is_unsigned }
    }

    #[test]
    fn constants_keep_their_bits() {
        assert_eq!(
            kinds("0f3F800000 0d3FF0000000000000 0x10 010 0b11 7U 1.5 2e3 1.0e-2"),
            vec![
                Token::Single(0x3f80_0000),
                Token::Double(0x3ff0_0000_0000_0000),
                integer(16, false),
                integer(8, false),
                integer(3, false),
                integer(7, true),
                Token::Double(1.5f64.to_bits()),
                Token::Double(2e3f64.to_bits()),
                Token::Double(1e-2f64.to_bits()),
                Token::End
            ]
        );
    }

    #[test]
    fn scoped_modifiers_are_one_token() {
        assert_eq!(
            kinds("ld.shared::cta.u32 %r1;"),
            vec![
                Token::Name("ld"),
                Token::Dot("shared::cta"),
                Token::Dot("u32"),
                Token::Name("%r1"),
                Token::Mark(b';'),
                Token::End
            ]
        );
    }

    #[test]
    fn errors_carry_line_and_column() {
        let error = tokens("add\n  é").expect_err("not PTX");
        assert_eq!((error.line, error.column), (2, 3));
        assert!(tokens("/* open").is_err());
        assert!(tokens("\"open").is_err());
        assert!(tokens("99999999999999999999").is_err());
    }
}
