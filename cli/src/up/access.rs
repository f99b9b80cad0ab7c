//! Who may use the API of a pool that stays up: whoever can read the kubeconfig.
//!
//! kubectl sends a token over TLS only, so the API has a certificate of its own, made anew at each start. Token and
//! certificate stand in a kubeconfig that the user alone can read, the token by itself in a file beside it: clients of the
//! gateway send it over plain HTTP on loopback, and need no more.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sahasra_local::{Credentials, ServeError};
use tokio_rustls::TlsAcceptor;

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Why there is no access.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No randomness.
    #[error("no random source for a token")]
    Random(#[source] io::Error),
    /// No certificate.
    #[error("no certificate can be had")]
    Certificate(#[source] ServeError),
    /// The kubeconfig or the token's file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A token and a certificate.
pub struct Access(Credentials);

impl Access {
    /// A new token, and a new certificate for loopback.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn new() -> Result<Self, AccessError> {
        let mut bytes = [0u8; TOKEN_BYTES];
        let filled = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
        filled.map_err(AccessError::Random)?;
        let mut token = String::with_capacity(2 * TOKEN_BYTES);
        for byte in bytes {
            let _ = write!(token, "{byte:02x}");
        }
        let credentials = Credentials::new(Ipv4Addr::LOCALHOST.into(), token);
        Ok(Self(credentials.map_err(AccessError::Certificate)?))
    }

    /// What a client sends.
    pub fn token(&self) -> &str {
        self.0.token()
    }

    /// For the accept loop.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.acceptor()
    }

    /// Writes a kubeconfig for the API at `address`, readable by the user alone.
    ///
    /// # Errors
    /// [`AccessError::Write`].
    pub fn write_kubeconfig(&self, path: &Path, address: SocketAddr) -> Result<(), AccessError> {
        write_for_the_user_alone(path, &self.0.kubeconfig(address, "default"))
    }

    /// Writes the token and a line break, readable by the user alone.
    ///
    /// # Errors
    /// [`AccessError::Write`].
    pub fn write_token(&self, path: &Path) -> Result<(), AccessError> {
        write_for_the_user_alone(path, &format!("{}\n", self.token()))
    }
}

fn write_for_the_user_alone(path: &Path, text: &str) -> Result<(), AccessError> {
    let failed = |source| AccessError::Write {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    // One that stood there already keeps its own mode.
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// Removes a file with the token unless someone else has written it anew.
pub fn remove(path: &Path, access: &Access) {
    let ours = fs::read_to_string(path).is_ok_and(|text| text.contains(access.token()));
    if ours && let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the file with the token was not removed");
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
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let access = Access::new().unwrap();
        access.write_kubeconfig(&path, "127.0.0.1:8000".parse().unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let written: serde_json::Value = sahasra_crds::yaml::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(written["clusters"][0]["cluster"]["server"], "https://127.0.0.1:8000");
        assert_eq!(written["users"][0]["user"]["token"], access.token());
        assert_eq!(access.token().len(), 64);
        assert_ne!(access.token(), Access::new().unwrap().token());
        let other = Access::new().unwrap();
        remove(&path, &other);
        assert!(path.exists(), "another start's file stays");
        remove(&path, &access);
        assert!(!path.exists());
        access.write_token(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", access.token()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
