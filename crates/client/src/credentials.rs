//! The client's bearer token, and the places where it is looked for.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use http::HeaderValue;
use serde::Deserialize;
use url::{Host, Url};

use crate::{Connection, Error};

/// Path at which Kubernetes mounts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Variables with a token, or with the name of its file.
const TOKEN: &str = "SAHASRA_TOKEN";
const TOKEN_FILE: &str = "SAHASRA_TOKEN_FILE";

/// A bearer token, or none.
#[derive(Clone, Default)]
pub struct Token(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    Absent,
    Text(String),
    /// Read for every connection, because the file may be replaced.
    File(PathBuf),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Source::Absent => formatter.write_str("Token(absent)"),
            Source::Text(_) => formatter.write_str("Token(..)"),
            Source::File(path) => write!(formatter, "Token(file {})", path.display()),
        }
    }
}

impl Token {
    pub fn text(token: impl Into<String>) -> Self {
        Self(Source::Text(token.into()))
    }

    /// Returns a token that is read from this file for every connection.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// Returns the first token found in: `SAHASRA_TOKEN`; the file named by `SAHASRA_TOKEN_FILE`; for the URL of the user's [`Connection`], its
    /// token as it is now; for a loopback URL, the file that `sahasra up` wrote for the URL's port; the current user of the kubeconfig
    /// (`KUBECONFIG`, or `~/.kube/config`); the service account of the pod. Without any of these, no token is sent. Fails if the token of a
    /// variable is invalid, or a kubeconfig cannot be read.
    pub fn find(url: &str) -> Result<Self, Error> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from);
        let state = variable("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(".local/state")))
            .map(|folder| folder.join("sahasra"));
        Places {
            token: variable(TOKEN),
            token_file: variable(TOKEN_FILE).map(PathBuf::from),
            connection: Connection::to(url).and_then(|connection| connection.token()),
            state,
            kubeconfigs: match env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
                Some(list) => env::split_paths(&list).collect(),
                None => home.iter().map(|home| home.join(".kube/config")).collect(),
            },
            service_account: PathBuf::from(SERVICE_ACCOUNT),
        }
        .find(url)
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.0, Source::Absent)
    }

    pub(crate) fn bearer(&self) -> Result<Option<HeaderValue>, Error> {
        let text = match &self.0 {
            Source::Absent => return Ok(None),
            Source::Text(text) => text.clone(),
            Source::File(path) => read(path)?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::Configuration("the token is empty".to_owned()));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {text}"))
            .map_err(|_| Error::Configuration("invalid characters in the token".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

struct Places {
    token: Option<String>,
    token_file: Option<PathBuf>,
    connection: Option<PathBuf>,
    state: Option<PathBuf>,
    kubeconfigs: Vec<PathBuf>,
    service_account: PathBuf,
}

impl Places {
    fn find(self, url: &str) -> Result<Token, Error> {
        if let Some(token) = self.token {
            let token = Token::text(token);
            return match token.bearer() {
                Ok(_) => Ok(token),
                Err(error) => Err(Error::Configuration(format!("{TOKEN}: {error}: set it to a token, or unset it"))),
            };
        }
        if let Some(path) = self.token_file {
            let shown = path.display().to_string();
            let token = Token::file(path);
            return match token.bearer() {
                Ok(_) => Ok(token),
                Err(error) => Err(Error::Configuration(format!(
                    "{TOKEN_FILE}={shown:?}: {error}: name a file with a token, or unset it"
                ))),
            };
        }
        // Not read again later: the file may then be of another connection.
        if let Some(path) = self.connection {
            return read(&path).map(Token::text);
        }
        if let (Some(port), Some(state)) = (port_here(url), self.state) {
            let path = state.join(format!("token-{port}"));
            if path.exists() {
                return Ok(Token::file(path));
            }
        }
        for path in self.kubeconfigs {
            if path.exists()
                && let Some(token) = from_kubeconfig(&path)?
            {
                return Ok(token);
            }
        }
        if self.service_account.exists() {
            return Ok(Token::file(self.service_account));
        }
        Ok(Token::default())
    }
}

/// Returns the port if the URL's host is a loopback address.
fn port_here(url: &str) -> Option<u16> {
    let url = Url::parse(url).ok()?;
    if is_here(&url) { url.port_or_known_default() } else { None }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::Configuration(format!("failed to read {}: {error}", path.display())))
}

/// Fields of a kubeconfig that lead to the token of its current user.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<Named>,
    users: Vec<Named>,
}

/// A context or a user.
#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(default, alias = "context", alias = "user")]
    fields: Fields,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Fields {
    user: String,
    token: Option<String>,
    token_file: Option<PathBuf>,
}

/// Returns the token of the current context's user, if the user has one.
fn from_kubeconfig(path: &Path) -> Result<Option<Token>, Error> {
    let config: Kubeconfig = serde_saphyr::from_str(&read(path)?)
        .map_err(|error| Error::Configuration(format!("invalid kubeconfig {}: {error}", path.display())))?;
    let find = |list: Vec<Named>, name: &str| list.into_iter().find(|item| item.name == name).map(|item| item.fields);
    let context = find(config.contexts, &config.current_context);
    let user = context.and_then(|context| find(config.users, &context.user));
    let file = |file| Token::file(path.parent().unwrap_or(Path::new("")).join(file));
    Ok(user.and_then(|user| {
        user.token
            .filter(|token| !token.trim().is_empty())
            .map(Token::text)
            .or_else(|| user.token_file.map(file))
    }))
}

/// Whether the host of a URL is a loopback address.
pub(crate) fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: two
contexts:
- {name: one, context: {cluster: c, user: first}}
- {name: two, context: {cluster: c, user: second, namespace: default}}
users:
- name: first
  user: {token: not-this}
- name: second
  user:
    token: TOKEN
";

    fn bearer(token: &Token) -> String {
        token.bearer().unwrap().unwrap().to_str().unwrap().to_owned()
    }

    fn nothing() -> Places {
        Places {
            token: None,
            token_file: None,
            connection: None,
            state: None,
            kubeconfigs: Vec::new(),
            service_account: PathBuf::from("/nowhere"),
        }
    }

    #[test]
    fn the_first_token_found_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let file = write("file", "of-the-file\n");
        write("token-8000", "of-this-machine\n");
        let connected = write("connected", "of-the-connection\n");
        let kubeconfig = write("config", &KUBECONFIG.replace("TOKEN", "of-the-kubeconfig"));
        let state = Some(folder.path().to_owned());
        let everything = || Places {
            token: Some("given".to_owned()),
            token_file: Some(file.clone()),
            connection: Some(connected.clone()),
            state: state.clone(),
            kubeconfigs: vec![folder.path().join("missing"), kubeconfig.clone()],
            service_account: PathBuf::from("/nowhere"),
        };
        let here = "http://127.0.0.1:8000";
        assert_eq!(bearer(&everything().find(here).unwrap()), "Bearer given");
        let places = Places {
            token: None,
            ..everything()
        };
        assert_eq!(bearer(&places.find(here).unwrap()), "Bearer of-the-file");
        let places = Places {
            token: None,
            token_file: None,
            ..everything()
        };
        assert_eq!(bearer(&places.find(here).unwrap()), "Bearer of-the-connection");
        let places = || Places {
            token: None,
            token_file: None,
            connection: None,
            ..everything()
        };
        assert_eq!(bearer(&places().find(here).unwrap()), "Bearer of-this-machine");
        assert_eq!(bearer(&places().find("http://127.0.0.1:8001").unwrap()), "Bearer of-the-kubeconfig");
        assert_eq!(
            bearer(&places().find("https://gateway.example:8000").unwrap()),
            "Bearer of-the-kubeconfig"
        );
        assert!(nothing().find(here).unwrap().bearer().unwrap().is_none());
    }

    #[test]
    fn a_token_file_is_read_again_and_a_missing_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let places = || Places {
            token_file: Some(path.clone()),
            ..nothing()
        };
        for (text, told) in [
            (None, "failed to read"),
            (Some(" \n"), "the token is empty"),
            (Some("two\nlines"), "invalid characters"),
        ] {
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let reason = places().find("http://127.0.0.1:1").unwrap_err().to_string();
            assert!(reason.starts_with("SAHASRA_TOKEN_FILE=") && reason.contains(told), "{reason}");
        }
        fs::write(&path, "first").unwrap();
        let token = places().find("http://127.0.0.1:1").unwrap();
        fs::write(&path, "second").unwrap();
        assert_eq!(bearer(&token), "Bearer second");
    }

    #[test]
    fn a_token_is_not_shown() {
        assert!(!format!("{:?}", Token::text("secret")).contains("secret"));
        assert!(Token::text("two\nlines").bearer().is_err());
    }
}
