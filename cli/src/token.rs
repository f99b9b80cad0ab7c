//! Random bearer tokens.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
};

const TOKEN_BYTES: usize = 32;

/// Generates a token of 64 hexadecimal digits.
///
/// # Errors
/// When `/dev/urandom` cannot be read.
pub fn random() -> io::Result<String> {
    let mut bytes = [0u8; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut token = String::with_capacity(2 * TOKEN_BYTES);
    for byte in bytes {
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}
