//! Generation of uids and name suffixes from a seed, so that a run can be reproduced.

#[derive(Clone, Debug, Default)]
pub(crate) struct Identities {
    state: u64,
}

/// Characters of a generated suffix, the same as in Kubernetes: no vowels and no characters that look alike.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

impl Identities {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014). The generator visits every state once, so uids do not repeat.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uid in the format of a version 4 UUID.
    pub fn uid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
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
    pub fn generated_name(&mut self, prefix: &str) -> String {
        let longest = 63 - SUFFIX_LENGTH;
        let mut name: String = prefix.chars().take(longest).collect();
        let mut bits = self.next();
        for _ in 0..SUFFIX_LENGTH {
            let letters = SUFFIX_LETTERS.len() as u64;
            name.push(SUFFIX_LETTERS[(bits % letters) as usize] as char);
            bits /= letters;
        }
        name
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
