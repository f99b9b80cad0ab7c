//! Tests of the signals of `sahasra exec`, with a gateway whose answers the tests give.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::{Value, json};

use crate::program::{Limit, Sahasra, WITHIN, signal, wait};

/// A request whose answer is due.
struct Request {
    method: String,
    stream: TcpStream,
}

impl Request {
    fn answer(mut self, body: &Value) {
        let body = body.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        self.stream.write_all((head + &body).as_bytes()).expect("it reads");
    }
}

/// `sahasra exec` with its gateway.
struct Exec {
    child: Child,
    stderr: BufReader<ChildStderr>,
    gateway: TcpListener,
    _home: tempfile::TempDir,
    _limit: Limit,
}

impl Exec {
    fn begin(prepare: impl Fn(Command) -> Command, program: &[&str]) -> Self {
        let gateway = TcpListener::bind("127.0.0.1:0").expect("a port");
        gateway.set_nonblocking(true).expect("a socket");
        let home = tempfile::tempdir().expect("a folder");
        fs::write(home.path().join("libcuda.so.1"), "").expect("written");
        let url = format!("http://{}", gateway.local_addr().expect("bound"));
        let libraries = home.path().to_str().expect("UTF-8");
        let arguments = ["exec", "--gateway", &url, "--libraries", libraries, "--"];
        let mut command = prepare(Sahasra::new(arguments.iter().chain(program)).command());
        command
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("sahasra runs");
        Self {
            _limit: Limit::of(&child),
            stderr: BufReader::new(child.stderr.take().expect("piped")),
            child,
            gateway,
            _home: home,
        }
    }

    fn request(&self) -> Request {
        let (stream, _) = wait("a request", || self.gateway.accept().ok());
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(WITHIN)).expect("a socket");
        let mut reader = BufReader::new(&stream);
        let (mut method, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a head");
            match line.trim_end().split_once(": ") {
                _ if line.trim_end().is_empty() => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().expect("a number"),
                _ if method.is_empty() => method = line.split(' ').next().unwrap_or_default().to_owned(),
                _ => {}
            }
        }
        reader.read_exact(&mut vec![0; length]).expect("a body");
        Request { method, stream }
    }

    /// The next request, which has this method.
    fn expect(&self, method: &str) -> Request {
        let request = self.request();
        assert_eq!(request.method, method);
        request
    }

    fn create(&self) {
        self.expect("POST").answer(&json!({"metadata": {"name": "exec-1"}}));
    }

    fn place(&self) {
        let conditions = json!([{"type": "Placed", "status": "True"}]);
        self.expect("GET")
            .answer(&json!({"metadata": {"name": "exec-1"}, "status": {"conditions": conditions}}));
    }

    fn delete(&self) {
        self.expect("DELETE").answer(&json!({}));
    }

    /// Sends a SIGINT, and waits until the program reports it.
    fn interrupt(&mut self) {
        signal(self.child.id(), "INT");
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("a text");
        assert!(line.ends_with("a second signal stops at once\n"), "{line}");
    }

    /// The exit code, and the rest of what the program has said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("a text");
        (self.child.wait().expect("it ends").code(), said)
    }
}

#[test]
fn a_session_is_deleted_after_an_interrupt_while_it_is_created() {
    let mut exec = Exec::begin(|command| command, &["true"]);
    let creation = exec.expect("POST");
    exec.interrupt();
    creation.answer(&json!({"metadata": {"name": "exec-1"}}));
    exec.delete();
    assert_eq!(exec.end(), (Some(130), String::new()));
}

#[test]
fn a_second_signal_ends_the_creation_at_once() {
    let mut exec = Exec::begin(|command| command, &["true"]);
    let _creation = exec.expect("POST");
    exec.interrupt();
    signal(exec.child.id(), "TERM");
    let (code, said) = exec.end();
    assert!(
        code == Some(143) && said.contains("a session may have been created"),
        "{code:?} {said}"
    );
}

#[test]
fn a_second_signal_ends_the_deletion_at_once_and_the_session_is_named() {
    let mut exec = Exec::begin(|command| command, &["true"]);
    exec.create();
    exec.place();
    let _deletion = exec.expect("DELETE");
    exec.interrupt();
    signal(exec.child.id(), "INT");
    let (code, said) = exec.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("session default/exec-1 may not be deleted"), "{said}");
    assert!(said.contains("/v1/namespaces/default/sessions/exec-1"), "{said}");
}

#[test]
fn a_program_inherits_that_interrupts_are_ignored() {
    for (option, code) in [("--ignore-signal=INT", 7), ("--default-signal=INT", 130)] {
        let prepare = |command: Command| {
            let mut ignoring = Command::new("env");
            let words = command.get_args().map(|word| match word.to_str() {
                Some("--default-signal=HUP,INT") => option.into(),
                _ => word.to_owned(),
            });
            ignoring.args(words).stdin(Stdio::null());
            ignoring
        };
        let exec = Exec::begin(prepare, &["sh", "-c", "kill -INT $$; exit 7"]);
        exec.create();
        exec.place();
        exec.delete();
        assert_eq!(exec.end(), (Some(code), String::new()), "{option}");
    }
}
