//! Tests of the memory that a client on the agent's machine shares with its session.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use bytes::{Bytes, BytesMut};
use sahasra_client::{Options, Session, Target, Token};
use sahasra_wire::Message;
use sahasra_wire::cuda::{Extent, Map, Operation, Read, Region, Write, operation};
use sahasra_wire::grants::SessionTerms;
use sahasra_wire::session::{Attach, ClientFrame, client_frame, frame};

use super::{
    coordinator::{Coordinator, TIMEOUT},
    sessions::{Place, acquisition, place, terms},
};

const ARRAY: usize = 1 << 20;

/// Connects a client to a session of engine cuda.
async fn connect(place: &Place, name: &str, shares_memory: bool) -> Session {
    let target = Target::direct(&place.agent.url, Token::text("right"), None, "team", name).unwrap();
    let options = Options {
        shares_memory,
        ..Options::default()
    };
    Session::connect(target, options).await.unwrap()
}

async fn grant(place: &Place, name: &str) -> Coordinator {
    let coordinator = Coordinator::new(&place.agent.url, name).await;
    let terms = SessionTerms {
        engine: "cuda".to_owned(),
        ..terms(name)
    };
    coordinator.try_acquire(&acquisition(&coordinator, terms)).await.unwrap();
    coordinator
}

/// Maps an array in a context. Returns its address and size.
fn array(session: &Session) -> (Region, Extent) {
    let address = session.welcome().unwrap().cuda.unwrap().first_address;
    let map = Operation {
        kind: Some(operation::Kind::Map(Map {
            address,
            bytes: ARRAY as u64,
        })),
    };
    session.cuda_batch(1, map.encode_length_delimited_to_vec().into()).unwrap();
    let region = Region {
        address,
        ..Region::default()
    };
    let extent = Extent {
        width: ARRAY as u64,
        height: 1,
        depth: 1,
    };
    (region, extent)
}

#[tokio::test]
async fn a_client_on_this_machine_copies_through_shared_memory_and_no_other_client_gets_it() {
    let place = place(&[]).await;
    let (_mine, _theirs) = (grant(&place, "mine").await, grant(&place, "theirs").await);
    let session = connect(&place, "mine", true).await;
    let memory = session.shared_memory().expect("it is shared").clone();
    let (region, extent) = array(&session);
    let bytes: Vec<u8> = (0..ARRAY).map(|index| ((index * 7) >> 3) as u8).collect();
    let sent = session.traffic();
    let mut slot = memory.take().unwrap();
    slot.fill(&bytes);
    let write = Write {
        context: 1,
        to: region,
        extent,
        slot: None,
        place: None,
    };
    session.cuda_write_shared(write, slot).unwrap();
    let slot = memory.take().unwrap();
    let read = Read {
        context: 1,
        from: region,
        extent,
        request: 0,
        slot: None,
        place: None,
    };
    session.cuda_read_shared(read, &slot).await.unwrap();
    let mut read_back = vec![0; ARRAY];
    slot.copy_to(&mut read_back);
    assert!(read_back == bytes);
    drop(slot);
    let used = session.traffic();
    assert!(
        used.sent_bytes + used.received_bytes - sent.sent_bytes - sent.received_bytes < 1024,
        "{used:?}"
    );

    // Another client has memory of its own.
    let other = connect(&place, "theirs", true).await;
    let others = other.shared_memory().expect("it is shared").clone();
    let mut mine = memory.take().unwrap();
    mine.fill(b"mine");
    let mut seen = vec![0; 4];
    while let Some(slot) = others.take() {
        slot.copy_to(&mut seen);
        assert_eq!(seen, [0; 4]);
        slot.forget();
    }
    // One that does not ask has none.
    drop(other);
    let plain = Coordinator::new(&place.agent.url, "plain").await;
    let terms = SessionTerms {
        engine: "cuda".to_owned(),
        ..terms("plain")
    };
    plain.try_acquire(&acquisition(&plain, terms)).await.unwrap();
    assert!(connect(&place, "plain", false).await.shared_memory().is_none());
}

/// Sends bytes to the agent's socket, and returns what it answers before it hangs up.
fn ask(socket: &str, request: &[u8]) -> usize {
    // Agents of other tests listen, too; they know no such secret either, and may be gone.
    let Ok(stream) = UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket).unwrap()) else {
        return 0;
    };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = std::io::Write::write_all(&mut &stream, request);
    let mut answer = Vec::new();
    match std::io::Read::read_to_end(&mut &stream, &mut answer) {
        Ok(bytes) => bytes,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the agent does not hang up");
            0
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_secret_gets_nothing_from_the_agents_socket() {
    let place = place(&[]).await;
    let _mine = grant(&place, "mine").await;
    let session = connect(&place, "mine", true).await;
    assert!(session.shared_memory().is_some());
    // Everyone in the network namespace can see the name.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = sockets
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.strip_prefix("@sahasra-"));
    let names: Vec<String> = names
        .filter(|name| name.len() == 32)
        .map(|name| format!("sahasra-{name}"))
        .collect();
    assert!(!names.is_empty());
    let frame = |secret: &[u8]| {
        let attach = ClientFrame {
            kind: Some(client_frame::Kind::Attach(Attach {
                secret: Bytes::copy_from_slice(secret),
            })),
            ..ClientFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&attach, 0, &mut bytes).unwrap();
        bytes.to_vec()
    };
    let resume = session.welcome().unwrap().resume;
    let long = [&frame(&[7; 32])[..], &[0; 300]].concat();
    for request in [
        frame(&[0; 32]),
        frame(&[]),
        frame(&resume),
        long,
        vec![0xff; 64],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        u64::MAX.to_le_bytes().to_vec(),
    ] {
        for name in &names {
            assert_eq!(ask(name, &request), 0);
        }
    }
    // The session does not notice.
    let (region, extent) = array(&session);
    let read = Read {
        context: 1,
        from: region,
        extent,
        request: 0,
        slot: None,
        place: None,
    };
    assert_eq!(session.cuda_read(read, ARRAY as u64).await.unwrap().data.len(), ARRAY);
}
