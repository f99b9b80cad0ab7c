//! Tests of sessions over real sockets, against a scripted executor.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::BytesMut;
use parking_lot::Mutex;
use sahasra_wire::session::{ClientFrame, frame};
use tokio_tungstenite::tungstenite::{self, Message, handshake::server};

use super::*;
use crate::{
    Compression, Gateway, Token,
    core::{Window, tests::Executor},
};

mod ends;
mod silence;

const TOKEN: &str = "secret";

fn connect(target: Target, options: Options) -> Result<Session, Error> {
    let (session, connected) = Session::begin(target, options)?;
    connected.wait()?;
    Ok(session)
}

/// Behavior of one connection of the scripted worker.
#[derive(Clone, Copy, Debug)]
enum Connection {
    /// The worker closes the connection after this number of bytes from the client.
    Cut(usize),
    Stands,
    /// The connection accepts only some megabytes per second.
    Slow,
    /// The worker reads this number of bytes, and then sends nothing more without closing the connection.
    Stalls(usize),
    /// The worker rejects the upgrade with this HTTP status.
    Refused(u16),
}

struct Worker {
    url: String,
    executor: Arc<Mutex<Executor>>,
    thread: thread::JoinHandle<()>,
}

/// Sends and receives bytes over TCP or a WebSocket.
trait Carrier {
    fn receive(&mut self) -> Option<Vec<u8>>;
    fn send(&mut self, bytes: &[u8]);
}

impl Carrier for TcpStream {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        match self.read(&mut bytes) {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(bytes[..count].to_vec()),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        // The client may have disconnected.
        let _ = self.write_all(bytes);
    }
}

impl Carrier for tungstenite::WebSocket<TcpStream> {
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.read() {
                Ok(Message::Binary(bytes)) => return Some(bytes.to_vec()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        // Message boundaries have no meaning.
        for piece in bytes.chunks(11) {
            let _ = tungstenite::WebSocket::send(self, Message::Binary(piece.to_vec().into()));
        }
    }
}

/// Connection from which little is read at a time.
struct Slow(TcpStream);

impl Carrier for Slow {
    fn receive(&mut self) -> Option<Vec<u8>> {
        // Simulates a slow connection.
        thread::sleep(Duration::from_micros(200));
        self.0.receive()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.send(bytes);
    }
}

fn serve(carrier: &mut impl Carrier, executor: &Mutex<Executor>, cut: Option<usize>) {
    let mut count = 0;
    let mut decoder = frame::Decoder::default();
    let mut greeted = false;
    while let Some(mut bytes) = carrier.receive() {
        let end = cut.is_some_and(|cut| count + bytes.len() > cut);
        if let Some(cut) = cut {
            bytes.truncate(cut - count.min(cut));
        }
        count += bytes.len();
        let mut executor = executor.lock();
        let mut out = BytesMut::new();
        if !greeted {
            decoder.buffer().extend_from_slice(&bytes);
            bytes.clear();
            if let Some((hello, _)) = decoder.next_frame::<ClientFrame>().unwrap() {
                greeted = true;
                let welcome = executor.welcome(&hello);
                frame::encode(&welcome, 0, &mut out).unwrap();
                bytes = decoder.buffer().split().to_vec();
            }
        }
        executor.take(&bytes);
        executor.write(&mut out);
        if end {
            // The client receives only a part of the answer.
            carrier.send(&out[..out.len() / 2]);
            return;
        }
        carrier.send(&out);
    }
}

fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[allow(clippy::result_large_err, reason = "the signature is the library's")]
fn choose(request: &server::Request, mut response: server::Response) -> Result<server::Response, server::ErrorResponse> {
    assert_eq!(request.headers()["authorization"], format!("Bearer {TOKEN}").as_str());
    let chosen = request.headers()["sec-websocket-protocol"].clone();
    response.headers_mut().insert("sec-websocket-protocol", chosen);
    Ok(response)
}

/// Serves these connections one after the other, and no further ones.
fn worker(web_socket: bool, connections: Vec<Connection>) -> Worker {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let bytes = match connections[..] {
        [Connection::Slow] => 64 << 20,
        _ => 4096,
    };
    let executor = Arc::new(Mutex::new(Executor::new(Window { frames: 64, bytes })));
    let shared = executor.clone();
    let thread = thread::spawn(move || {
        let mut stalled = Vec::new();
        for connection in connections {
            let (mut stream, _) = listener.accept().unwrap();
            let cut = match connection {
                Connection::Cut(bytes) | Connection::Stalls(bytes) => Some(bytes),
                Connection::Stands | Connection::Slow => None,
                Connection::Refused(status) => {
                    head(&mut stream);
                    let body = format!("HTTP/1.1 {status} No\r\nContent-Length: 7\r\nConnection: close\r\n\r\nbecause");
                    stream.write_all(body.as_bytes()).unwrap();
                    continue;
                }
            };
            if web_socket {
                let mut stream = tungstenite::accept_hdr(stream, choose).unwrap();
                serve(&mut stream, &shared, cut);
                if matches!(connection, Connection::Stalls(_)) {
                    stalled.push(stream);
                }
            } else {
                let head = head(&mut stream);
                assert!(
                    head.starts_with("GET /v1/namespaces/default/sessions/mine/stream HTTP/1.1\r\n"),
                    "{head}"
                );
                let lower = head.to_lowercase();
                assert!(
                    lower.contains("upgrade: sahasra-session.v1\r\n") && lower.contains("connection: upgrade\r\n"),
                    "{head}"
                );
                assert!(head.contains("Bearer secret"), "{head}");
                let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
                match connection {
                    Connection::Slow => serve(&mut Slow(stream), &shared, cut),
                    _ => serve(&mut stream, &shared, cut),
                }
            }
        }
    });
    Worker { url, executor, thread }
}

fn target(worker: &Worker, web_socket: bool) -> Target {
    let token = Token::text(TOKEN);
    if web_socket {
        let mut target = Target::through(&Gateway::new(&worker.url, token, None).unwrap(), "default", "mine").unwrap();
        // Without a gateway, the client cannot find out why the session ended.
        target.gateway = None;
        return target;
    }
    Target::direct(&worker.url, token, None, "default", "mine").unwrap()
}

fn put_and_look(session: &Session) {
    for round in 0..40u8 {
        let data: Vec<u8> = (0..100).map(|place| place ^ round).collect();
        let tensor = session.put(data.clone(), "u8", &[100]).unwrap();
        let downloaded = tensor.download_expecting(Some(100)).wait().unwrap();
        assert_eq!(downloaded.data, data);
        assert_eq!(downloaded.dimensions, [100]);
    }
    session.synchronise().wait().unwrap();
}

fn goes_through(web_socket: bool, connections: Vec<Connection>) {
    goes_through_with(Options::default(), web_socket, connections);
}

fn goes_through_with(options: Options, web_socket: bool, connections: Vec<Connection>) {
    let resumes = connections.len() as u64 - 1;
    let worker = worker(web_socket, connections);
    let session = connect(target(&worker, web_socket), options).unwrap();
    put_and_look(&session);
    assert_eq!(session.resumed(), resumes);
    session.close().wait().unwrap();
    assert!(matches!(session.put(vec![0], "u8", &[1]), Err(Error::Closed)));
    drop(session);
    worker.thread.join().unwrap();
    let executor = worker.executor.lock();
    assert!(executor.tensors.is_empty());
    let uploads = executor.done.iter().filter(|line| line.starts_with("upload")).count();
    assert_eq!(uploads, 40, "{:?}", executor.done);
}

#[test]
fn a_session_connects_directly_to_the_worker() {
    goes_through(false, vec![Connection::Stands]);
}

#[test]
fn a_session_connects_through_a_web_socket() {
    goes_through(true, vec![Connection::Stands]);
}

#[test]
fn the_largest_frame_is_split_into_web_socket_messages_that_a_gateway_accepts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        // Message limit of a gateway.
        let config = tungstenite::protocol::WebSocketConfig::default()
            .max_message_size(Some(16 << 20))
            .max_frame_size(Some(16 << 20));
        let mut stream = tungstenite::accept_hdr_with_config(stream, choose, Some(config)).unwrap();
        let executor = Mutex::new(Executor::new(Window {
            frames: 64,
            bytes: 64 << 20,
        }));
        serve(&mut stream, &executor, None);
        executor.into_inner().done
    });
    let mut target = Target::through(&Gateway::new(&url, Token::text(TOKEN), None).unwrap(), "default", "mine").unwrap();
    target.gateway = None;
    let session = connect(target, Options::default()).unwrap();
    let program = session
        .compile("large", Format::StableHlo, vec![7; frame::MAX_PAYLOAD_BYTES])
        .unwrap();
    session.synchronise().wait().unwrap();
    assert_eq!(session.resumed(), 0);
    session.close().wait().unwrap();
    drop((program, session));
    assert_eq!(gateway.join().unwrap(), [format!("compile large {}", frame::MAX_PAYLOAD_BYTES)]);
}

#[test]
fn connections_that_break_are_replaced() {
    for web_socket in [false, true] {
        goes_through(
            web_socket,
            vec![
                Connection::Cut(700),
                Connection::Cut(151),
                Connection::Cut(1500),
                Connection::Stands,
            ],
        );
    }
}

/// Uploads 40 parts of zeros over a slow connection, and checks the tensor. Returns the number of parts that arrived encoded and the bytes
/// sent.
fn zeros_over_a_slow_line(compression: Compression) -> (u32, u64) {
    let worker = worker(false, vec![Connection::Slow]);
    let options = Options {
        compression,
        ..Options::default()
    };
    let session = connect(target(&worker, false), options).unwrap();
    let zeros = vec![0; 40 << 20];
    let tensor = session.put(zeros.clone(), "f32", &[10 << 20]).unwrap();
    session.synchronise().wait().unwrap();
    let (traffic, encoded) = {
        let executor = worker.executor.lock();
        assert!(executor.tensors.values().next() == Some(&zeros));
        (session.traffic(), executor.encoded.0)
    };
    assert_eq!(traffic.uploaded_bytes, 40 << 20);
    drop((tensor, session));
    worker.thread.join().unwrap();
    (encoded, traffic.sent_bytes)
}

#[test]
fn uploads_over_a_slow_link_are_compressed_if_the_mode_allows_it() {
    let (encoded, sent) = zeros_over_a_slow_line(Compression::WhereItPays);
    assert!(encoded >= 10 && sent < 32 << 20, "{encoded} parts, {sent} bytes");
    let (encoded, sent) = zeros_over_a_slow_line(Compression::Always);
    assert!(encoded == 40 && sent < 1 << 20, "{encoded} parts, {sent} bytes");
    let (encoded, sent) = zeros_over_a_slow_line(Compression::Never);
    assert!(encoded == 0 && sent > 40 << 20, "{encoded} parts, {sent} bytes");
}

#[test]
fn an_executor_that_decodes_slowly_gets_uploads_as_they_are() {
    let worker = worker(false, vec![Connection::Slow]);
    let session = connect(target(&worker, false), Options::default()).unwrap();
    let encoded = || worker.executor.lock().encoded.0;
    let upload = || {
        let tensor = session.put(vec![0; 40 << 20], "f32", &[10 << 20]).unwrap();
        session.synchronise().wait().unwrap();
        drop(tensor);
    };
    upload();
    let before = encoded();
    assert!(before >= 10, "{before} parts");
    worker.executor.lock().decoding_rate = 1_000_000;
    session.synchronise().wait().unwrap();
    upload();
    assert_eq!(encoded(), before);
    drop(session);
    worker.thread.join().unwrap();
}

#[test]
fn a_lost_worker_is_reported_at_once() {
    let worker = worker(false, vec![Connection::Cut(700)]);
    let session = connect(target(&worker, false), Options::default()).unwrap();
    let tensor = session.put(vec![1; 2000], "u8", &[2000]).unwrap();
    let double = session.compile("double", Format::StableHlo, "module").unwrap();
    drop(session.execute(&double, &[&tensor], 1, &[]).unwrap());
    let error = tensor.download().wait().unwrap_err();
    let Error::WorkerLost(loss) = &error else {
        panic!("{error:?}");
    };
    let at = format!("at {}", worker.url);
    let named = (loss.session.as_str(), loss.worker.as_str(), loss.operation.as_str());
    assert_eq!(named, ("default/mine", at.as_str(), "download after execute double"));
    let text = error.to_string();
    assert!(
        text.contains("default/mine") && text.contains(&at) && text.contains("execute double"),
        "{text}"
    );
    assert!(matches!(session.synchronise().wait(), Err(Error::WorkerLost(loss)) if loss.operation == "download after execute double"));
    worker.thread.join().unwrap();
}

#[test]
fn a_rejected_connection_reports_the_reason() {
    let worker = worker(false, vec![Connection::Refused(403)]);
    let error = connect(target(&worker, false), Options::default()).unwrap_err();
    assert!(
        matches!(&error, Error::Http { status: 403, message, .. } if message == "because"),
        "{error:?}"
    );
    worker.thread.join().unwrap();
}

#[test]
fn a_temporary_rejection_is_retried() {
    for web_socket in [false, true] {
        goes_through_after(web_socket, 503);
    }
}

fn goes_through_after(web_socket: bool, status: u16) {
    let worker = worker(web_socket, vec![Connection::Refused(status), Connection::Stands]);
    let session = connect(target(&worker, web_socket), Options::default()).unwrap();
    session.synchronise().wait().unwrap();
    drop(session);
    worker.thread.join().unwrap();
}

#[test]
fn a_session_that_is_dropped_is_closed() {
    let worker = worker(false, vec![Connection::Stands]);
    let session = connect(target(&worker, false), Options::default()).unwrap();
    let tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
    session.synchronise().wait().unwrap();
    assert_eq!(worker.executor.lock().tensors.len(), 1);
    drop(session);
    worker.thread.join().unwrap();
    assert!(worker.executor.lock().tensors.is_empty());
    drop(tensor);
}

#[test]
fn an_operation_with_invalid_arguments_is_rejected_before_it_is_sent() {
    let worker = worker(false, vec![Connection::Stands]);
    let session = connect(target(&worker, false), Options::default()).unwrap();
    assert!(matches!(session.put(vec![0; 3], "f32", &[1]), Err(Error::Invalid(_))));
    assert!(matches!(session.allocate("tuple", &[1]), Err(Error::Invalid(_))));
    drop(session);
    worker.thread.join().unwrap();
    assert!(worker.executor.lock().done.is_empty());
}

#[test]
fn requests_and_closing_do_not_wait_for_space_in_the_queue() {
    // Nobody accepts connections, so uploads stay in the queue.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let options = Options {
        queued_bytes: 10,
        connect: Duration::from_secs(3600),
        ..Options::default()
    };
    let uses: [fn(Session, Tensor); 4] = [
        |session, tensor| drop((tensor.download(), session)),
        |session, _tensor| drop((session.synchronise(), session.load())),
        |session, _tensor| drop(session.close()),
        |session, _tensor| drop(session),
    ];
    for (number, used) in uses.into_iter().enumerate() {
        let target = Target::direct(&url, Token::text(TOKEN), None, "default", "mine").unwrap();
        let (session, connected) = Session::begin(target, options).unwrap();
        let tensor = session.put(vec![0; 11], "u8", &[11]).unwrap();
        assert!(!session.room_within(Duration::ZERO) && !session.room_within(Duration::from_millis(1)));
        let (say, said) = std::sync::mpsc::channel();
        thread::spawn(move || {
            used(session, tensor);
            say.send(()).unwrap();
        });
        let done = said.recv_timeout(Duration::from_secs(20));
        assert_eq!(done, Ok(()), "use {number} waits for room in the queue");
        drop(connected);
    }
}
