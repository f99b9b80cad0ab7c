//! Bearer tokens from the system's random source.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
};

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// A new token, 64 hexadecimal digits.
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
