//! Credentials of the API of `sahasra up`: a token and a certificate, generated at each start.
//!
//! The API needs a certificate because kubectl sends a token over TLS only. Token and certificate are written to a kubeconfig that only its
//! owner can read. The token alone is written to a file beside it, for clients of the gateway: they use plain HTTP on loopback.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sahasra_local::{Credentials, CredentialsError};
use tempfile::NamedTempFile;

/// First line of the kubeconfig. A comment, which kubectl does not copy when it merges kubeconfigs.
const MARK: &str = "# Written by `sahasra up`, which replaces and removes this file.";
/// Maximum number of bytes read to recognise a file of an earlier run: more than [`MARK`] or a token.
const LOOKED_AT_BYTES: u64 = 4096;
const TOKEN_DIGITS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("failed to generate a token")]
    Random(#[source] io::Error),
    #[error("failed to create a certificate")]
    Certificate(#[source] CredentialsError),
    #[error(
        "{} is in use by another `sahasra up`: stop it, or set other files with --kubeconfig and --token-file",
        path.display()
    )]
    Held { path: PathBuf },
    #[error(
        "{} was not written by `sahasra up`, which would overwrite it and remove it at the end: choose another file with {option}, or remove \
         this one first",
        path.display()
    )]
    Foreign { path: PathBuf, option: &'static str },
    #[error("directory {} of {option} not found: create it, or specify another file", folder.display())]
    NoFolder { folder: PathBuf, option: &'static str },
    #[error("--kubeconfig and --token-file name the same file, {}: specify different files", path.display())]
    Same { path: PathBuf },
    #[error("failed to write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Kubeconfig,
    Token,
}

impl Content {
    fn option(self) -> &'static str {
        match self {
            Self::Kubeconfig => "--kubeconfig",
            Self::Token => "--token-file",
        }
    }

    /// Whether a file with this beginning was left behind by an earlier `sahasra up`.
    fn is_ours(self, beginning: &[u8]) -> bool {
        match self {
            Self::Kubeconfig => beginning.strip_prefix(MARK.as_bytes()).is_some_and(|rest| rest.starts_with(b"\n")),
            Self::Token => {
                let token = beginning.strip_suffix(b"\n").unwrap_or(beginning);
                token.len() == TOKEN_DIGITS && token.iter().all(u8::is_ascii_hexdigit)
            }
        }
    }
}

/// The kubeconfig and the token file, which only their owner can read.
#[derive(Debug)]
pub(super) struct Files {
    pub kubeconfig: LockedFile,
    pub token_file: LockedFile,
}

impl Files {
    /// Checks that new files can be written at both paths, and removes files that an earlier run left behind. If the second path is rejected,
    /// the file at the first path stays unchanged.
    pub(super) fn take(kubeconfig: &Path, token_file: &Path) -> Result<Self, AccessError> {
        let kubeconfig = LockedFile::take(kubeconfig, Content::Kubeconfig)?;
        if kubeconfig.is(token_file) {
            return Err(AccessError::Same {
                path: token_file.to_owned(),
            });
        }
        let token_file = LockedFile::take(token_file, Content::Token)?;
        for held in [&kubeconfig, &token_file] {
            if held.earlier.is_some() {
                fs::remove_file(&held.path).map_err(failed(&held.path))?;
            }
        }
        Ok(Self { kubeconfig, token_file })
    }

    /// Writes a kubeconfig for the API at `address`, with namespace `default`, and the token.
    pub(super) fn write(&mut self, credentials: &Credentials, address: SocketAddr) -> Result<(), AccessError> {
        let kubeconfig = credentials.kubeconfig(address, "default");
        self.kubeconfig.write(&format!("{MARK}\n{kubeconfig}"))?;
        self.token_file.write(&format!("{}\n", credentials.token))
    }

    /// Removes both files, unless they contain another token than `token`.
    pub(super) fn remove(self, token: &str) {
        self.kubeconfig.remove(token);
        self.token_file.remove(token);
    }
}

/// A file with the token, under an exclusive lock: no other `sahasra up` writes the path until the lock is dropped. The file appears at its
/// path once it is complete, because scripts wait for it.
#[derive(Debug)]
pub(super) struct LockedFile {
    /// Path as given to [`Files::take`].
    pub path: PathBuf,
    /// The new file at its path. Closing it releases its lock.
    written: Option<File>,
    /// The file of an earlier run at the path, locked as well.
    earlier: Option<File>,
}

impl LockedFile {
    pub(super) fn create_folder(path: &Path) -> Result<(), AccessError> {
        fs::create_dir_all(folder_of(path)).map_err(failed(path))
    }

    /// Whether `path` names the same file as this one, also if neither file exists yet.
    fn is(&self, path: &Path) -> bool {
        if let Some(earlier) = &self.earlier {
            return identity(fs::metadata(path)).is_some_and(|other| identity(earlier.metadata()) == Some(other));
        }
        let place = |path: &Path| Some((folder_of(path).canonicalize().ok()?, path.file_name()?.to_owned()));
        place(path).is_some_and(|other| place(&self.path) == Some(other))
    }

    /// Checks that a new file can be created beside the path, and locks an existing file at the path, which stays unchanged.
    fn take(path: &Path, content: Content) -> Result<Self, AccessError> {
        if !folder_of(path).is_dir() {
            return Err(AccessError::NoFolder {
                folder: folder_of(path).to_owned(),
                option: content.option(),
            });
        }
        let earlier = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(mut earlier) => {
                lock(&earlier, path)?;
                // Another `sahasra up` removed or replaced the file before it was locked here.
                if identity(earlier.metadata()) != identity(fs::metadata(path)) {
                    return Self::take(path, content);
                }
                let mut beginning = Vec::new();
                (&mut earlier)
                    .take(LOOKED_AT_BYTES)
                    .read_to_end(&mut beginning)
                    .map_err(failed(path))?;
                if !beginning.is_empty() && !content.is_ours(&beginning) {
                    return Err(AccessError::Foreign {
                        path: path.to_owned(),
                        option: content.option(),
                    });
                }
                Some(earlier)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(failed(path)(source)),
        };
        // Removed at once: a process that is killed before it writes the file leaves nothing.
        drop(temporary_file(path)?);
        Ok(Self {
            path: path.to_owned(),
            written: None,
            earlier,
        })
    }

    fn write(&mut self, text: &str) -> Result<(), AccessError> {
        let mut temporary = temporary_file(&self.path)?;
        // The file is locked before it gets its path, where other processes open it.
        lock(temporary.as_file(), &self.path)?;
        temporary.write_all(text.as_bytes()).map_err(failed(&self.path))?;
        let written = temporary.persist_noclobber(&self.path).map_err(|refused| match refused.error {
            // Another process has created the path in the meantime.
            error if error.kind() == io::ErrorKind::AlreadyExists => AccessError::Held { path: self.path.clone() },
            error => failed(&self.path)(error),
        })?;
        self.written = Some(written);
        Ok(())
    }

    fn remove(self, token: &str) {
        let ours = fs::read_to_string(&self.path).is_ok_and(|text| text.contains(token));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove the token file");
        }
    }
}

/// A new file beside the path, which only its owner can read.
fn temporary_file(path: &Path) -> Result<NamedTempFile, AccessError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = tempfile::Builder::new().prefix(&format!(".{name}.")).tempfile_in(folder_of(path));
    temporary.map_err(failed(path))
}

fn identity(found: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    found.ok().map(|found| (found.dev(), found.ino()))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> AccessError {
    let path = path.to_owned();
    move |source| AccessError::Write {
        path: path.clone(),
        source,
    }
}

fn lock(file: &File, path: &Path) -> Result<(), AccessError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(AccessError::Held { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(path)(source)),
    }
}

/// Generates a token of 64 hexadecimal digits and a certificate.
pub(super) fn credentials() -> Result<Credentials, AccessError> {
    let token = crate::token::random().map_err(AccessError::Random)?;
    Credentials::new(Ipv4Addr::LOCALHOST.into(), token).map_err(AccessError::Certificate)
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn only_the_owner_can_read_the_kubeconfig_even_if_it_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/kubeconfig");
        fs::create_dir_all(folder.path().join("below")).unwrap();
        fs::write(&path, format!("{MARK}\n{{}}")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let token_file = folder.path().join("token");
        let access = credentials().unwrap();
        let mut files = Files::take(&path, &token_file).unwrap();
        let left = |folder: &Path| {
            fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        assert_eq!(left(folder.path()), ["below"], "a process that is killed now leaves nothing");
        assert_eq!(left(&folder.path().join("below")), [""; 0]);
        files.write(&access, "127.0.0.1:8000".parse().unwrap()).unwrap();
        for path in [&path, &token_file] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let written: serde_json::Value = sahasra_crds::yaml::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(written["clusters"][0]["cluster"]["server"], "https://127.0.0.1:8000");
        assert_eq!(written["users"][0]["user"]["token"], access.token);
        assert_eq!(access.token.len(), TOKEN_DIGITS);
        assert_ne!(access.token, credentials().unwrap().token);
        assert_eq!(fs::read_to_string(&token_file).unwrap(), format!("{}\n", access.token));
        files.remove(&access.token);
        assert!(!path.exists() && !token_file.exists());
    }

    #[test]
    fn the_file_of_a_running_pool_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let token = crate::token::random().unwrap();
        let mut first = LockedFile::take(&path, Content::Token).unwrap();
        first.write(&token).unwrap();
        let refused = LockedFile::take(&path, Content::Token).unwrap_err().to_string();
        assert!(refused.contains("--kubeconfig"), "{refused}");
        assert!(fs::read_to_string(&path).unwrap().contains(&token), "it is whole");
        // A killed process leaves its file, but no lock on it.
        drop(first);
        let second = LockedFile::take(&path, Content::Token).unwrap();
        second.remove(&crate::token::random().unwrap());
        assert!(path.exists(), "it holds another's token");
    }

    #[test]
    fn a_file_that_the_program_did_not_write_is_rejected_and_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let (kubeconfig, token_file) = (folder.path().join("config"), folder.path().join("token"));
        let access = credentials().unwrap();
        let refused = || Files::take(&kubeconfig, &token_file).unwrap_err().to_string();
        let theirs = format!("apiVersion: v1\nkind: Config\n{MARK}\n");
        fs::write(&kubeconfig, &theirs).unwrap();
        let told = refused();
        assert!(
            told.contains("config was not written by") && told.contains("--kubeconfig"),
            "{told}"
        );
        assert_eq!(fs::read_to_string(&kubeconfig).unwrap(), theirs);
        assert!(!token_file.exists());

        fs::remove_file(&kubeconfig).unwrap();
        fs::write(&token_file, "a password\n").unwrap();
        let told = refused();
        assert!(told.contains("token was not written by") && told.contains("--token-file"), "{told}");
        assert_eq!(fs::read_to_string(&token_file).unwrap(), "a password\n");
        assert!(!kubeconfig.exists(), "what was created for this run is removed");
        fs::remove_file(&token_file).unwrap();

        let told = Files::take(&kubeconfig, &folder.path().join("./config")).unwrap_err().to_string();
        assert!(told.contains("--kubeconfig and --token-file name the same file"), "{told}");
        assert!(!kubeconfig.exists());

        // Files that a killed run left behind are taken over.
        let address = "127.0.0.1:8000".parse().unwrap();
        for _ in 0..2 {
            let mut files = Files::take(&kubeconfig, &token_file).unwrap();
            assert!(
                !kubeconfig.exists() && !token_file.exists(),
                "they are not there before they are whole"
            );
            files.write(&access, address).unwrap();
        }
    }
}
