//! Lexer: splits text into words and punctuation marks.

/// Word, number, string or single punctuation mark, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'%' | b'$' | b'_')
}

/// Splits a text, without its comments. Strings become words that begin with a quote.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut found = Vec::new();
    // End of the token that begins at `from`: the first byte that is not part of it.
    let end = |from: usize, part: &dyn Fn(u8) -> bool| {
        bytes[from..]
            .iter()
            .position(|byte| !part(*byte))
            .map_or(bytes.len(), |length| from + length)
    };
    while let Some(byte) = bytes.get(at) {
        let start = at;
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = end(at, &|byte| byte != b'\n'),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let length = text[at + 2..].find("*/").map_or(bytes.len(), |length| length + 4);
                let behind = (at + length).min(bytes.len());
                line += bytes[at..behind].iter().filter(|byte| **byte == b'\n').count();
                at = behind;
            }
            b'"' => {
                let close = end(at + 1, &|byte| byte != b'"');
                found.push(Token {
                    text: &text[start..close],
                    line,
                });
                at = close + 1;
            }
            byte if byte.is_ascii_whitespace() => at += 1,
            byte => {
                at = if is_word(*byte) {
                    end(at, &is_word)
                } else {
                    // Only a character that PTX does not use may be longer than a byte.
                    at + text[at..].chars().next().map_or(1, char::len_utf8)
                };
                found.push(Token {
                    text: &text[start..at],
                    line,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_punctuation_and_lines_are_recognised() {
        let text = "// a\n@!%p0 bra L$1; /* b\nc */ .file 1 \"x.cu\"\nmov.u32 %r1,-4;é";
        let found: Vec<(&str, usize)> = tokens(text).iter().map(|token| (token.text, token.line)).collect();
        let second = ["@", "!", "%p0", "bra", "L$1", ";"].map(|word| (word, 2));
        let third = [".file", "1", "\"x.cu"].map(|word| (word, 3));
        let fourth = ["mov.u32", "%r1", ",", "-", "4", ";", "é"].map(|word| (word, 4));
        assert_eq!(found, [second.as_slice(), &third, &fourth].concat());
    }
}
