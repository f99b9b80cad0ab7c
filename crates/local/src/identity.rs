//! Generation of uids and name suffixes from a seed, so that a run can be reproduced.

#[derive(Clone, Debug)]
pub(crate) struct Identities {
    random: fastrand::Rng,
}

/// Characters of a generated suffix, the same as in Kubernetes: no vowels and no characters that look alike.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

impl Identities {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// A uid in the format of a version 4 UUID.
    pub(crate) fn uid(&mut self) -> String {
        let (high, low) = (self.random.u64(..), self.random.u64(..));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }

    /// `prefix` with a random suffix of five characters. A long prefix is truncated so that the name has at most 63 characters.
    pub(crate) fn generated_name(&mut self, prefix: &str) -> String {
        let longest = 63 - SUFFIX_LENGTH;
        let mut name: String = prefix.chars().take(longest).collect();
        name.extend((0..SUFFIX_LENGTH).map(|_| SUFFIX_LETTERS[self.random.usize(..SUFFIX_LETTERS.len())] as char));
        name
    }
}

impl Default for Identities {
    fn default() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_identities_and_another_seed_others() {
        let draw = |seed| {
            let mut identities = Identities::new(seed);
            (identities.uid(), identities.generated_name("burst-"), identities.uid())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let (first, name, second) = draw(7);
        assert_ne!(first, second);
        assert_eq!(first.len(), 36);
        assert_eq!(name.len(), "burst-".len() + 5);
    }

    #[test]
    fn a_long_prefix_is_cut() {
        let name = Identities::new(1).generated_name(&"a".repeat(200));
        assert_eq!(name.len(), 63);
    }
}
