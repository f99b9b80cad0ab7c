//! Memory that the client shares with its session's executor, if both are on one machine: see `docs/adr/0049`.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sahasra_memory::shared::{self, Layout, SharedMemory as Memory, SlotPool};
use sahasra_wire::session::{Attach, ClientFrame, ServerFrame, SharedMemory, client_frame, frame, server_frame::Kind};

/// Timeout for each step of the exchange, in which a machine that answers at all takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Gets the memory that a session offers. `None`, with the reason in the log, if it cannot be had.
pub(crate) async fn attach(offer: SharedMemory) -> Option<Arc<SlotPool>> {
    let attached = try_attach(offer).await;
    attached
        .inspect_err(|error| tracing::debug!(%error, "no memory is shared with the session"))
        .ok()
}

async fn try_attach(offer: SharedMemory) -> io::Result<Arc<SlotPool>> {
    if shared::kernel_boot_id()? != offer.kernel_boot_id {
        return Err(io::Error::other("the session is on another machine"));
    }
    let stream = tokio::net::UnixStream::from_std(connect(&offer.socket)?)?;
    // Another process may have taken the name in this network namespace.
    let user = stream.peer_cred()?.uid();
    if user != offer.user {
        return Err(io::Error::other(format!(
            "the socket is that of user {user} instead of {}",
            offer.user
        )));
    }
    let stream = stream.into_std()?;
    let receiving = tokio::task::spawn_blocking(move || receive(stream, offer.secret));
    receiving.await.map_err(io::Error::other)?
}

/// Shows the secret, and receives the memory.
fn receive(mut stream: UnixStream, secret: Bytes) -> io::Result<Arc<SlotPool>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let attach = ClientFrame {
        kind: Some(client_frame::Kind::Attach(Attach { secret })),
        ..ClientFrame::default()
    };
    let mut request = BytesMut::new();
    frame::encode(&attach, 0, &mut request).map_err(io::Error::other)?;
    stream.write_all(&request)?;
    let (answer, file) = shared::receive(&stream)?;
    let mut decoder = frame::Decoder::default();
    decoder.buffer().extend_from_slice(&answer);
    let answer = decoder.next_frame::<ServerFrame>().map_err(io::Error::other)?;
    match (answer.and_then(|(frame, _)| frame.kind), file) {
        (Some(Kind::Attached(attached)), Some(file)) => Ok(SlotPool::new(Memory::map(
            file,
            Layout {
                slots: attached.slots,
                slot_bytes: attached.slot_bytes,
                pinned_bytes: attached.pinned_bytes,
            },
        )?)),
        (Some(Kind::Refused(refused)), _) => Err(io::Error::other(refused.message)),
        _ => Err(io::Error::other("the answer has no memory")),
    }
}

/// Connects to an abstract socket, in non-blocking mode. Does not wait for a listener whose queue is full.
fn connect(name: &[u8]) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use sahasra_wire::session::Attached;

    use super::*;

    const LAYOUT: Layout = Layout {
        slots: 2,
        slot_bytes: 4096,
        pinned_bytes: 0,
    };

    /// A listener, and the offer of memory that leads to it.
    fn offered() -> (UnixListener, SharedMemory) {
        let name = format!("sahasra-test-{}-{:x}", std::process::id(), fastrand::u64(..));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let offer = SharedMemory {
            socket: name.into(),
            kernel_boot_id: shared::kernel_boot_id().unwrap(),
            user: rustix::process::geteuid().as_raw(),
            secret: Bytes::from_static(b"secret"),
        };
        (listener, offer)
    }

    /// Answers one request with `answer`, and a file.
    fn answer(listener: UnixListener, attached: Attached, file: impl std::os::fd::AsFd + Send + 'static) -> std::thread::JoinHandle<Bytes> {
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (request, _) = shared::receive(&stream).unwrap();
            let frame = ServerFrame {
                kind: Some(Kind::Attached(attached)),
                ..ServerFrame::default()
            };
            let mut bytes = BytesMut::new();
            frame::encode(&frame, 0, &mut bytes).unwrap();
            shared::send(&stream, &bytes, file).unwrap();
            request.into()
        })
    }

    #[tokio::test]
    async fn the_memory_of_an_offer_is_taken_once_its_secret_was_shown() {
        let (listener, offer) = offered();
        let (memory, file) = Memory::create(LAYOUT).unwrap();
        let attached = Attached {
            slots: 2,
            slot_bytes: 4096,
            pinned_bytes: 0,
        };
        let answering = answer(listener, attached, file);
        let pool = try_attach(offer).await.unwrap();
        let mut slot = pool.take().unwrap();
        slot.fill(b"rows");
        assert_eq!(
            Arc::new(memory).loan_slot(slot.index(), slot.serial(), 4).unwrap().as_ref(),
            b"rows"
        );
        let request = answering.join().unwrap();
        assert!(request.windows(6).any(|window| window == b"secret"));
    }

    #[tokio::test]
    async fn memory_of_another_size_than_announced_is_refused() {
        let (listener, offer) = offered();
        let (_, file) = Memory::create(LAYOUT).unwrap();
        let attached = Attached {
            slots: 3,
            slot_bytes: 4096,
            pinned_bytes: 0,
        };
        let answering = answer(listener, attached, file);
        assert!(try_attach(offer).await.is_err());
        answering.join().unwrap();
    }

    #[tokio::test]
    async fn nothing_is_sent_to_another_machine_or_to_another_users_socket() {
        let (listener, offer) = offered();
        listener.set_nonblocking(true).unwrap();
        let elsewhere = SharedMemory {
            kernel_boot_id: "another".to_owned(),
            ..offer.clone()
        };
        assert!(try_attach(elsewhere).await.unwrap_err().to_string().contains("another machine"));
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let others = SharedMemory {
            user: offer.user + 1,
            ..offer.clone()
        };
        assert!(try_attach(others).await.unwrap_err().to_string().contains("of user"));
        let (stream, _) = listener.accept().unwrap();
        assert!(shared::receive(&stream).is_err(), "the client hung up");
        drop(listener);
        assert_eq!(try_attach(offer).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
