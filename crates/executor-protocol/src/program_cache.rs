//! Cache of compiled programs on disk, for the session executors of one agent: one folder for each namespace, and in it one file for each
//! program, named by the hash of everything that determines the compiled program.
//!
//! An executor reads and writes only the folder of its session's namespace. When the size limit is exceeded, the least recently used
//! programs are removed: each executor trims its namespace's folder, and the agent trims all folders together whenever an executor has
//! ended. So while sessions run, each of their namespaces may use the limit once; afterwards all namespaces together use it once.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// An agent's cache, with a folder for each namespace.
#[derive(Clone, Debug)]
pub struct ProgramCache(ProgramFolder);

/// The folder of a namespace in an agent's cache. The executors of the namespace's sessions read and write the programs in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFolder {
    pub path: PathBuf,
    /// Maximum total size of the files, in bytes.
    pub limit_bytes: u64,
}

impl ProgramCache {
    /// Opens the cache in `folder`, which is created if it is missing, and trims it.
    pub fn open(folder: &Path, limit_bytes: u64) -> io::Result<Self> {
        private().recursive(true).create(folder)?;
        let all = ProgramFolder {
            // Executors have another working directory.
            path: folder.canonicalize()?,
            limit_bytes,
        };
        all.trim();
        Ok(Self(all))
    }

    /// Opens the folder of a namespace, which is created if it is missing.
    ///
    /// # Errors
    /// Errors of the file system; [`io::ErrorKind::InvalidInput`] if `namespace` is not a valid name of a namespace.
    pub fn of_namespace(&self, namespace: &str) -> io::Result<ProgramFolder> {
        let is_label = !namespace.is_empty()
            && namespace.len() <= 63
            && namespace.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if !is_label {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("invalid namespace {namespace:?}"),
            ));
        }
        let path = self.0.path.join(namespace);
        private().recursive(true).create(&path)?;
        Ok(ProgramFolder {
            path,
            limit_bytes: self.0.limit_bytes,
        })
    }

    /// Removes the least recently used files of all namespaces until at most the limit is left. Files that cannot be inspected or removed stay.
    pub fn trim(&self) {
        self.0.trim();
    }
}

impl ProgramFolder {
    /// Content of the file `name`, or `None` if it cannot be read. Marks the file as used now.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.path.join(name);
        let bytes = fs::read(&path).ok()?;
        // If this fails, the program is evicted sooner than it should be.
        let _ = File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes)
    }

    /// Writes the file `name` atomically: readers see all of it or nothing. Evicts the least recently used programs if the limit is
    /// exceeded. Content larger than the limit is not written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.limit_bytes {
            return Ok(());
        }
        let part = self.path.join(format!("{name}.{}", std::process::id()));
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, self.path.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        self.trim();
        written
    }

    /// Removes the least recently used files in the folder and in its direct subfolders until at most the limit is left.
    fn trim(&self) {
        let mut files = Vec::new();
        collect(&self.path, true, &mut files);
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        files.sort();
        for (_, size, path) in files {
            if bytes <= self.limit_bytes {
                return;
            }
            if fs::remove_file(&path).is_ok() {
                bytes -= size;
            }
        }
    }
}

fn private() -> DirBuilder {
    let mut builder = DirBuilder::new();
    // Private, because the files in the folder are executed.
    builder.mode(0o700);
    builder
}

fn collect(folder: &Path, with_folders: bool, files: &mut Vec<(SystemTime, u64, PathBuf)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(about) = entry.metadata() else { continue };
        if about.is_file() {
            files.push((about.modified().unwrap_or(SystemTime::UNIX_EPOCH), about.len(), entry.path()));
        } else if about.is_dir() && with_folders {
            collect(&entry.path(), false, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    fn age(folder: &ProgramFolder, name: &str, seconds: u64) {
        let file = File::options().write(true).open(folder.path.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn each_namespace_has_a_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(&root.path().join("programs"), 1000).unwrap();
        let (one, other) = (cache.of_namespace("one").unwrap(), cache.of_namespace("other").unwrap());
        one.write("key", b"code").unwrap();
        assert_eq!(one.read("key").as_deref(), Some(b"code".as_slice()));
        assert_eq!(other.read("key"), None);
        let mode = fs::metadata(&one.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may write what is run");
        let again = ProgramCache::open(&root.path().join("programs"), 1000).unwrap();
        assert_eq!(again.of_namespace("one").unwrap(), one);
        assert!(one.read("key").is_some(), "it outlives who wrote it");
    }

    #[test]
    fn what_names_no_namespace_has_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(root.path(), 1000).unwrap();
        for wrong in ["", ".", "..", "../one", "a/b", "/etc", "One", &"a".repeat(64)] {
            assert!(cache.of_namespace(wrong).is_err(), "{wrong}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_used_longest_ago_goes() {
        let root = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(root.path(), 30).unwrap();
        let folder = cache.of_namespace("one").unwrap();
        for (name, seconds) in [("a", 300), ("b", 200), ("c", 100)] {
            folder.write(name, &[0; 10]).unwrap();
            age(&folder, name, seconds);
        }
        assert!(folder.read("a").is_some());
        folder.write("d", &[0; 10]).unwrap();
        assert!(folder.read("b").is_none(), "a was used since");
        assert!(["a", "c", "d"].iter().all(|name| folder.path.join(name).exists()));
        folder.write("large", &[0; 31]).unwrap();
        assert!(
            folder.read("large").is_none() && folder.path.join("a").exists(),
            "nothing goes for what has no room"
        );
    }

    #[test]
    fn the_agent_looks_after_all_namespaces_together() {
        let root = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(root.path(), 30).unwrap();
        for (namespace, seconds) in [("one", 300), ("two", 200)] {
            let folder = cache.of_namespace(namespace).unwrap();
            for name in ["a", "b"] {
                folder.write(name, &[0; 10]).unwrap();
                age(&folder, name, seconds);
            }
        }
        // Temporary file of an executor that was killed while writing.
        fs::write(root.path().join("one/a.4711"), [0; 10]).unwrap();
        cache.trim();
        assert_eq!(fs::read_dir(root.path().join("one")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.path().join("two")).unwrap().count(), 2);
    }
}
