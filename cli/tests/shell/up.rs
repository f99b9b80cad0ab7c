//! `sahasra up` as a child process and HTTP server. Tests with kubectl are in `e2e`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, ChildStdout, Stdio},
};

use crate::program::{Limit, Sahasra, WITHIN, signal, text, wait};
use serde_json::Value;

/// A running `sahasra up`.
struct Up {
    child: Child,
    _limit: Limit,
    output: BufReader<ChildStdout>,
    address: String,
    kubeconfig: PathBuf,
    _folder: tempfile::TempDir,
}

impl Up {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let mut command = Sahasra::new(["up", "--port", "0", "--kubeconfig"]).arg(&kubeconfig).command();
        let mut child = command.args(more).stdout(Stdio::piped()).spawn().expect("sahasra runs");
        let limit = Limit::of(&child);
        let mut output = BufReader::new(child.stdout.take().expect("output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a welcome");
        let address = line
            .strip_prefix("Sahasra is up on ")
            .and_then(|rest| rest.split_once(';'))
            .expect(&line)
            .0
            .to_owned();
        Self {
            child,
            _limit: limit,
            output,
            address,
            kubeconfig,
            _folder: folder,
        }
    }

    fn token(&self) -> String {
        let config: Value = sahasra_crds::yaml::parse(&fs::read_to_string(&self.kubeconfig).expect("a kubeconfig")).expect("YAML");
        config["users"][0]["user"]["token"].as_str().expect("a token").to_owned()
    }

    fn token_file(&self) -> PathBuf {
        let (_, port) = self.address.rsplit_once(':').expect("a port");
        self.kubeconfig.with_file_name(format!("token-{port}"))
    }

    /// Sends a plain HTTP request; returns status and body.
    fn request(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        // The timeout is that of the longest poll in these tests.
        stream.set_read_timeout(Some(2 * WITHIN)).expect("a time");
        let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            self.address,
            body.len()
        );
        stream
            .write_all(format!("{head}{authorization}\r\n{body}").as_bytes())
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// Ends the process with a signal; returns its output after the welcome, and its exit code.
    fn end(mut self, name: &str) -> (String, Option<i32>) {
        signal(self.child.id(), name);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("output");
        let code = self.child.wait().expect("it ends").code();
        (rest, code)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn missing_files_and_folders_are_rejected_at_once() {
    for (option, path, remedy) in [
        (
            "--pjrt-plugin",
            "/nosuch/plugin.so",
            "file not found: specify the library of a PJRT plugin",
        ),
        ("--file-store-root", "/nosuch/store", "directory not found: create it"),
    ] {
        let output = Sahasra::new(["up", "--port", "0", option, path]).output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(option) && said.contains(path) && said.contains(remedy), "{said}");
    }
}

#[test]
fn workers_need_no_token_and_the_api_needs_one() {
    let up = Up::start(&["--workers", "3", "--vram", "64Mi", "--class", "g5"]);
    let (status, body) = up.request("GET", "/workers", None, "");
    assert_eq!(status, 200);
    let workers: Value = serde_json::from_str(&body).expect("JSON");
    let workers = workers.as_array().expect("a list");
    assert_eq!(workers.len(), 3);
    for worker in workers {
        let mut fields: Vec<&str> = worker.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "active_executions",
                "id",
                "last_seen",
                "status",
                "stored_tensor_bytes",
                "tensor_count"
            ]
        );
        assert_eq!(worker["status"], "healthy");
    }
    assert_eq!(up.request("GET", "/readyz", None, "").0, 200);
    assert!(up.request("GET", "/metrics", None, "").1.contains("gpu_leases_active 0"));

    let listed = "/apis/sahasra.dev/v1alpha1/gpuworkers";
    let (status, body) = up.request("GET", listed, None, "");
    assert_eq!(status, 401, "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).expect("a Status")["reason"], "Unauthorized");
    assert_eq!(up.request("GET", listed, Some("wrong"), "").0, 401);
    let (status, body) = up.request("GET", listed, Some(&up.token()), "");
    assert_eq!(status, 200);
    let list: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(list["items"][0]["status"]["devices"][0]["class"], "g5");

    let mode = fs::metadata(&up.kubeconfig).expect("a kubeconfig").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token_file = up.token_file();
    assert_eq!(fs::read_to_string(&token_file).expect("a token file").trim_end(), up.token());
    let mode = fs::metadata(&token_file).expect("a token file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let kubeconfig = up.kubeconfig.clone();
    let address = up.address.clone();
    let (rest, code) = up.end("INT");
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("All slices are released:"), "{rest}");
    assert!(!kubeconfig.exists(), "the kubeconfig goes with it");
    assert!(!token_file.exists(), "so does the token");
    assert!(TcpStream::connect(address).is_err(), "the port is free");
}

#[test]
fn a_second_signal_ends_it_though_its_errors_are_not_read() {
    let (_unread, mut errors) = std::io::pipe().expect("a pipe");
    // As many bytes as a pipe holds: the next write blocks.
    errors.write_all(&[b' '; 64 << 10]).expect("room");
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["up", "--port", "0", "--workers", "1", "--vram", "64Mi", "--kubeconfig"];
    let mut command = Sahasra::new(arguments).arg(folder.path().join("kubeconfig")).command();
    let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().expect("sahasra runs");
    let _limit = Limit::of(&child);
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("output"));
    output.read_line(&mut line).expect("a welcome");
    // Whichever signal comes after the first has been handled ends the process.
    let ended = wait("the end", || {
        signal(child.id(), "INT");
        child.try_wait().expect("its state")
    });
    assert_eq!(ended.code(), Some(130));
}

#[test]
fn a_closed_terminal_ends_it_like_a_termination() {
    for name in ["TERM", "HUP"] {
        let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
        let (kubeconfig, token_file) = (up.kubeconfig.clone(), up.token_file());
        let (rest, code) = up.end(name);
        assert_eq!(code, Some(0), "{name}: {rest}");
        assert!(!kubeconfig.exists() && !token_file.exists(), "{name}");
    }
}

#[test]
fn a_closed_standard_error_does_not_stop_the_shutdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let mut command = Sahasra::new(["up", "--port", "0", "--workers", "1", "--log-level", "info", "--kubeconfig"])
        .arg(&kubeconfig)
        .command();
    // Every write fails, as to a terminal that was closed.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut child = command.stdout(Stdio::null()).stderr(full).spawn().expect("sahasra runs");
    let _limit = Limit::of(&child);
    wait("a kubeconfig", || kubeconfig.exists().then_some(()));
    signal(child.id(), "HUP");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left");
}

#[test]
fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let program = Sahasra::new(["up", "--port", "0", "--workers", "1", "--kubeconfig"])
        .arg(&kubeconfig)
        .command();
    // SIGHUP is ignored, as by nohup.
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .args(program.get_args().skip(1));
    let mut child = command.stdout(Stdio::null()).spawn().expect("sahasra runs");
    let _limit = Limit::of(&child);
    wait("a kubeconfig", || kubeconfig.exists().then_some(()));
    signal(child.id(), "HUP");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim();
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
    assert_eq!(ignored & 1, 1, "bit 0 is SIGHUP");
    assert!(child.try_wait().expect("it runs").is_none());
    signal(child.id(), "TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn applied_jobs_run_and_slices_of_running_jobs_are_released_at_the_end() {
    let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
    let token = up.token();
    let endless = include_str!("../../../e2e/tests/data/kernels/endless.ptx");
    let job = serde_json::json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "endless"},
        "spec": {
            "kernel": {"ptx": {"inline": endless}, "entry": "endless", "block": [1], "args": [{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}]},
            "chunks": {"count": 4}, "slice": {"vram": "4Mi"}, "slices": {"max": 2},
        },
    });
    let jobs = "/apis/sahasra.dev/v1alpha1/namespaces/default/burstjobs";
    let (status, body) = up.request("POST", jobs, Some(&token), &job.to_string());
    assert_eq!(status, 201, "{body}");
    wait("slices are held", || {
        up.request("GET", "/metrics", None, "")
            .1
            .contains("gpu_leases_active 2")
            .then_some(())
    });
    let executors = wait("executors run", || {
        Some(crate::program::descendants(up.child.id())).filter(|executors| !executors.is_empty())
    });
    let (rest, code) = up.end("TERM");
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("All slices are released:"), "{rest}");
    wait("no executor is left", || {
        executors.iter().all(|id| !crate::program::is_alive(*id)).then_some(())
    });
}

#[test]
fn the_gateway_answers_requests_with_the_token_on_the_same_port() {
    let up = Up::start(&["--workers", "2", "--class", "g5", "--vram", "64Mi"]);
    let token = fs::read_to_string(up.token_file()).expect("a token file");
    let sessions = "/v1/namespaces/default/sessions";
    for (method, path) in [
        ("GET", sessions),
        ("POST", sessions),
        ("GET", "/v1/namespaces/default/sessions/mine/stream"),
    ] {
        for wrong in [None, Some("wrong")] {
            let (status, body) = up.request(method, path, wrong, "{}");
            // A request that is not a WebSocket handshake is rejected before its token is checked.
            let expected = if path.ends_with("stream") { 426 } else { 401 };
            assert_eq!(status, expected, "{method} {path} with {wrong:?}: {body}");
            let told: Value = serde_json::from_str(&body).expect("a Status");
            assert_eq!(told["kind"], "Status");
            if expected == 401 {
                let message = told["message"].as_str().expect("a message");
                let remedy = format!("it is in {}", up.token_file().display());
                assert!(message.ends_with(&remedy) && !message.contains("kubectl"), "{message}");
            }
        }
    }
    let session = serde_json::json!({"metadata": {"generateName": "mine-"}, "spec": {"class": "g5", "vram": "16Mi", "engine": "ptx"}});
    let (status, body) = up.request("POST", sessions, Some(token.trim_end()), &session.to_string());
    assert_eq!(status, 201, "{body}");
    let made: Value = serde_json::from_str(&body).expect("JSON");
    let name = made["metadata"]["name"].as_str().expect("a name");
    let poll = format!("{sessions}/{name}?waitFor=Placed&timeoutSeconds=60");
    let (status, body) = up.request("GET", &poll, Some(token.trim_end()), "");
    let placed: Value = serde_json::from_str(&body).expect("JSON");
    let conditions = placed["status"]["conditions"].as_array().expect("conditions");
    let is_placed = conditions
        .iter()
        .any(|condition| condition["type"] == "Placed" && condition["status"] == "True");
    assert!(status == 200 && is_placed, "{body}");
    assert!(
        placed["status"]["endpoint"]
            .as_str()
            .is_some_and(|endpoint| endpoint.starts_with("http://127.0.0.1:")),
        "{body}"
    );
    assert_eq!(
        up.request("DELETE", &format!("{sessions}/{name}"), Some(token.trim_end()), "").0,
        200
    );
    wait("its slice is back", || {
        up.request("GET", "/metrics", None, "")
            .1
            .contains("gpu_leases_active 0")
            .then_some(())
    });
    let (status, body) = up.request("GET", "/openapi.json", None, "");
    assert!(status == 200 && body.contains("\"openapi\":\"3.1.0\""), "{body}");
    let (rest, code) = up.end("INT");
    assert_eq!(code, Some(0), "{rest}");
}

#[test]
fn a_port_in_use_is_reported_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let output = Sahasra::new(["up", "--port", &port, "--kubeconfig"]).arg(&kubeconfig).output();
    assert_eq!(output.status.code(), Some(1));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains(&format!("port {port} is in use")) && complaint.contains("--port"),
        "{complaint}"
    );
    assert!(!kubeconfig.exists());
}

#[test]
fn the_address_is_no_ones_but_this_machines() {
    let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
    assert!(up.address.starts_with("127.0.0.1:"), "{}", up.address);
    let (_, code) = up.end("INT");
    assert_eq!(code, Some(0));
}

#[test]
fn a_port_on_loopback_is_for_loopback_names() {
    let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
    let asked = |host: &str| {
        let mut stream = TcpStream::connect(&up.address).expect("it listens");
        stream.set_read_timeout(Some(WITHIN)).expect("a time");
        let request = format!("GET /workers HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split(' ').nth(1).map(str::to_owned).expect("a status")
    };
    assert_eq!(asked(&up.address), "200");
    assert_eq!(asked("evil.example:8000"), "421");
}

#[test]
fn a_second_pool_does_not_change_the_kubeconfig_of_the_first() {
    let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
    let before = fs::read_to_string(&up.kubeconfig).expect("a kubeconfig");
    let output = Sahasra::new(["up", "--port", "0", "--kubeconfig"]).arg(&up.kubeconfig).output();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("another `sahasra up`"), "{told}");
    assert_eq!(fs::read_to_string(&up.kubeconfig).expect("a kubeconfig"), before);
    assert_eq!(up.request("GET", "/readyz", None, "").0, 200);
}

#[test]
fn the_users_own_kubeconfig_is_rejected_and_stays_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("config");
    let theirs = "apiVersion: v1\nkind: Config\nclusters: []\n";
    fs::write(&kubeconfig, theirs).expect("written");
    let output = Sahasra::new(["up", "--port", "0", "--kubeconfig"]).arg(&kubeconfig).output();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("was not written by") && told.contains("--kubeconfig"), "{told}");
    assert_eq!(fs::read_to_string(&kubeconfig).expect("a kubeconfig"), theirs);
    let names: Vec<_> = (folder.path().read_dir().expect("a folder"))
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["config"]);
}

#[test]
fn the_workers_are_for_their_own_operator() {
    let up = Up::start(&["--workers", "1", "--vram", "64Mi"]);
    let (_, list) = up.request("GET", "/apis/sahasra.dev/v1alpha1/gpuworkers", Some(&up.token()), "");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let endpoint = list["items"][0]["status"]["endpoint"].as_str().expect("an endpoint").to_owned();
    let address = endpoint.strip_prefix("http://").expect("in the clear");
    for authorization in ["", &format!("Authorization: Bearer {}\r\n", up.token())] {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(WITHIN)).expect("a time");
        let request = format!("GET /v1/inventory HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }
}

#[test]
fn the_kubeconfig_and_the_token_file_are_complete_once_they_exist() {
    let folder = tempfile::tempdir().expect("a folder");
    let (kubeconfig, token) = (folder.path().join("kubeconfig"), folder.path().join("token"));
    // The token file that a killed run left behind is removed before the pool starts.
    fs::write(&token, format!("{}\n", "0".repeat(64))).expect("written");
    let mut command = Sahasra::new(["up", "--port", "0", "--workers", "1", "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--token-file")
        .arg(&token)
        .command();
    let mut child = command.stdout(Stdio::null()).spawn().expect("sahasra runs");
    let _limit = Limit::of(&child);
    let config = wait("a kubeconfig", || fs::read_to_string(&kubeconfig).ok());
    let of_file = wait("a token", || fs::read_to_string(&token).ok());
    signal(child.id(), "TERM");
    let code = child.wait().expect("it ends").code();
    let config: Value = sahasra_crds::yaml::parse(&config).expect("YAML");
    assert_eq!(config["users"][0]["user"]["token"], of_file.trim_end());
    assert_eq!((of_file.len(), code), (65, Some(0)));
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left");
}
