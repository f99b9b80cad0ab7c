//! Credentials of the API of `sahasra up`: a token and a certificate, in a kubeconfig that only its owner can read.
//!
//! kubectl sends a token over TLS only, so the API has a certificate of its own, made at each start. Token and
//! certificate stand in a kubeconfig that the user alone can read, the token by itself in a file beside it: clients of the
//! gateway send it over plain HTTP on loopback, and need no more.

use std::{
    fs::{self, File, OpenOptions, Permissions, TryLockError},
    io::{self, Read, Seek, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sahasra_local::{Credentials, ServeError};
use tokio_rustls::TlsAcceptor;

/// First line of a kubeconfig of `sahasra up`. A comment: kubectl does not copy it when it merges kubeconfigs.
const MARK: &str = "# Written by `sahasra up`, which replaces and removes this file.";
/// Bytes of a file that are read to tell whose it is: more than [`MARK`] or a token.
const LOOKED_AT_BYTES: u64 = 4096;
/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 64;

/// Error of making or writing the credentials.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The system's random source failed.
    #[error("no random source for a token")]
    Random(#[source] io::Error),
    /// The certificate could not be generated.
    #[error("no certificate can be had")]
    Certificate(#[source] ServeError),
    /// Another `sahasra up` has locked the file.
    #[error(
        "{} is the file of another `sahasra up` that runs: end that one, or choose another with --kubeconfig and --token-file",
        path.display()
    )]
    Held {
        /// The locked file.
        path: PathBuf,
    },
    /// The file has content that `sahasra up` did not write.
    #[error(
        "{} was not written by `sahasra up`, which would overwrite it and remove it at the end: choose another file with {option}, or remove \
         this one first",
        path.display()
    )]
    Foreign {
        /// The file, which is left as it is.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
    },
    /// Both options name one file.
    #[error("--kubeconfig and --token-file name the same file, {}: give them different ones", path.display())]
    Same {
        /// The token file.
        path: PathBuf,
    },
    /// The kubeconfig or the token file cannot be created, locked, read or written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The kubeconfig or the token file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The kubeconfig.
    Kubeconfig,
    /// The token alone.
    Token,
}

impl Content {
    fn option(self) -> &'static str {
        match self {
            Self::Kubeconfig => "--kubeconfig",
            Self::Token => "--token-file",
        }
    }

    /// Whether a file that begins like this is one that an earlier `sahasra up` left behind.
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

/// A file with the token, under an exclusive lock: no other `sahasra up` writes it until this is dropped.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    /// The lock ends when it is closed.
    file: File,
}

impl Held {
    /// Creates the kubeconfig and the token file, with their folders, or takes those that an earlier run left behind; locks both. Where the
    /// second is refused the first is as before.
    ///
    /// # Errors
    /// As [`Held::take`]; [`AccessError::Same`] when both are one file.
    pub fn take_both(kubeconfig: &Path, token_file: &Path, access: &Access) -> Result<(Self, Self), AccessError> {
        let kubeconfig = Self::take(kubeconfig, Content::Kubeconfig)?;
        let taken = if kubeconfig.is(token_file) {
            Err(AccessError::Same {
                path: token_file.to_owned(),
            })
        } else {
            Self::take(token_file, Content::Token)
        };
        match taken {
            Ok(token_file) => Ok((kubeconfig, token_file)),
            Err(error) => {
                kubeconfig.remove(access);
                Err(error)
            }
        }
    }

    /// Whether the path leads to this file.
    fn is(&self, path: &Path) -> bool {
        let identity = |found: io::Result<fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        identity(fs::metadata(path)).is_some_and(|other| identity(self.file.metadata()) == Some(other))
    }

    /// Creates the file and its folder if they do not exist, and locks it. Its content stays.
    ///
    /// # Errors
    /// [`AccessError::Held`] when another `sahasra up` has locked it; [`AccessError::Foreign`] when it has content of someone else;
    /// [`AccessError::Write`] when it cannot be created, locked or read.
    fn take(path: &Path, content: Content) -> Result<Self, AccessError> {
        let failed = |source| AccessError::Write {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        // Not truncated before it is locked: it may belong to another `sahasra up`.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(AccessError::Held { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let mut beginning = Vec::new();
        (&mut file).take(LOOKED_AT_BYTES).read_to_end(&mut beginning).map_err(failed)?;
        if !beginning.is_empty() && !content.is_ours(&beginning) {
            return Err(AccessError::Foreign {
                path: path.to_owned(),
                option: content.option(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Replaces the content, and sets the mode to 0600.
    fn write(&mut self, text: &str) -> Result<(), AccessError> {
        let written = (self.file.set_len(0))
            // The mode of `open` applies to new files only.
            .and_then(|()| self.file.set_permissions(Permissions::from_mode(0o600)))
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|source| AccessError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// Path as given to [`Held::take_both`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless it has another token than `access`.
    pub fn remove(self, access: &Access) {
        let ours = fs::read_to_string(&self.path).is_ok_and(|text| text.is_empty() || text.contains(access.token()));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the file with the token was not removed");
        }
    }
}

/// The credentials of one run: a random token and a self-signed certificate.
pub struct Access(Credentials);

impl Access {
    /// Generates a token and a certificate for `127.0.0.1`.
    ///
    /// # Errors
    /// [`AccessError::Random`], [`AccessError::Certificate`].
    pub fn new() -> Result<Self, AccessError> {
        let token = crate::token::random().map_err(AccessError::Random)?;
        let credentials = Credentials::new(Ipv4Addr::LOCALHOST.into(), token);
        Ok(Self(credentials.map_err(AccessError::Certificate)?))
    }

    /// The bearer token: 64 hexadecimal digits.
    pub fn token(&self) -> &str {
        self.0.token()
    }

    /// The server's side of TLS, with the certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.acceptor()
    }

    /// Writes a kubeconfig for the API at `address`, with namespace `default`.
    ///
    /// # Errors
    /// [`AccessError::Write`].
    pub fn write_kubeconfig(&self, file: &mut Held, address: SocketAddr) -> Result<(), AccessError> {
        file.write(&format!("{MARK}\n{}", self.0.kubeconfig(address, "default")))
    }

    /// Writes the token and a line break.
    ///
    /// # Errors
    /// [`AccessError::Write`].
    pub fn write_token(&self, file: &mut Held) -> Result<(), AccessError> {
        file.write(&format!("{}\n", self.token()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_is_its_owners_alone_even_where_a_file_stood_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/kubeconfig");
        fs::create_dir_all(folder.path().join("below")).unwrap();
        fs::write(&path, format!("{MARK}\n{{}}")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let access = Access::new().unwrap();
        let mut file = Held::take(&path, Content::Kubeconfig).unwrap();
        access.write_kubeconfig(&mut file, "127.0.0.1:8000".parse().unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let written: serde_json::Value = sahasra_crds::yaml::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(written["clusters"][0]["cluster"]["server"], "https://127.0.0.1:8000");
        assert_eq!(written["users"][0]["user"]["token"], access.token());
        assert_eq!(access.token().len(), TOKEN_DIGITS);
        assert_ne!(access.token(), Access::new().unwrap().token());
        file.remove(&access);
        assert!(!path.exists());
        let mut file = Held::take(&path, Content::Token).unwrap();
        access.write_token(&mut file).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", access.token()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_file_of_a_pool_that_runs_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let access = Access::new().unwrap();
        let mut first = Held::take(&path, Content::Token).unwrap();
        access.write_token(&mut first).unwrap();
        let refused = Held::take(&path, Content::Token).unwrap_err().to_string();
        assert!(refused.contains("--kubeconfig"), "{refused}");
        assert!(fs::read_to_string(&path).unwrap().contains(access.token()), "it is whole");
        // One that was killed leaves its file, and no lock on it.
        drop(first);
        let second = Held::take(&path, Content::Token).unwrap();
        let other = Access::new().unwrap();
        second.remove(&other);
        assert!(path.exists(), "it holds another's token");
    }

    #[test]
    fn a_file_that_the_program_did_not_write_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (kubeconfig, token_file) = (folder.path().join("config"), folder.path().join("token"));
        let access = Access::new().unwrap();
        let refused = || Held::take_both(&kubeconfig, &token_file, &access).unwrap_err().to_string();
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

        let told = Held::take_both(&kubeconfig, &folder.path().join("./config"), &access)
            .unwrap_err()
            .to_string();
        assert!(told.contains("--kubeconfig and --token-file name the same file"), "{told}");
        assert!(!kubeconfig.exists());

        // What a run that was killed left behind is taken.
        let address = "127.0.0.1:8000".parse().unwrap();
        for _ in 0..2 {
            let (mut config, mut token) = Held::take_both(&kubeconfig, &token_file, &access).unwrap();
            access.write_kubeconfig(&mut config, address).unwrap();
            access.write_token(&mut token).unwrap();
        }
    }
}
