//! The secret by which a client comes back, as a header of the request for a stream.

/// Header of a request for a stream: the [`Welcome::resume`](super::Welcome::resume) that the client is about to show, in hexadecimal
/// digits. Whoever has it was let in before, so that nobody need be asked whether it may come in again.
pub const RESUME_HEADER: &str = "sahasra-resume";
/// Value of the same header in an agent's answer `101`: the secret was the right one, and the caller's token was not asked for.
pub const RESUME_ACCEPTED: &str = "accepted";
/// Longest secret that is read from there, in bytes.
const RESUME_BYTES: usize = 64;

/// A secret as the value of [`RESUME_HEADER`].
pub fn resume_value(secret: &[u8]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret in a value of [`RESUME_HEADER`]; `None` where it holds none.
pub fn resume_secret(value: &[u8]) -> Option<Vec<u8>> {
    if value.is_empty() || value.len() > 2 * RESUME_BYTES || !value.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    value
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_out_of_its_header_as_it_went_in() {
        let secret: Vec<u8> = (0..32).map(|place| place * 8 + 1).collect();
        assert_eq!(resume_value(&secret).len(), 64);
        assert_eq!(resume_secret(resume_value(&secret).as_bytes()), Some(secret));
        let long = "00".repeat(RESUME_BYTES + 1);
        for wrong in ["", "0", "0g", "+1", "é0", &long] {
            assert_eq!(resume_secret(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
