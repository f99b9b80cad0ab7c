//! One connection of the client, with a reader thread and a writer thread. The engine's thread does their work where that saves a hand-over
//! between threads.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::net::sockopt;
use sahasra_executor_protocol::session::adoption::Adopted;
use sahasra_wire::session::{Refused, RejectionCode, ServerFrame, client_frame, frame, keepalive::Keepalive, server_frame};

use self::reader::{HELLO_TIMEOUT, Reader};
use self::writer::Writer;
use super::hub::{Hub, Peer};

mod reader;
mod writer;

/// Maximum number of open connections, including those without a `Hello` and those that are ending.
const MAX_CONNECTIONS: usize = 64;
/// Stack size of a reader or writer thread, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Connections of a session. Each gets a number of its own.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    next: AtomicU64,
    /// Has a clone in every open connection.
    open: Arc<()>,
}

impl Connections {
    /// Starts the reader thread of a connection.
    ///
    /// # Errors
    /// Errors of the system calls, or too many open connections.
    pub(crate) fn serve(&self, hub: &Arc<Hub>, adopted: Adopted) -> io::Result<()> {
        let open = Arc::clone(&self.open);
        // One more clone is here.
        if Arc::strong_count(&open) - 1 > MAX_CONNECTIONS {
            return Err(io::Error::other("too many connections"));
        }
        let (stream, already_read) = prepare(adopted)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let hub = Arc::clone(hub);
        let builder = std::thread::Builder::new().name("session-read".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(move || {
            let _open = open;
            let stream = Arc::new(stream);
            if let Err(error) = serve(&hub, &stream, &already_read, number)
                && error.kind() != io::ErrorKind::UnexpectedEof
            {
                eprintln!("connection {number}: {error}");
            }
            hub.disconnected(number);
            let _ = stream.shutdown(Shutdown::Both);
        })?;
        Ok(())
    }
}

/// Rejects a connection because the engine cannot be used, for the reason `message`.
pub(crate) fn reject(adopted: Adopted, message: &str) {
    if let Ok((stream, already_read)) = prepare(adopted) {
        let mut reader = Reader::new(Arc::new(stream), &already_read);
        let _ = reader.reject(Refused::new(RejectionCode::Unavailable, message));
    }
}

/// Configures the socket. A TCP socket can be used as a `UnixStream`, because both are read and written in the same way.
fn prepare(adopted: Adopted) -> io::Result<(UnixStream, Vec<u8>)> {
    let stream = UnixStream::from(adopted.connection);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    // These options exist only for TCP; setting them on a socket pair fails, which is harmless.
    let _ = sockopt::set_tcp_nodelay(&stream, true);
    let _ = Keepalive::CLIENT.watch(&stream);
    Ok((stream, adopted.already_read))
}

/// A connection whose client was accepted.
struct Connection {
    /// Number of the connection; never reused.
    number: u64,
    stream: Arc<UnixStream>,
    /// Locked by the reader thread, except while the connection is delegated to the engine's thread.
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
}

impl Peer for Connection {
    fn number(&self) -> u64 {
        self.number
    }

    fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn write_now(&self, hub: &Hub) -> bool {
        // The thread that holds the lock checks for more answers before it sleeps.
        let Some(mut writer) = self.writer.try_lock() else {
            return false;
        };
        writer.write_now(hub, self.number)
    }

    fn receive_now(&self, hub: &Hub) -> io::Result<usize> {
        self.reader.lock().receive_now(hub)
    }

    fn process_now(&self, hub: &Hub) -> bool {
        self.reader.lock().process_now(hub, self.number)
    }
}

fn serve(hub: &Arc<Hub>, stream: &Arc<UnixStream>, already_read: &[u8], number: u64) -> io::Result<()> {
    let mut reader = Reader::new(Arc::clone(stream), already_read);
    let Some((hello, payload)) = reader.hello()? else {
        let message = "invalid first frame: expected a frame of a session stream";
        return reader.reject(Refused::new(RejectionCode::Malformed, message));
    };
    let received = hello.received;
    if let Some(client_frame::Kind::Attach(attach)) = &hello.kind {
        return share(hub, stream, &mut reader, &attach.secret);
    }
    let Some(client_frame::Kind::Hello(hello)) = hello.kind.filter(|_| hello.sequence == 0 && payload.is_empty()) else {
        let message = "invalid first frame: expected a Hello with number 0 and no payload";
        return reader.reject(Refused::new(RejectionCode::Malformed, message));
    };
    let connection = Arc::new(Connection {
        number,
        stream: Arc::clone(stream),
        reader: Mutex::new(reader),
        writer: Mutex::new(Writer::new(Arc::clone(stream), &hello)),
    });
    {
        // Hold the writer's lock so that no answer precedes the `Welcome`.
        let _writer = connection.writer.lock();
        let mut reader = connection.reader.lock();
        match hub.hello(Arc::<Connection>::clone(&connection), &hello, received, secret()?) {
            Ok(welcome) => {
                stream.set_read_timeout(None)?;
                reader.send(&welcome)?;
            }
            Err(refused) => return reader.reject(refused),
        }
    }
    let (of_writer, written) = (Arc::clone(hub), Arc::clone(&connection));
    let builder = std::thread::Builder::new().name("session-write".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        loop {
            let has_waited = of_writer.wait_to_send(number);
            if written.writer.lock().write_all(&of_writer, number, has_waited) {
                return;
            }
        }
    })?;
    while connection.reader.lock().run(hub, number)? {
        hub.wait_while_delegated(number);
    }
    Ok(())
}

/// Answers a client that asks for shared memory with its descriptor. The connection ends then.
fn share(hub: &Hub, stream: &UnixStream, reader: &mut Reader, secret: &[u8]) -> io::Result<()> {
    let is_sent = hub.send_memory(secret, stream, |attached| {
        let frame = ServerFrame {
            kind: Some(server_frame::Kind::Attached(attached)),
            ..ServerFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&frame, 0, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes.freeze())
    })?;
    if !is_sent {
        let message = "no memory is shared with a client that has this secret, or one has not taken its memory";
        return reader.reject(Refused::new(RejectionCode::Unknown, message));
    }
    Ok(())
}

/// Random secret that a client presents to resume.
fn secret() -> io::Result<Bytes> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    Ok(Bytes::copy_from_slice(&secret))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use sahasra_executor_protocol::session::status_page::StatusPage;
    use sahasra_wire::session::{ClientFrame, Hello, Synchronise, VERSION};

    use super::super::engine::Description;
    use super::super::hub::{Input, Waiting};
    use super::*;

    #[test]
    fn the_reader_continues_a_frame_of_which_the_engines_thread_has_received_a_part() {
        let description = Description {
            engine: sahasra_names::Engine::Ptx,
            ..Description::default()
        };
        let hub = Hub::new(StatusPage::create().unwrap().0, description, 1 << 20);
        let (mut client, stream) = UnixStream::pair().unwrap();
        let stream = Arc::new(stream);
        let hello = Hello {
            lowest_version: VERSION,
            highest_version: VERSION,
            window_frames: 4,
            window_bytes: 1 << 20,
            ..Hello::default()
        };
        let connection = Arc::new(Connection {
            number: 1,
            stream: Arc::clone(&stream),
            reader: Mutex::new(Reader::new(Arc::clone(&stream), &[])),
            writer: Mutex::new(Writer::new(Arc::clone(&stream), &hello)),
        });
        hub.hello(Arc::<Connection>::clone(&connection), &hello, 0, secret().unwrap())
            .ok()
            .unwrap();
        assert!(matches!(hub.next(Waiting::default(), || false), Input::Begin(1)));

        let question = ClientFrame {
            sequence: 1,
            kind: Some(client_frame::Kind::Synchronise(Synchronise::default())),
            ..ClientFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&question, 0, &mut bytes).unwrap();
        let (part, rest) = bytes.split_at(bytes.len() / 2);
        assert!(hub.frames(1, &mut Vec::new(), true));
        client.write_all(part).unwrap();
        let checks = Cell::new(0);
        // Settles after the connection was read once.
        let settles = || checks.replace(checks.get() + 1) == 2;
        assert!(matches!(hub.next(Waiting::default(), settles), Input::Settle));
        assert_eq!(rustix::io::ioctl_fionread(&*stream).unwrap(), 0, "the part is received");

        client.write_all(rest).unwrap();
        hub.wait_while_delegated(1);
        assert!(connection.reader.lock().run(&hub, 1).unwrap(), "it is delegated again");
        assert!(matches!(
            hub.next(Waiting::default(), || false),
            Input::Operation { sequence: 1, .. }
        ));
    }

    #[test]
    fn a_client_that_is_gone_is_noticed_though_data_is_on_its_way_to_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let adopted = Adopted {
            connection: listener.accept().unwrap().0.into(),
            already_read: Vec::new(),
        };
        let (stream, _) = prepare(adopted).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 60_000);
    }
}
