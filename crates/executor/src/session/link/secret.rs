//! Comparison of secrets.

/// Compares in a time that does not depend on where the arguments differ.
pub(super) fn same(secret: &[u8], shown: &[u8]) -> bool {
    secret.len() == shown.len() && secret.iter().zip(shown).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
