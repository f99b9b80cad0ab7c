//! The pool to which `sahasra connect` has connected this user: files in the user's folder of configurations.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use url::Url;

use crate::Error;

/// File with the URL of the pool's gateway in its first line.
const HOST: &str = "host";
/// File with the token for it, which only its owner can read.
const TOKEN: &str = "token";
/// File with the pool's own certificate in PEM format, valid for [`SERVER_NAME`].
const SERVER: &str = "server.pem";
/// File with CA certificates in PEM format that verify the gateway's certificate for the host of its URL.
const AUTHORITY: &str = "ca.pem";

/// Name in the certificate of `sahasra serve`, whose clients verify the certificate itself: the server may have any address.
pub const SERVER_NAME: &str = "sahasra";

/// Certificates with which a gateway is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the system.
    #[default]
    System,
    /// CA certificates in PEM format.
    Authority(String),
    /// The server's own certificate in PEM format, valid for [`SERVER_NAME`].
    Server(String),
}

/// A gateway and the credentials for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    folder: PathBuf,
    /// First line of the file, the URL of the gateway.
    pub url: String,
}

impl Connection {
    /// The folder of the files: `sahasra` in `XDG_CONFIG_HOME` or `~/.config`. `None` if neither variable is set.
    pub fn folder() -> Option<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let configuration = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
        Some(configuration.join("sahasra"))
    }

    /// The connection of this user, if there is one.
    pub fn find() -> Option<Self> {
        Self::read(Self::folder()?)
    }

    /// The connection of this user, if it is one to the gateway at this URL.
    pub fn to(url: &str) -> Option<Self> {
        Self::find().filter(|connection| connection.leads_to(url))
    }

    fn read(folder: PathBuf) -> Option<Self> {
        let text = fs::read_to_string(folder.join(HOST)).ok()?;
        let url = text.lines().next()?.trim().to_owned();
        (!url.is_empty()).then_some(Self { folder, url })
    }

    /// URL of the gateway, unless the file was written by hand and has something else, such as a session.
    pub fn gateway(&self) -> Option<&str> {
        let url = Url::parse(&self.url).ok()?;
        (url.has_host() && url.path() == "/").then_some(self.url.as_str())
    }

    fn leads_to(&self, url: &str) -> bool {
        let origin = |url: &str| Url::parse(url).ok().filter(Url::has_host).map(|url| url.origin());
        origin(&self.url).is_some_and(|own| origin(url) == Some(own))
    }

    /// Path of the token, if there is one.
    pub fn token(&self) -> Option<PathBuf> {
        Some(self.folder.join(TOKEN)).filter(|path| path.exists())
    }

    /// Certificates with which the gateway is verified. Fails with [`Error::Configuration`] if they cannot be read.
    pub fn trust(&self) -> Result<Trust, Error> {
        let read = |name: &str| {
            let path = self.folder.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::Configuration(format!("failed to read {}: {error}", path.display()))),
            }
        };
        if let Some(certificate) = read(SERVER)? {
            return Ok(Trust::Server(certificate));
        }
        Ok(read(AUTHORITY)?.map_or(Trust::System, Trust::Authority))
    }

    /// Writes the files of a connection into a folder, which is created if it does not exist. Each file replaces its predecessor as a whole,
    /// that with the URL last.
    pub fn write(folder: &Path, url: &str, token: &str, trust: &Trust) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
        let (server, authority) = match trust {
            Trust::System => (None, None),
            Trust::Authority(certificates) => (None, Some(certificates)),
            Trust::Server(certificate) => (Some(certificate), None),
        };
        // Until the new URL is there, no program may send the new token to the former one.
        if Self::read(folder.to_owned()).is_some_and(|former| former.url != url) {
            fs::remove_file(folder.join(HOST))?;
        }
        for (name, certificates) in [(SERVER, server), (AUTHORITY, authority)] {
            match certificates {
                Some(text) => replace(folder, name, text)?,
                None => remove(&folder.join(name)).map(|_| ())?,
            }
        }
        replace(folder, TOKEN, &format!("{token}\n"))?;
        replace(folder, HOST, &format!("{url}\n"))
    }

    /// Removes the files of a connection from a folder. Returns whether there was one.
    pub fn remove(folder: &Path) -> io::Result<bool> {
        let was_connected = remove(&folder.join(HOST))?;
        for name in [TOKEN, SERVER, AUTHORITY] {
            remove(&folder.join(name))?;
        }
        Ok(was_connected)
    }
}

/// Writes a file that only its owner can read, and gives it its name when it is complete.
fn replace(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let part = folder.join(format!(".{name}.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&part, folder.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Removes a file. Returns whether there was one.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_connection_is_replaced_and_removed_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("config/sahasra");
        assert!(!Connection::remove(&folder).unwrap());
        let server = Trust::Server("certificate".to_owned());
        Connection::write(&folder, "https://192.0.2.7:4000", "secret", &server).unwrap();
        let connection = Connection::read(folder.clone()).unwrap();
        assert_eq!(connection.trust().unwrap(), server);
        for file in fs::read_dir(&folder).unwrap().flatten() {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
        assert_eq!(fs::read_to_string(connection.token().unwrap()).unwrap(), "secret\n");

        Connection::write(&folder, "https://gateway.example", "other", &Trust::System).unwrap();
        let connection = Connection::read(folder.clone()).unwrap();
        assert_eq!(
            (connection.url.as_str(), connection.trust().unwrap()),
            ("https://gateway.example", Trust::System)
        );
        assert!(Connection::remove(&folder).unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(Connection::read(folder), None);
    }

    #[test]
    fn credentials_are_for_one_gateway_only() {
        let connection = Connection {
            folder: PathBuf::new(),
            url: "https://gpu.example:4000".to_owned(),
        };
        for right in [
            "https://gpu.example:4000",
            "https://gpu.example:4000/",
            "https://gpu.example:4000/default/mine",
        ] {
            assert!(connection.leads_to(right), "{right}");
        }
        assert_eq!(connection.gateway(), Some("https://gpu.example:4000"));
        for wrong in [
            "http://gpu.example:4000",
            "https://gpu.example",
            "https://other.example:4000",
            "gpu.example:4000",
            "",
        ] {
            assert!(!connection.leads_to(wrong), "{wrong}");
        }
    }
}
