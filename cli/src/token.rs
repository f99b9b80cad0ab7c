//! Random bearer tokens, and those of `sahasra serve`, which name the server's certificate.

use sha2::{Digest, Sha256};

const TOKEN_BYTES: usize = 32;
/// Length of a fingerprint in hexadecimal digits.
const FINGERPRINT_DIGITS: usize = 64;

/// Generates a token of 64 hexadecimal digits.
pub(crate) fn random() -> std::io::Result<String> {
    let mut bytes = [0u8; TOKEN_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// SHA-256 of a certificate in DER, in hexadecimal digits.
pub(crate) fn fingerprint(certificate: &[u8]) -> String {
    hex::encode(Sha256::digest(certificate))
}

/// Generates a token for the server with this certificate in DER: its fingerprint, a full stop, and a random token.
pub(crate) fn for_server(certificate: &[u8]) -> std::io::Result<String> {
    Ok(format!("{}.{}", fingerprint(certificate), random()?))
}

/// Fingerprint of the server's certificate in a token that has one.
pub(crate) fn fingerprint_in(token: &str) -> Option<&str> {
    let (fingerprint, secret) = token.split_once('.')?;
    let is_hexadecimal = |text: &str| text.len() == FINGERPRINT_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hexadecimal(fingerprint) && is_hexadecimal(secret)).then_some(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_server_names_its_certificate() {
        let token = for_server(b"certificate").unwrap();
        assert_eq!(fingerprint_in(&token), Some(fingerprint(b"certificate").as_str()));
        assert_ne!(token, for_server(b"certificate").unwrap());
        for other in [random().unwrap(), String::new(), "a.b".to_owned(), format!("{token}.c")] {
            assert_eq!(fingerprint_in(&other), None, "{other}");
        }
    }
}
