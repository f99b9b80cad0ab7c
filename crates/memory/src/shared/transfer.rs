//! Transfer of a file over a Unix socket, with the bytes of a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum size of a message in bytes: small enough that a socket takes it at once.
const MESSAGE_BYTES: usize = 4096;

/// Sends a message of at most 4096 bytes, with a descriptor of the file at its first byte.
///
/// # Errors
/// Errors of the operating system, or a longer message.
pub fn send(stream: &UnixStream, message: &[u8], file: impl AsFd) -> io::Result<()> {
    if message.len() > MESSAGE_BYTES {
        return Err(io::Error::other(format!("a message of {} bytes is too long", message.len())));
    }
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    if !attached.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("failed to attach the file descriptor"));
    }
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(message)], &mut attached, SendFlags::NOSIGNAL))?;
    match sent == message.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Number of bytes that the peer has not read.
///
/// # Errors
/// Errors of the operating system.
pub fn unread_bytes(stream: &UnixStream) -> io::Result<i32> {
    /// `TIOCOUTQ` of asm-generic/ioctls.h.
    const OUTPUT_QUEUE: Opcode = 0x5411;
    // SAFETY: the kernel writes one `int`.
    Ok(unsafe { ioctl(stream, Getter::<OUTPUT_QUEUE, i32>::new()) }?)
}

/// Receives a message that was sent by [`send`]. Returns it with the file, or without one if none was attached.
///
/// # Errors
/// Errors of the operating system, or the end of the stream.
pub fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut message = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut message)];
    // Descriptors beyond the first one have no room, and the kernel closes them.
    let received = retry_on_intr(|| recvmsg(stream, &mut slices, &mut attached, RecvFlags::CMSG_CLOEXEC))?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let file = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    message.truncate(received.bytes);
    Ok((message, file))
}
