//! Token and certificate of `sahasra serve`. They stay the same when it starts again, so that clients stay connected.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sahasra_client::SERVER_NAME;
use sahasra_local::{Certificate, CredentialsError};

use crate::token;

const TOKEN: &str = "token";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
/// Permissions of a file that only its owner can read and write.
const OWNER_ONLY: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub(super) enum IdentityError {
    #[error("failed to generate a token")]
    Random(#[source] io::Error),
    #[error("failed to use the certificate in --credentials-dir {}: remove the folder for a new one", folder.display())]
    Certificate { folder: PathBuf, source: CredentialsError },
    #[error("failed to write to --credentials-dir {}", folder.display())]
    Write { folder: PathBuf, source: io::Error },
    #[error("failed to read {}: remove its folder for new credentials, or specify another with --credentials-dir", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} can be read by other users: run chmod 600 on it, or remove its folder for new credentials", path.display())]
    Readable { path: PathBuf },
    #[error("{} belongs to another user: remove its folder for new credentials, or specify another with --credentials-dir", path.display())]
    Owner { path: PathBuf },
    #[error("{} is not the token of the certificate beside it: remove the folder for new credentials", path.display())]
    Mismatch { path: PathBuf },
}

pub(super) struct Identity {
    pub token: String,
    pub certificate: Certificate,
    pub token_file: PathBuf,
}

impl Identity {
    /// Reads the files of a folder. If the folder does not exist, it is created with a new token and a new certificate.
    pub(super) fn open(folder: &Path) -> Result<Self, IdentityError> {
        if !folder.exists() {
            create(folder)?;
        }
        let token_file = folder.join(TOKEN);
        let certificate = Certificate {
            certificate: read(&folder.join(CERTIFICATE))?,
            key: read_secret(&folder.join(KEY))?,
        };
        let token = read_secret(&token_file)?.trim().to_owned();
        let der = certificate.der().map_err(failed(folder))?;
        if token::fingerprint_in(&token) != Some(token::fingerprint(&der).as_str()) {
            return Err(IdentityError::Mismatch { path: token_file });
        }
        Ok(Self {
            token,
            certificate,
            token_file,
        })
    }
}

/// Creates a folder with all files, which gets its name when it is complete.
fn create(folder: &Path) -> Result<(), IdentityError> {
    let certificate = Certificate::for_name(SERVER_NAME).map_err(failed(folder))?;
    let der = certificate.der().map_err(failed(folder))?;
    let token = format!("{}\n", token::for_server(&der).map_err(IdentityError::Random)?);
    let files = [(KEY, &certificate.key), (CERTIFICATE, &certificate.certificate), (TOKEN, &token)];
    let written = (|| {
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        fs::create_dir_all(above)?;
        // Only its owner can enter this folder.
        let temporary = tempfile::Builder::new().prefix(".serve.").tempdir_in(above)?;
        for (name, text) in files {
            let path = temporary.path().join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(OWNER_ONLY))?;
        }
        match fs::rename(temporary.path(), folder) {
            // Another process has created it in the meantime.
            Err(_) if folder.join(TOKEN).exists() => Ok(()),
            renamed => renamed,
        }
    })();
    written.map_err(|source| IdentityError::Write {
        folder: folder.to_owned(),
        source,
    })
}

fn read(path: &Path) -> Result<String, IdentityError> {
    fs::read_to_string(path).map_err(|source| IdentityError::Read {
        path: path.to_owned(),
        source,
    })
}

fn read_secret(path: &Path) -> Result<String, IdentityError> {
    let (text, path) = (read(path)?, path.to_owned());
    match fs::metadata(&path) {
        Ok(data) if data.permissions().mode() & 0o077 != 0 => Err(IdentityError::Readable { path }),
        // Another user could know, or change, what is in it.
        Ok(data) if data.uid() != rustix::process::geteuid().as_raw() => Err(IdentityError::Owner { path }),
        Ok(_) => Ok(text),
        Err(source) => Err(IdentityError::Read { path, source }),
    }
}

fn failed(folder: &Path) -> impl Fn(CredentialsError) -> IdentityError {
    let folder = folder.to_owned();
    move |source| IdentityError::Certificate {
        folder: folder.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_stay_and_are_private() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("sahasra/serve");
        let first = Identity::open(&folder).unwrap();
        let second = Identity::open(&folder).unwrap();
        assert_eq!((&first.token, &first.certificate.key), (&second.token, &second.certificate.key));
        assert!(second.certificate.acceptor().is_ok());
        for file in fs::read_dir(&folder).unwrap().flatten() {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, OWNER_ONLY, "{file:?}");
        }
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1);

        fs::set_permissions(&first.token_file, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Identity::open(&folder).err().unwrap().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&first.token_file, fs::Permissions::from_mode(OWNER_ONLY)).unwrap();
        fs::write(&first.token_file, token::for_server(b"another").unwrap()).unwrap();
        let refused = Identity::open(&folder).err().unwrap().to_string();
        assert!(refused.contains("not the token of the certificate"), "{refused}");
        fs::remove_file(&first.token_file).unwrap();
        assert!(matches!(Identity::open(&folder), Err(IdentityError::Read { .. })));
    }
}
