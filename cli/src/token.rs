//! Random bearer tokens.

const TOKEN_BYTES: usize = 32;

/// Generates a token of 64 hexadecimal digits.
pub fn random() -> std::io::Result<String> {
    let mut bytes = [0u8; TOKEN_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex::encode(bytes))
}
