//! `sahasra connect` and `sahasra disconnect`: the pool on which this user's CUDA programs run.

use std::{
    io::{self, BufRead, IsTerminal},
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::Uri;
use sahasra_client::{Connection, Error, Gateway, Token, Trust};
use sahasra_error_chain::causes;

use crate::{args::ConnectArgs, exec, exit::Exit, output, token};

mod certificate;
mod hidden_input;

use hidden_input::HiddenInput;

/// Timeout of the check that a server answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
/// Namespace whose sessions are listed for the check.
const NAMESPACE: &str = "default";

/// A reason why a command did nothing.
struct Refusal(Exit, String);

fn invalid(reason: impl Into<String>) -> Refusal {
    Refusal(Exit::Refused, reason.into())
}

fn failed(reason: impl Into<String>) -> Refusal {
    Refusal(Exit::Failed, reason.into())
}

pub(crate) fn connect(arguments: &ConnectArgs) -> Exit {
    let prepared = prepare(arguments);
    let (url, token, folder) = match prepared {
        Ok(prepared) => prepared,
        Err(Refusal(exit, reason)) => return exit.because(&reason),
    };
    crate::on_runtime(async {
        match check_and_write(arguments, &url, &token, &folder).await {
            Ok(()) => output::print(&connected(&url)),
            Err(Refusal(exit, reason)) => exit.because(&reason),
        }
    })
}

pub(crate) fn disconnect() -> Exit {
    let Some(folder) = Connection::folder() else {
        return Exit::Failed.because(NO_FOLDER);
    };
    match Connection::remove(&folder) {
        Ok(true) => output::print("Disconnected.\n"),
        Ok(false) => output::print("Not connected.\n"),
        Err(error) => Exit::Failed.because(&format!("failed to remove the files in {}: {error}", folder.display())),
    }
}

const NO_FOLDER: &str = "no folder for the user's configuration: set HOME or XDG_CONFIG_HOME";

/// URL of the server, token, and folder of the files to write.
fn prepare(arguments: &ConnectArgs) -> Result<(String, String, PathBuf), Refusal> {
    let folder = Connection::folder().ok_or_else(|| failed(NO_FOLDER))?;
    // An address that cannot be used is rejected before the token is asked for.
    url(&arguments.server, true)?;
    let token = read_token(arguments.token_file.as_deref())?;
    let url = url(&arguments.server, token::fingerprint_in(&token).is_some())?;
    Ok((url, token, folder))
}

/// URL of a server: `HOST:PORT` is one of `sahasra serve`, if the token is, or of `sahasra up` on this machine.
fn url(server: &str, is_served: bool) -> Result<String, Refusal> {
    const FORM: &str = "expected HOST:PORT as sahasra serve prints it, or the URL of a gateway such as https://gateway.example";
    let wrong = || invalid(format!("invalid server {server:?}: {FORM}"));
    let (scheme, rest) = server
        .split_once("://")
        .map_or((None, server), |(scheme, rest)| (Some(scheme), rest));
    let text = format!("{}://{}", scheme.unwrap_or("https"), rest.trim_end_matches('/'));
    let parsed: Uri = text.parse().map_err(|_| wrong())?;
    let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    if parsed.path_and_query().is_some_and(|path| path.as_str() != "/") || (scheme.is_none() && parsed.port().is_none()) {
        return Err(wrong());
    }
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    match scheme {
        Some("https") => Ok(text),
        Some("http") if is_here => Ok(text),
        Some("http") => Err(invalid(format!("{server} would get the token unencrypted: use https://"))),
        Some(_) => Err(wrong()),
        None if is_served => Ok(text),
        None if is_here => Ok(format!("http://{}", rest.trim_end_matches('/'))),
        None => Err(invalid(format!(
            "the token is not one of sahasra serve: copy all of the file that it names, or pass the URL of a gateway, as in {text}"
        ))),
    }
}

/// The token in a file, or in the first line of standard input.
fn read_token(file: Option<&Path>) -> Result<String, Refusal> {
    let text = match file {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            read.map_err(|error| invalid(format!("failed to read --token-file {}: {error}", path.display())))?
        }
        None => line_of_input().map_err(|error| failed(format!("failed to read the token from standard input: {error}")))?,
    };
    let token = text.trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    match is_token {
        true => Ok(token.to_owned()),
        false => Err(invalid(
            "no token: pass the file with --token-file, or paste the token that sahasra serve names",
        )),
    }
}

/// Reads a line. A terminal does not show it.
fn line_of_input() -> io::Result<String> {
    let stdin = io::stdin();
    let hidden = stdin.is_terminal().then(HiddenInput::begin).transpose()?;
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    drop(hidden);
    read.map(|_| line)
}

async fn check_and_write(arguments: &ConnectArgs, url: &str, token: &str, folder: &Path) -> Result<(), Refusal> {
    let checked = tokio::time::timeout(ANSWERS_WITHIN, check(arguments, url, token)).await;
    let trust = checked.map_err(|_| failed(format!("{} does not answer: {REACH}", authority(url))))??;
    Connection::write(folder, url, token, &trust).map_err(|error| failed(format!("failed to write to {}: {error}", folder.display())))
}

const REACH: &str = "check that sahasra serve runs there, and that no firewall closes its port";
/// The same for a server on this machine that was called without TLS, because the token has no fingerprint.
const REACH_PLAIN: &str = "check that the server runs; if it is sahasra serve, the token is incomplete: copy all of the file that it names";

/// Checks that the server is the token's and accepts the token. Returns the certificates that verify it.
async fn check(arguments: &ConnectArgs, url: &str, token: &str) -> Result<Trust, Refusal> {
    let authority = authority(url);
    let trust = match (token::fingerprint_in(token), &arguments.ca_file) {
        (Some(fingerprint), _) if url.starts_with("https:") => {
            let certificate = certificate::of_server(authority, fingerprint).await;
            Trust::Server(certificate.map_err(|reason| failed(format!("{authority}: {reason}")))?)
        }
        (_, Some(path)) => {
            let text = std::fs::read_to_string(path);
            Trust::Authority(text.map_err(|error| invalid(format!("failed to read --ca-file {}: {error}", path.display())))?)
        }
        (_, None) => Trust::System,
    };
    let gateway = Gateway::trusting(url, Token::text(token), &trust).map_err(|error| invalid(causes(&error)))?;
    match gateway.sessions(NAMESPACE).await {
        Ok(_) => Ok(trust),
        Err(Error::Http { status: 401, .. }) => Err(failed(format!(
            "{authority} does not accept the token: copy it again from the file that sahasra serve names there"
        ))),
        // A token that may use sessions need not be allowed to list them.
        Err(Error::Http { status: 403, .. }) => Ok(trust),
        Err(error @ Error::Unreachable { .. }) => {
            let remedy = if url.starts_with("http:") { REACH_PLAIN } else { REACH };
            Err(failed(format!("{}: {remedy}", causes(&error))))
        }
        Err(error) => Err(failed(format!("{authority} is not a gateway of Sahasra: {}", causes(&error)))),
    }
}

fn authority(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, authority)| authority)
}

fn connected(url: &str) -> String {
    let libraries = exec::libraries(None).map_or_else(|_| "FOLDER".to_owned(), |folder| folder.display().to_string());
    let note = match libraries.as_str() {
        "FOLDER" => "where FOLDER has libcuda.so.1 of this version (crates/cuda-driver/library in the sources builds it)\n",
        _ => "",
    };
    format!(
        "Connected to {}. CUDA programs of this user run there with\n\n\
         \x20 export LD_LIBRARY_PATH={libraries}\n\n{note}\
         sahasra disconnect undoes this.\n",
        authority(url)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(server: &str, is_served: bool) -> Result<String, String> {
        url(server, is_served).map_err(|Refusal(_, reason)| reason)
    }

    #[test]
    fn an_address_is_a_server_and_a_url_a_gateway() {
        for (server, is_served, expected) in [
            ("gpu.example:4000", true, "https://gpu.example:4000"),
            ("[2001:db8::1]:4000", true, "https://[2001:db8::1]:4000"),
            ("127.0.0.1:8000", false, "http://127.0.0.1:8000"),
            ("localhost:8000/", false, "http://localhost:8000"),
            ("http://localhost:8000", false, "http://localhost:8000"),
            ("https://gateway.example/", false, "https://gateway.example"),
        ] {
            assert_eq!(outcome(server, is_served).as_deref(), Ok(expected), "{server}");
        }
        for (server, is_served, reason) in [
            ("gpu.example", true, "expected HOST:PORT"),
            ("", true, "expected HOST:PORT"),
            (":4000", true, "expected HOST:PORT"),
            ("ftp://gpu.example", true, "expected HOST:PORT"),
            ("https://gateway.example/default/mine", true, "expected HOST:PORT"),
            ("http://gpu.example:4000", true, "unencrypted: use https://"),
            ("gpu.example:4000", false, "not one of sahasra serve"),
        ] {
            let refused = outcome(server, is_served).unwrap_err();
            assert!(refused.contains(reason), "{server}: {refused}");
        }
    }

    #[test]
    fn a_token_is_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = || read_token(Some(&path)).map_err(|Refusal(_, reason)| reason);
        assert!(read().unwrap_err().contains("--token-file"));
        std::fs::write(&path, "secret\n").unwrap();
        assert_eq!(read().as_deref(), Ok("secret"));
        for wrong in ["", "\n", "two words", "two\nlines"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read().unwrap_err().starts_with("no token"), "{wrong:?}");
        }
    }
}
