//! Programs by content: in memory, and as files where there is a folder.

use std::collections::HashMap;

use sahasra_pjrt::Format;
use sha2::{Digest, Sha256};

use crate::program_cache::Folder;

/// Programs kept in memory beside those that have names.
const MOST: usize = 256;

/// SHA-256 of a program's code, its format, and what makes a compiler's output what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// Of that.
    pub fn of(salt: &str, format: Format, code: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [salt.as_bytes(), format!("{format:?}").as_bytes(), code] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    fn name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Cache<P> {
    salt: String,
    folder: Option<Folder>,
    programs: HashMap<Key, (u64, P)>,
    /// Grows with each use: the lowest was used longest ago.
    uses: u64,
}

impl<P: Clone> Cache<P> {
    /// An empty one; files of another salt are not seen.
    pub fn new(salt: String, folder: Option<Folder>) -> Self {
        Self {
            salt,
            folder,
            programs: HashMap::new(),
            uses: 0,
        }
    }

    /// What makes a compiler's output what it is.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// A program in memory.
    pub fn get(&mut self, key: &Key) -> Option<P> {
        self.uses += 1;
        let (used, program) = self.programs.get_mut(key)?;
        *used = self.uses;
        Some(program.clone())
    }

    /// Keeps a program; the one that was used longest ago goes where there are too many.
    pub fn insert(&mut self, key: Key, program: P) {
        if self.programs.len() >= MOST
            && let Some(oldest) = self.programs.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
        {
            self.programs.remove(&oldest);
        }
        self.uses += 1;
        self.programs.insert(key, (self.uses, program));
    }

    /// Whether there are files.
    pub fn is_on_disk(&self) -> bool {
        self.folder.is_some()
    }

    /// A program that was written, if it is whole: its hash stands before it.
    pub fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = self.folder.as_ref()?.read(&key.name())?;
        let (hash, program) = bytes.split_first_chunk::<32>()?;
        if <[u8; 32]>::from(Sha256::digest(program)) != *hash {
            return None;
        }
        bytes.drain(..32);
        Some(bytes)
    }

    /// Writes a program. That it cannot be written costs the next one time, and nothing else.
    pub fn write(&self, key: &Key, program: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let bytes = [Sha256::digest(program).as_slice(), program].concat();
        if let Err(error) = folder.write(&key.name(), &bytes) {
            eprintln!("a compiled program is not kept: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_all_that_makes_them() {
        let key = |salt, format, code: &str| Key::of(salt, format, code.as_bytes());
        let one = key("cpu 1", Format::StableHlo, "module");
        assert_eq!(one, key("cpu 1", Format::StableHlo, "module"));
        for other in [
            key("cpu 2", Format::StableHlo, "module"),
            key("cpu 1", Format::Hlo, "module"),
            key("cpu 1", Format::StableHlo, "modulo"),
            key("cpu 1m", Format::StableHlo, "odule"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn the_program_used_longest_ago_goes() {
        let mut cache = Cache::new(String::new(), None);
        let key = |number: usize| Key::of("", Format::Hlo, &number.to_le_bytes());
        for number in 0..MOST {
            cache.insert(key(number), number);
        }
        assert_eq!(cache.get(&key(0)), Some(0));
        cache.insert(key(MOST), MOST);
        assert_eq!(
            (cache.get(&key(0)), cache.get(&key(1)), cache.get(&key(MOST))),
            (Some(0), None, Some(MOST))
        );
    }

    #[test]
    fn a_file_that_is_not_whole_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::<()>::new(
            String::new(),
            Some(Folder {
                path: folder.path().to_owned(),
                limit_bytes: 1 << 20,
            }),
        );
        let key = Key::of("", Format::Hlo, b"code");
        assert_eq!(cache.read(&key), None);
        cache.write(&key, b"machine code");
        assert_eq!(cache.read(&key).as_deref(), Some(b"machine code".as_slice()));
        let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.pop();
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(cache.read(&key), None);
    }
}
