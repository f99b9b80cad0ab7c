//! Handover of a client's connection from the agent to a session executor.
//!
//! The agent sends one message per connection over the control socket: the number of bytes that it already read from the connection (4
//! bytes, little-endian) and those bytes. The connection's descriptor is attached (`SCM_RIGHTS`) to the first byte. The executor thus
//! receives the bytes that followed the HTTP request's head first, and reads the rest from the descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};

/// Limit of the bytes that accompany a connection. An HTTP server reads no more than this ahead of a request's head.
pub const MAX_ALREADY_READ: usize = 1 << 20;

/// Connection that the executor received from the agent.
#[derive(Debug)]
pub struct Adopted {
    /// Socket of the connection: a TCP connection or one end of a socket pair. It may be in non-blocking mode.
    pub connection: OwnedFd,
    /// Bytes that the agent already read from the connection, in order.
    pub already_read: Vec<u8>,
}

/// Message that hands a connection over to the executor. The caller may close its own descriptor after it was sent.
#[derive(Debug)]
pub struct Handover<'a> {
    connection: BorrowedFd<'a>,
    length: [u8; 4],
    already_read: &'a [u8],
    sent: usize,
}

impl<'a> Handover<'a> {
    /// Creates the message for a connection and the bytes that were read from it.
    ///
    /// # Errors
    /// When these are more than [`MAX_ALREADY_READ`] bytes.
    pub fn new(connection: BorrowedFd<'a>, already_read: &'a [u8]) -> io::Result<Self> {
        let length = u32::try_from(already_read.len())
            .ok()
            .filter(|_| already_read.len() <= MAX_ALREADY_READ);
        let length = length.ok_or_else(|| io::Error::other("too many bytes read from the connection"))?;
        Ok(Self {
            connection,
            length: length.to_le_bytes(),
            already_read,
            sent: 0,
        })
    }

    /// Whether a part has been sent. The control socket can then be used for nothing but the rest.
    pub fn is_begun(&self) -> bool {
        self.sent > 0
    }

    /// Sends what has not been sent yet.
    ///
    /// # Errors
    /// Errors of the operating system: [`io::ErrorKind::BrokenPipe`] when the executor is gone, [`io::ErrorKind::WouldBlock`] when a
    /// non-blocking socket has no room or the write timeout of a blocking one has passed. A later call sends the rest.
    pub fn send(&mut self, control: impl AsFd) -> io::Result<()> {
        let control = control.as_fd();
        while self.sent < self.length.len() + self.already_read.len() {
            let descriptors = [self.connection];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
            let mut attached = SendAncillaryBuffer::new(&mut space);
            // The descriptor is sent once, with the first byte.
            if self.sent == 0 && !attached.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(io::Error::other("failed to attach the file descriptor"));
            }
            let head = &self.length[self.sent.min(self.length.len())..];
            let body = &self.already_read[self.sent.saturating_sub(self.length.len())..];
            let slices = [IoSlice::new(head), IoSlice::new(body)];
            match retry_on_intr(|| sendmsg(control, &slices, &mut attached, SendFlags::NOSIGNAL))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                bytes => self.sent += bytes,
            }
        }
        Ok(())
    }
}

/// Waits for the next connection and returns it. Returns `None` when the agent has closed the control socket.
///
/// # Errors
/// Errors of the operating system, or [`io::ErrorKind::InvalidData`] and [`io::ErrorKind::UnexpectedEof`] for a malformed message. The
/// control socket is unusable after an error.
pub fn receive(control: &UnixStream) -> io::Result<Option<Adopted>> {
    let mut connection = None;
    let mut length = [0; 4];
    if !fill(control, &mut length, &mut connection)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ALREADY_READ {
        return Err(invalid("too many bytes"));
    }
    let mut already_read = vec![0; length];
    if length > 0 && !fill(control, &mut already_read, &mut None)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let connection = connection.ok_or_else(|| invalid("file descriptor not found"))?;
    Ok(Some(Adopted { connection, already_read }))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid connection message: {what}"))
}

/// Fills the buffer, and keeps the descriptor that arrives with the first byte. Returns `false` when the socket ended before the first
/// byte.
fn fill(control: &UnixStream, buffer: &mut [u8], descriptor: &mut Option<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer[filled..])];
        let received = retry_on_intr(|| recvmsg(control.as_fd(), &mut slices, &mut attached, RecvFlags::CMSG_CLOEXEC))?;
        for message in attached.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for one in descriptors {
                    if descriptor.replace(one).is_some() || filled > 0 {
                        return Err(invalid("unexpected file descriptor"));
                    }
                }
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(invalid("more than one file descriptor"));
        }
        match received.bytes {
            0 if filled == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => filled += bytes,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Returns both ends of a TCP connection: the client's and the server's.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn send(control: &UnixStream, connection: BorrowedFd<'_>, already_read: &[u8]) -> io::Result<()> {
        Handover::new(connection, already_read)?.send(control)
    }

    /// Reads everything from a connection in the order in which an executor reads it.
    fn read(adopted: Adopted) -> Vec<u8> {
        let mut all = adopted.already_read;
        TcpStream::from(adopted.connection).read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn what_was_read_already_comes_before_what_the_connection_still_holds() {
        let (agent, executor) = UnixStream::pair().unwrap();
        let (mut client, mut server) = connection();
        client.write_all(b"hello world").unwrap();
        let mut first = [0; 6];
        server.read_exact(&mut first).unwrap();
        send(&agent, server.as_fd(), &first).unwrap();
        drop(server);
        let mut adopted = receive(&executor).unwrap().unwrap();
        assert_eq!(adopted.already_read, b"hello ");
        // The executor can write too, although the agent has closed its own descriptor.
        let mut answering = TcpStream::from(adopted.connection);
        answering.write_all(b"hi").unwrap();
        adopted.connection = answering.into();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read(adopted), b"hello world");
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "hi");
    }

    #[test]
    fn connections_come_in_order_each_with_its_own_bytes() {
        let (agent, executor) = UnixStream::pair().unwrap();
        let long = vec![7; MAX_ALREADY_READ];
        let pairs: Vec<_> = (0..3).map(|_| connection()).collect();
        std::thread::scope(|scope| {
            // These messages exceed the socket's buffer: the sender continues while the receiver reads.
            scope.spawn(|| {
                for ((_, server), bytes) in pairs.iter().zip([b"".as_slice(), &long, b"third"]) {
                    send(&agent, server.as_fd(), bytes).unwrap();
                }
            });
            for ((client, _), bytes) in pairs.iter().zip([b"".as_slice(), &long, b"third"]) {
                let adopted = receive(&executor).unwrap().unwrap();
                assert!(adopted.already_read == bytes);
                let peer = TcpStream::from(adopted.connection).peer_addr().unwrap();
                assert_eq!(peer, client.local_addr().unwrap());
            }
        });
        drop(agent);
        assert!(receive(&executor).unwrap().is_none());
    }

    #[test]
    fn a_message_goes_on_where_the_socket_had_no_room() {
        let (agent, executor) = UnixStream::pair().unwrap();
        agent.set_nonblocking(true).unwrap();
        let ((_client, server), bytes) = (connection(), vec![7; MAX_ALREADY_READ]);
        let mut handover = Handover::new(server.as_fd(), &bytes).unwrap();
        assert!(!handover.is_begun());
        assert_eq!(handover.send(&agent).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(handover.is_begun());
        let receiving = std::thread::spawn(move || receive(&executor).unwrap().unwrap());
        while let Err(error) = handover.send(&agent) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            std::thread::yield_now();
        }
        assert!(receiving.join().unwrap().already_read == bytes);
    }

    #[test]
    fn a_message_without_a_descriptor_or_cut_off_is_an_error() {
        let (mut agent, executor) = UnixStream::pair().unwrap();
        agent.write_all(&[0, 0, 0, 0]).unwrap();
        assert_eq!(receive(&executor).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (mut agent, executor) = UnixStream::pair().unwrap();
        agent.write_all(&[9, 0]).unwrap();
        drop(agent);
        assert_eq!(receive(&executor).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (mut agent, executor) = UnixStream::pair().unwrap();
        agent.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(receive(&executor).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn an_executor_that_is_gone_or_does_not_read_is_an_error() {
        let (agent, executor) = UnixStream::pair().unwrap();
        let (_client, server) = connection();
        assert!(send(&agent, server.as_fd(), &vec![0; MAX_ALREADY_READ + 1]).is_err());
        agent.set_write_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let error = send(&agent, server.as_fd(), &vec![0; MAX_ALREADY_READ]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(executor);
        let error = send(&agent, server.as_fd(), b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
