//! One connection of the client: a thread that reads, and one that writes. The engine's thread does either where that saves a hand-over.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::sockopt;
use sahasra_wire::session::{RefusalCode, Refused, client_frame, keepalive};

use self::reader::Reader;
use self::writer::Writer;
use super::hub::Hub;
use crate::session::adopt::Adopted;

mod reader;
mod writer;

/// A connection has to say hello within this.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// Connections that may be without a hello, or on their way out.
const MOST_CONNECTIONS: usize = 64;
/// Stack of a thread that reads or writes.
const STACK_BYTES: usize = 256 << 10;

/// Connections of a session, each with a number of its own.
#[derive(Debug, Default)]
pub struct Connections {
    next: AtomicU64,
    open: Arc<AtomicUsize>,
}

/// Counts one as long as it lives.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    /// Starts to serve one.
    ///
    /// # Errors
    /// The system's, and when there are too many.
    pub fn serve(&self, hub: &Arc<Hub>, adopted: Adopted) -> io::Result<()> {
        let open = Open(Arc::clone(&self.open));
        if open.0.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            return Err(io::Error::other("too many connections at once"));
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

/// Tells a client that came that the engine cannot be used.
pub fn refuse(adopted: Adopted, message: &str) {
    if let Ok((stream, already_read)) = prepare(adopted) {
        let mut reader = Reader::new(Arc::new(stream), &already_read);
        let refused = Refused {
            code: RefusalCode::Unavailable.into(),
            message: message.to_owned(),
        };
        let _ = reader.refuse(refused);
    }
}

/// Any stream socket reads and writes like this one.
fn prepare(adopted: Adopted) -> io::Result<(UnixStream, Vec<u8>)> {
    let stream = UnixStream::from(adopted.connection);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_TIME))?;
    // These are for TCP; there is nothing to set for a socket pair.
    let _ = sockopt::set_tcp_nodelay(&stream, true);
    let _ = keepalive::watch(&stream);
    Ok((stream, adopted.already_read))
}

/// A connection whose client was let in.
pub struct Connection {
    /// Its number, never used again.
    pub number: u64,
    stream: Arc<UnixStream>,
    /// Held by its thread, save while the connection is lent to the engine's.
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
}

impl Connection {
    /// Its socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Ends it.
    pub fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Writes little, where nobody else does. Gives whether something is left for who waits to write.
    pub fn write_now(&self, hub: &Hub) -> bool {
        // Whoever holds it looks whether there is more to write before it sleeps.
        let Ok(mut writer) = self.writer.try_lock() else {
            return false;
        };
        writer.write_now(hub, self.number)
    }

    /// Reads what is there, on the engine's thread. Gives whether it may go on reading.
    pub fn read_now(&self, hub: &Hub) -> bool {
        lock(&self.reader).read_now(hub, self.number)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a connection until it is over.
fn serve(hub: &Arc<Hub>, stream: &Arc<UnixStream>, already_read: &[u8], number: u64) -> io::Result<()> {
    let mut reader = Reader::new(Arc::clone(stream), already_read);
    let Some((hello, payload)) = reader.hello()? else {
        return reader.refuse(Refused {
            code: RefusalCode::Malformed.into(),
            message: "the first frame is no frame of a session stream".to_owned(),
        });
    };
    let received = hello.received;
    let Some(client_frame::Kind::Hello(hello)) = hello.kind.filter(|_| hello.sequence == 0 && payload.is_empty()) else {
        return reader.refuse(Refused {
            code: RefusalCode::Malformed.into(),
            message: "the first frame of a connection is a Hello, of number 0 and without payload".to_owned(),
        });
    };
    let connection = Arc::new(Connection {
        number,
        stream: Arc::clone(stream),
        reader: Mutex::new(reader),
        writer: Mutex::new(Writer::new(Arc::clone(stream), &hello)),
    });
    {
        // No answer goes before the welcome.
        let _writer = lock(&connection.writer);
        let mut reader = lock(&connection.reader);
        match hub.hello(&connection, &hello, received, secret()?) {
            Ok(welcome) => {
                stream.set_read_timeout(None)?;
                reader.tell(&welcome)?;
            }
            Err(refused) => return reader.refuse(refused),
        }
    }
    let (of_writer, written) = (Arc::clone(hub), Arc::clone(&connection));
    let builder = std::thread::Builder::new().name("session-write".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        loop {
            let has_waited = of_writer.wait_to_send(number);
            if lock(&written.writer).write_all(&of_writer, number, has_waited) {
                return;
            }
        }
    })?;
    while lock(&connection.reader).run(hub, number)? {
        hub.lent(number);
    }
    Ok(())
}

/// What a client shows to resume.
fn secret() -> io::Result<Bytes> {
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(Bytes::copy_from_slice(&secret))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

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
