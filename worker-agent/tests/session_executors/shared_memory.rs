//! Copies through the memory that a session executor shares with its client.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sahasra_memory::shared::{self, Layout, PinnedMemory, SharedMemory, Slot, SlotPool};
use sahasra_wire::Message;
use sahasra_wire::cuda::{self, Batch, Extent, Map, Operation, Read, Region, Write, operation};
use sahasra_wire::session::{
    Attach, ClientFrame, FailureCode, Hello, RejectionCode, ServerFrame, client_frame::Kind as Sent, frame, server_frame::Kind,
};

use crate::client::{Client, code, hello};
use crate::harness::{Executor, TIMEOUT};

const MEMORY: u64 = 64 << 20;
/// Size of an array in bytes: several slots.
const ARRAY: usize = 40 << 20;
/// Size of the pieces in which it is copied, in bytes.
const PIECE: usize = 1 << 20;

fn executor() -> Executor {
    let arguments = ["--engine", "cuda", "--threads", "2", "--shared-memory-socket", "a-name"];
    Executor::start(&arguments, MEMORY)
}

fn sharing() -> Hello {
    Hello {
        shares_memory: true,
        ..hello()
    }
}

/// Sends a request for memory over a connection, as the agent passes it on. Returns the connection.
fn request(executor: &Executor, secret: &[u8]) -> UnixStream {
    let request = ClientFrame {
        kind: Some(Sent::Attach(Attach {
            secret: Bytes::copy_from_slice(secret),
        })),
        ..ClientFrame::default()
    };
    let mut bytes = BytesMut::new();
    frame::encode(&request, 0, &mut bytes).unwrap();
    executor.connection(&bytes)
}

fn attach(executor: &Executor, secret: &[u8]) -> Result<Arc<SlotPool>, RejectionCode> {
    let stream = request(executor, secret);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (answer, file) = shared::receive(&stream).unwrap();
    let mut decoder = frame::Decoder::default();
    decoder.buffer().extend_from_slice(&answer);
    let (answer, _) = decoder.next_frame::<ServerFrame>().unwrap().expect("a whole frame");
    match answer.kind {
        Some(Kind::Attached(attached)) => {
            let memory = SharedMemory::map(
                file.expect("a file"),
                Layout {
                    slots: attached.slots,
                    slot_bytes: attached.slot_bytes,
                    pinned_bytes: attached.pinned_bytes,
                },
            );
            Ok(SlotPool::new(memory.unwrap()))
        }
        Some(Kind::Refused(refused)) => {
            assert!(file.is_none(), "a client that is refused gets nothing");
            Err(refused.code())
        }
        other => panic!("{other:?}"),
    }
}

fn secret(client: &Client) -> Bytes {
    client.welcome.shared_memory.as_ref().expect("an offer").secret.clone()
}

/// A client with an array on the device, and the memory that it shares.
struct Sharer {
    client: Client,
    memory: Arc<SlotPool>,
    array: u64,
}

impl Sharer {
    fn of(executor: &Executor, mut client: Client) -> Self {
        let memory = attach(executor, &secret(&client)).expect("it is let in");
        let array = client.welcome.cuda.as_ref().expect("a device").first_address;
        let map = Operation {
            kind: Some(operation::Kind::Map(Map {
                address: array,
                bytes: ARRAY as u64,
            })),
        };
        client.send(Sent::CudaBatch(Batch { context: 1 }), map.encode_length_delimited_to_vec().into());
        Self { client, memory, array }
    }

    fn new(executor: &Executor) -> Self {
        Self::of(executor, executor.client_saying(sharing()))
    }

    fn rows(&self, place: usize, bytes: usize) -> (Region, Extent) {
        let region = Region {
            address: self.array + place as u64,
            ..Region::default()
        };
        let extent = Extent {
            width: bytes as u64,
            height: 1,
            depth: 1,
        };
        (region, extent)
    }

    /// Waits for a free slot.
    fn slot(&self) -> Slot {
        let until = std::time::Instant::now() + TIMEOUT;
        loop {
            if let Some(slot) = self.memory.take() {
                return slot;
            }
            assert!(std::time::Instant::now() < until, "no slot becomes free");
            std::thread::yield_now();
        }
    }

    fn write(&mut self, place: usize, bytes: &[u8]) {
        let mut slot = self.slot();
        slot.fill(bytes);
        let (to, extent) = self.rows(place, bytes.len());
        let write = Write {
            context: 1,
            to,
            extent,
            slot: named(&slot),
            place: None,
        };
        slot.lend();
        self.client.send(Sent::CudaWrite(write), Bytes::new());
    }

    fn ask(&mut self, place: usize, bytes: usize, slot: Option<cuda::Slot>) -> u64 {
        self.ask_for(place, bytes, slot, None)
    }

    fn ask_for(&mut self, at: usize, bytes: usize, slot: Option<cuda::Slot>, place: Option<cuda::PinnedPlace>) -> u64 {
        let (from, extent) = self.rows(at, bytes);
        let request = self.client.request();
        let read = Read {
            context: 1,
            from,
            extent,
            request,
            slot,
            place,
        };
        self.client.send(Sent::CudaRead(read), Bytes::new());
        request
    }

    /// Place of pinned memory in messages.
    fn place(&self, memory: &PinnedMemory) -> cuda::PinnedPlace {
        let offset = self.memory.pinned_offset(memory.start().as_ptr(), memory.bytes());
        cuda::PinnedPlace {
            offset: offset.expect("it is pinned memory"),
        }
    }

    fn read(&mut self, place: usize, bytes: usize) -> Vec<u8> {
        let slot = self.slot();
        let request = self.ask(place, bytes, named(&slot));
        assert!(matches!(self.client.answer(), Kind::Done(done) if done.request == request));
        let mut read = vec![0; bytes];
        slot.copy_to(&mut read);
        read
    }
}

fn named(slot: &Slot) -> Option<cuda::Slot> {
    Some(cuda::Slot {
        index: slot.index(),
        serial: slot.serial(),
    })
}

fn bytes(length: usize, salt: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index.wrapping_add(salt).wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

#[test]
fn bytes_come_and_go_through_shared_memory() {
    let executor = executor();
    let mut sharer = Sharer::new(&executor);
    let array = bytes(ARRAY, 1);
    for (piece, place) in array.chunks(PIECE).zip((0..).step_by(PIECE)) {
        sharer.write(place, piece);
    }
    for (piece, place) in array.chunks(PIECE).zip((0..).step_by(PIECE)) {
        assert!(sharer.read(place, piece.len()) == piece, "the piece at {place} differs");
    }
    // Rows of any size, at any place, through both ways.
    sharer.write(12_345, b"some bytes");
    assert_eq!(
        sharer.read(12_340, 20),
        [&array[12_340..12_345], b"some bytes", &array[12_355..12_360]].concat()
    );
    sharer.ask(12_345, 10, None);
    assert!(matches!(sharer.client.answer(), Kind::Tensor(tensor) if tensor.bytes == 10));
    assert_eq!(sharer.client.next().expect("a part").1, b"some bytes".as_slice());
}

#[test]
fn a_client_that_takes_no_descriptor_gets_no_others() {
    let executor = executor();
    let mut client = executor.client_saying(sharing());
    let secret = secret(&client);
    let untaken = request(&executor, &secret);
    while rustix::io::ioctl_fionread(&untaken).unwrap() == 0 {
        std::thread::yield_now();
    }
    // Waits until the executor has given up.
    assert_eq!(attach(&executor, &secret).unwrap_err(), RejectionCode::Unknown);
    let others: Vec<_> = (0..20).map(|_| attach(&executor, &secret)).collect();
    assert!(others.iter().all(Result::is_err));
    drop(untaken);
    client.close();
}

#[test]
fn a_broken_connection_loses_no_bytes_and_needs_no_other_memory() {
    let executor = executor();
    let mut sharer = Sharer::new(&executor);
    let array = bytes(12 * PIECE, 2);
    for (number, (piece, place)) in array.chunks(PIECE).zip((0..).step_by(PIECE)).enumerate() {
        if number % 3 == 2 {
            // What is sent from here on is lost with the connection.
            sharer.client.frames_left = Some(number % 2);
        }
        sharer.write(place, piece);
        if number % 3 == 2 {
            sharer.client.cut();
            let again = executor.connection(&[]);
            sharer.client.says = sharing();
            sharer.client.resume(again).unwrap();
        }
    }
    // A request whose answer is lost, too.
    let slot = sharer.slot();
    sharer.ask(0, PIECE, named(&slot));
    sharer.client.cut();
    let again = executor.connection(&[]);
    sharer.client.resume(again).unwrap();
    assert!(matches!(sharer.client.answer(), Kind::Done(_)));
    let mut first = vec![0; PIECE];
    slot.copy_to(&mut first);
    assert!(first == array[..PIECE]);
    drop(slot);
    for (piece, place) in array.chunks(PIECE).zip((0..).step_by(PIECE)) {
        assert!(sharer.read(place, piece.len()) == piece, "the piece at {place} differs");
    }
}

#[test]
fn who_does_not_know_the_secret_gets_no_memory() {
    let executor = executor();
    assert_eq!(attach(&executor, &[0; 32]).unwrap_err(), RejectionCode::Unknown, "without a client");
    let mut sharer = Sharer::new(&executor);
    let mut wrong = secret(&sharer.client).to_vec();
    wrong[31] ^= 1;
    for secret in [wrong.as_slice(), &[], &sharer.client.welcome.resume[..]] {
        assert_eq!(attach(&executor, secret).unwrap_err(), RejectionCode::Unknown);
    }
    // The next client gets memory of its own, and the secret of the one before is worth nothing.
    sharer.write(0, b"of the first client");
    let former = secret(&sharer.client);
    sharer.client.close();
    let next = Sharer::new(&executor);
    assert_eq!(attach(&executor, &former).unwrap_err(), RejectionCode::Unknown);
    let mut seen = [1; 19];
    next.slot().copy_to(&mut seen);
    assert_eq!(seen, [0; 19]);
}

#[test]
fn memory_is_offered_to_those_who_ask_where_there_is_some() {
    let executor = executor();
    let mut plain = executor.client();
    assert_eq!(plain.welcome.shared_memory, None);
    plain.close();
    let offer = executor.client_saying(sharing()).welcome.shared_memory.expect("an offer");
    let kernel_boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(
        (&offer.socket[..], offer.kernel_boot_id.as_str()),
        (b"a-name".as_slice(), kernel_boot_id.trim())
    );
    assert_eq!(offer.user, rustix::process::geteuid().as_raw());
    let without = Executor::start(&["--engine", "cuda", "--threads", "2"], MEMORY);
    let client = without.client_saying(sharing());
    assert_eq!(client.welcome.shared_memory, None);
    assert_eq!(attach(&without, &[0; 32]).unwrap_err(), RejectionCode::Unknown);
}

#[test]
fn slots_that_cannot_be_used_end_the_stream() {
    let executor = executor();
    let slot = |index, serial| Some(cuda::Slot { index, serial });
    for (slot, bytes) in [
        (slot(16, 1), 8),
        (slot(u32::MAX, u64::MAX), 8),
        (slot(0, 1), PIECE + 1),
        (slot(0, 1), usize::MAX >> 1),
    ] {
        let mut sharer = Sharer::new(&executor);
        sharer.ask(0, bytes, slot);
        assert!(
            matches!(sharer.client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::Malformed),
            "{slot:?}"
        );
        assert!(sharer.client.next().is_none());
    }
    // One that another request has.
    let mut sharer = Sharer::new(&executor);
    let mut batch = BytesMut::new();
    for _ in 0..2 {
        let (from, extent) = sharer.rows(0, 8);
        let read = Read {
            context: 1,
            from,
            extent,
            request: sharer.client.request(),
            slot: slot(3, 1),
            place: None,
        };
        let sequence = 2 + u64::from(!batch.is_empty());
        let frame = ClientFrame {
            sequence,
            kind: Some(Sent::CudaRead(read)),
            ..ClientFrame::default()
        };
        frame::encode(&frame, 0, &mut batch).unwrap();
    }
    sharer.client.write_raw(&batch);
    let answers: Vec<Kind> = std::iter::from_fn(|| sharer.client.next()).map(|(kind, _)| kind).collect();
    assert!(
        matches!(answers.last(), Some(Kind::Failed(failed)) if code(failed) == FailureCode::Malformed),
        "{answers:?}"
    );
    // Without shared memory, or with a payload besides.
    let mut client = executor.client_saying(sharing());
    let write = |slot| Write {
        context: 1,
        to: Region::default(),
        extent: Extent {
            width: 4,
            height: 1,
            depth: 1,
        },
        slot,
        place: None,
    };
    client.send(Sent::CudaWrite(write(slot(0, 1))), Bytes::new());
    assert!(matches!(client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::Malformed));
    let mut client = executor.client_saying(sharing());
    attach(&executor, &secret(&client)).unwrap();
    client.send(Sent::CudaWrite(write(slot(0, 1))), Bytes::from_static(b"more"));
    assert!(matches!(client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::Malformed));
}

#[test]
fn rows_are_copied_from_host_memory_and_back_to_it() {
    const HALF: usize = ARRAY / 2;
    let executor = executor();
    let mut sharer = Sharer::new(&executor);
    let (source, target) = (
        sharer.memory.allocate_pinned(HALF).unwrap(),
        sharer.memory.allocate_pinned(HALF).unwrap(),
    );
    let array = bytes(HALF, 5);
    // SAFETY: the memory has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(array.as_ptr(), source.start().as_ptr(), HALF) };
    let (to, extent) = sharer.rows(0, HALF);
    let write = Write {
        context: 1,
        to,
        extent,
        slot: None,
        place: Some(sharer.place(&source)),
    };
    sharer.client.send(Sent::CudaWrite(write), Bytes::new());
    let request = sharer.ask_for(0, HALF, None, Some(sharer.place(&target)));
    assert!(matches!(sharer.client.answer(), Kind::Done(done) if done.request == request));
    // SAFETY: the session has answered, and does not write any more.
    let copied = unsafe { std::slice::from_raw_parts(target.start().as_ptr(), HALF) };
    assert!(copied == array);
    assert!(sharer.read(PIECE, 100) == array[PIECE..PIECE + 100]);
}

#[test]
fn places_outside_of_the_host_memory_end_the_stream() {
    let executor = executor();
    let host = |sharer: &Sharer| sharer.memory.allocate_pinned(4096).unwrap();
    for offset in [u64::MAX, u64::MAX - 7, 1 << 50, ARRAY as u64 * 1000] {
        let mut sharer = Sharer::new(&executor);
        sharer.ask_for(0, 8, None, Some(cuda::PinnedPlace { offset }));
        assert!(
            matches!(sharer.client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::Malformed),
            "{offset}"
        );
        assert!(sharer.client.next().is_none());
    }
    // With a slot besides.
    let mut sharer = Sharer::new(&executor);
    let (slot, memory) = (sharer.slot(), host(&sharer));
    sharer.ask_for(0, 8, named(&slot), Some(sharer.place(&memory)));
    assert!(matches!(sharer.client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::Malformed));
}

#[test]
fn rows_outside_of_memory_are_an_error_and_their_slots_become_free() {
    let executor = executor();
    let mut sharer = Sharer::new(&executor);
    let slot = sharer.slot();
    sharer.ask(ARRAY, 8, named(&slot));
    assert!(matches!(sharer.client.answer(), Kind::Failed(failed) if code(&failed) == FailureCode::IllegalAddress));
    drop(slot);
    for _ in 0..40 {
        // More than there are slots: each is freed, though nothing is written any more.
        sharer.write(ARRAY, b"nowhere");
    }
}

#[test]
fn a_client_whose_executor_was_killed_still_has_its_memory() {
    let mut executor = executor();
    let mut sharer = Sharer::new(&executor);
    let array = bytes(8 * PIECE, 3);
    for (piece, place) in array.chunks(PIECE).zip((0..).step_by(PIECE)) {
        sharer.write(place, piece);
    }
    executor.child.kill().unwrap();
    executor.child.wait().unwrap();
    let mut slots = 0;
    while let Some(mut slot) = sharer.memory.take() {
        slot.fill(&array[..PIECE]);
        let mut copied = vec![0; PIECE];
        slot.copy_to(&mut copied);
        assert!(copied == array[..PIECE]);
        slot.forget();
        slots += 1;
    }
    assert!(slots >= 8, "{slots} slots of 16 had not been sent");
    assert!(sharer.client.next().is_none(), "the stream ends");
}

#[test]
fn a_request_in_pieces_or_with_more_behind_it_is_answered_alike() {
    let executor = executor();
    let client = executor.client_saying(sharing());
    let request = ClientFrame {
        kind: Some(Sent::Attach(Attach { secret: secret(&client) })),
        ..ClientFrame::default()
    };
    let mut bytes = BytesMut::new();
    frame::encode(&request, 0, &mut bytes).unwrap();
    let (first, rest) = bytes.split_at(7);
    let mut stream = executor.connection(first);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(rest).unwrap();
    let (_, file) = shared::receive(&stream).unwrap();
    assert!(file.is_some());
}
