//! Cache of compiled programs by content hash: in memory and, if a folder is configured, on disk.

use std::collections::HashMap;

use sahasra_pjrt::Format;
use sha2::{Digest, Sha256};

use sahasra_executor_protocol::program_cache::ProgramFolder;

/// Maximum number of programs in memory.
const MAX_PROGRAMS: usize = 256;

/// SHA-256 of a program's code, its format, and the salt that identifies the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Key of a program's code in `format`; `salt` identifies the compiler.
    pub(crate) fn of(salt: &str, format: Format, code: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [salt.as_bytes(), format!("{format:?}").as_bytes(), code] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    fn name(&self) -> String {
        hex::encode(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct Cache<P> {
    salt: String,
    folder: Option<ProgramFolder>,
    programs: HashMap<Key, (u64, P)>,
    /// Use counter: the program with the lowest number was used least recently.
    uses: u64,
}

impl<P: Clone> Cache<P> {
    /// Empty cache. Files that were written with another salt are ignored.
    pub(crate) fn new(salt: String, folder: Option<ProgramFolder>) -> Self {
        Self {
            salt,
            folder,
            programs: HashMap::new(),
            uses: 0,
        }
    }

    /// Everything except the program that determines the compiler's output.
    pub(crate) fn salt(&self) -> &str {
        &self.salt
    }

    pub(crate) fn get(&mut self, key: &Key) -> Option<P> {
        self.uses += 1;
        let (used, program) = self.programs.get_mut(key)?;
        *used = self.uses;
        Some(program.clone())
    }

    /// Adds a program to the memory. Evicts the least recently used program if there are too many.
    pub(crate) fn insert(&mut self, key: Key, program: P) {
        if self.programs.len() >= MAX_PROGRAMS
            && let Some(oldest) = self.programs.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
        {
            self.programs.remove(&oldest);
        }
        self.uses += 1;
        self.programs.insert(key, (self.uses, program));
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.folder.is_some()
    }

    /// Reads a serialised program from disk. Returns `None` if the file is missing or damaged: its content must match the hash that
    /// precedes it.
    pub(crate) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = self.folder.as_ref()?.read(&key.name())?;
        let (hash, program) = bytes.split_first_chunk::<32>()?;
        if <[u8; 32]>::from(Sha256::digest(program)) != *hash {
            return None;
        }
        bytes.drain(..32);
        Some(bytes)
    }

    /// Writes a serialised program to disk. A failure only costs a later session the time of a compilation.
    pub(crate) fn write(&self, key: &Key, program: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let bytes = [Sha256::digest(program).as_slice(), program].concat();
        if let Err(error) = folder.write(&key.name(), &bytes) {
            eprintln!("failed to cache a compiled program: {error}");
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
        for number in 0..MAX_PROGRAMS {
            cache.insert(key(number), number);
        }
        assert_eq!(cache.get(&key(0)), Some(0));
        cache.insert(key(MAX_PROGRAMS), MAX_PROGRAMS);
        assert_eq!(
            (cache.get(&key(0)), cache.get(&key(1)), cache.get(&key(MAX_PROGRAMS))),
            (Some(0), None, Some(MAX_PROGRAMS))
        );
    }

    #[test]
    fn a_file_that_is_not_whole_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::<()>::new(
            String::new(),
            Some(ProgramFolder {
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
