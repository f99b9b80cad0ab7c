//! Text to words and marks.

/// A word, number, string or single mark, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '%' | '$' | '_')
}

/// Splits a text, comments left out. Strings become words that begin with a quote.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let characters: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    let mut found = Vec::new();
    while at < characters.len() {
        let character = characters[at];
        let start = at;
        match character {
            '\n' => {
                line += 1;
                at += 1;
            }
            '/' if characters.get(at + 1) == Some(&'/') => {
                while at < characters.len() && characters[at] != '\n' {
                    at += 1;
                }
            }
            '/' if characters.get(at + 1) == Some(&'*') => {
                at += 2;
                while at < characters.len() && !(characters[at] == '*' && characters.get(at + 1) == Some(&'/')) {
                    if characters[at] == '\n' {
                        line += 1;
                    }
                    at += 1;
                }
                at += 2;
            }
            '"' => {
                at += 1;
                while at < characters.len() && characters[at] != '"' {
                    at += 1;
                }
                at += 1;
                found.push(Token {
                    text: characters[start..at - 1].iter().collect(),
                    line,
                });
            }
            _ if character.is_whitespace() => at += 1,
            _ if is_word(character) => {
                while at < characters.len() && is_word(characters[at]) {
                    at += 1;
                }
                found.push(Token {
                    text: characters[start..at].iter().collect(),
                    line,
                });
            }
            _ => {
                at += 1;
                found.push(Token {
                    text: character.to_string(),
                    line,
                });
            }
        }
    }
    found
}
