//! How the agent hands a client's connection over to the executor of a session.
//!
//! Over the control socket goes one message for each connection: the length of what the agent has read from the connection
//! already (4 bytes, little-endian) and those bytes, with the connection's descriptor attached (`SCM_RIGHTS`) to the first byte.
//! What the client sent behind its request's head thus comes first, and the descriptor's own bytes follow.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};

/// Most bytes that come with a connection: an HTTP server reads no more ahead of a request's head than this.
pub const MAX_ALREADY_READ: usize = 1 << 20;

/// A connection that was handed over.
#[derive(Debug)]
pub struct Adopted {
    /// Its socket: a TCP connection or one end of a socket pair. It may be in non-blocking mode.
    pub connection: OwnedFd,
    /// What was read from it before, in order.
    pub already_read: Vec<u8>,
}

/// Hands a connection over. The caller may close its own descriptor afterwards.
///
/// # Errors
/// The system's: [`io::ErrorKind::BrokenPipe`] when the executor is gone, [`io::ErrorKind::WouldBlock`] when the socket has a
/// time limit and it has passed. The socket is of no use afterwards, as a part of the message may have gone.
pub fn send(control: &UnixStream, connection: BorrowedFd<'_>, already_read: &[u8]) -> io::Result<()> {
    let length = u32::try_from(already_read.len())
        .ok()
        .filter(|_| already_read.len() <= MAX_ALREADY_READ);
    let length = length
        .ok_or_else(|| io::Error::other("too much was read from the connection"))?
        .to_le_bytes();
    let descriptors = [connection];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    if !attached.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let total = length.len() + already_read.len();
    let mut sent = 0;
    while sent < total {
        let head = &length[sent.min(length.len())..];
        let body = &already_read[sent.saturating_sub(length.len())..];
        let slices = [IoSlice::new(head), IoSlice::new(body)];
        match sendmsg(control, &slices, &mut attached, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                sent += bytes;
                // It goes once, with the first byte.
                attached.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The next connection; waits for it. `None` when the agent has closed the control socket.
///
/// # Errors
/// The system's; a message that is none, after which the socket is of no use.
pub fn receive(control: &UnixStream) -> io::Result<Option<Adopted>> {
    let mut connection = None;
    let mut length = [0; 4];
    if !fill(control, &mut length, &mut connection)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ALREADY_READ {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more came with a connection than may"));
    }
    let mut already_read = vec![0; length];
    if length > 0 && !fill(control, &mut already_read, &mut None)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match connection {
        Some(connection) => Ok(Some(Adopted { connection, already_read })),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a connection came without its descriptor",
        )),
    }
}

/// Fills the buffer; gives whether it could, `false` only when nothing came at all. Keeps the descriptor that came with the first byte.
fn fill(control: &UnixStream, buffer: &mut [u8], descriptor: &mut Option<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer[filled..])];
        let received = match recvmsg(control.as_fd(), &mut slices, &mut attached, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in attached.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for one in descriptors {
                    if descriptor.replace(one).is_some() || filled > 0 {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor came where none belongs"));
                    }
                }
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors came than one"));
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

    /// A client's end and a server's end of a TCP connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// All that comes from a connection as an executor reads it.
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
        // And the other way, though the agent has closed its own descriptor.
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
            // More than the socket holds: sent piece by piece while it is read.
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
