use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

const SLOTS: u32 = 4;
const SLOT_BYTES: u64 = 8192;

/// Memory as the client and the executor have it.
fn pair() -> (Arc<SlotPool>, Arc<SharedMemory>) {
    let (executor, file) = SharedMemory::create(SLOTS, SLOT_BYTES).unwrap();
    let client = SharedMemory::map(&file, SLOTS, SLOT_BYTES).unwrap();
    (SlotPool::new(client), Arc::new(executor))
}

#[test]
fn a_file_that_can_shrink_or_has_another_size_is_refused() {
    let (_, file) = SharedMemory::create(SLOTS, SLOT_BYTES).unwrap();
    assert!(SharedMemory::map(&file, SLOTS, SLOT_BYTES).is_ok());
    assert!(SharedMemory::map(&file, SLOTS + 1, SLOT_BYTES).is_err());
    assert!(SharedMemory::map(&file, SLOTS, 2 * SLOT_BYTES).is_err());
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
    let bytes = file_bytes(SLOTS, SLOT_BYTES).unwrap();
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, bytes as u64).unwrap();
    assert!(SharedMemory::map(&unsealed, SLOTS, SLOT_BYTES).is_err());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(SharedMemory::map(&reader, SLOTS, SLOT_BYTES).is_err());
}

#[test]
fn numbers_that_are_out_of_range_are_refused() {
    for (slots, slot_bytes) in [
        (0, 4096),
        (MAX_SLOTS + 1, 4096),
        (u32::MAX, u64::MAX),
        (1, 0),
        (1, 4095),
        (1, MAX_SLOT_BYTES + 4096),
        (2, u64::MAX - 4095),
    ] {
        assert!(
            SharedMemory::create(slots, slot_bytes).is_err(),
            "{slots} slots of {slot_bytes} bytes"
        );
    }
}

#[test]
fn slots_that_do_not_exist_are_not_lent() {
    let (_, executor) = pair();
    assert_eq!(executor.loan(SLOTS - 1, 1, SLOT_BYTES).unwrap().bytes(), SLOT_BYTES as usize);
    for (slot, bytes) in [(SLOTS, 1), (u32::MAX, 1), (0, SLOT_BYTES + 1), (0, u64::MAX)] {
        assert!(executor.loan(slot, 1, bytes).is_none(), "{bytes} bytes of slot {slot}");
    }
}

#[test]
fn a_slot_is_free_when_the_peer_has_dropped_its_loan_of_this_turn() {
    let (client, executor) = pair();
    let mut slot = client.take().unwrap();
    slot.fill(b"rows");
    let (index, serial) = (slot.index(), slot.serial());
    slot.lend();
    // Of another serial.
    drop(executor.loan(index, serial + 1, 4).unwrap());
    let loan = executor.loan(index, serial, 4).unwrap();
    assert_eq!(loan.as_ref(), b"rows");
    assert!(executor.loan(index, serial, 4).is_none(), "it is lent already");
    let others: Vec<_> = std::iter::from_fn(|| client.take()).collect();
    assert_eq!(others.len() as u32, SLOTS - 1);
    assert!(others.iter().all(|other| other.index() != index));
    drop(loan);
    let again = client.take().unwrap();
    assert_eq!(again.index(), index);
    assert!(again.serial() > serial);
}

#[test]
fn a_slot_that_was_forgotten_is_never_free() {
    let (client, executor) = pair();
    let slot = client.take().unwrap();
    let loan = executor.loan(slot.index(), slot.serial(), 1).unwrap();
    slot.forget();
    drop(loan);
    let rest: Vec<_> = std::iter::from_fn(|| client.take()).collect();
    assert_eq!(rest.len() as u32, SLOTS - 1);
}

#[test]
fn slots_can_be_left_for_others() {
    let (client, _executor) = pair();
    let taken: Vec<_> = std::iter::from_fn(|| client.take_leaving(2)).collect();
    assert_eq!(taken.len() as u32, SLOTS - 2);
    assert!(client.take().is_some());
}

#[test]
fn what_the_peer_copies_to_a_slot_arrives() {
    let (client, executor) = pair();
    let slot = client.take().unwrap();
    let mut loan = executor.loan(slot.index(), slot.serial(), 6).unwrap();
    loan.target().copy_from_slice(b"answer");
    drop(loan);
    let mut copied = [0; 6];
    slot.copy_to(&mut copied);
    assert_eq!(&copied, b"answer");
}

#[test]
fn a_file_arrives_with_its_message_and_a_message_without_one_alone() {
    let (here, there) = UnixStream::pair().unwrap();
    let (executor, file) = SharedMemory::create(SLOTS, SLOT_BYTES).unwrap();
    send(&here, b"attached", &file).unwrap();
    assert!(unread_bytes(&here).unwrap() > 0);
    let (message, received) = receive(&there).unwrap();
    assert_eq!(unread_bytes(&here).unwrap(), 0);
    assert_eq!(message, b"attached");
    let client = SlotPool::new(SharedMemory::map(received.unwrap(), SLOTS, SLOT_BYTES).unwrap());
    let mut slot = client.take().unwrap();
    slot.fill(b"shared");
    assert_eq!(Arc::new(executor).loan(slot.index(), 1, 6).unwrap().as_ref(), b"shared");
    std::io::Write::write_all(&mut &here, b"refused").unwrap();
    let (message, received) = receive(&there).unwrap();
    assert_eq!((message.as_slice(), received.is_none()), (b"refused".as_slice(), true));
    assert!(send(&here, &[0; 5000], &file).is_err());
    drop(here);
    assert_eq!(receive(&there).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

/// A step of a client and an executor.
#[derive(Clone, Debug)]
enum Step {
    /// The client sends bytes in a slot, if one is free.
    Send(u8),
    /// The executor receives a message.
    Receive,
    /// The executor drops one of its loans.
    Free(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u8>().prop_map(Step::Send),
        4 => Just(Step::Receive),
        3 => any::<usize>().prop_map(Step::Free),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Carries out the steps. Returns whether every message had a loan, with the bytes that were sent until it was dropped.
fn carry_out(steps: Vec<Step>) -> bool {
    let (client, executor) = pair();
    let (mut sent, mut loans) = (VecDeque::new(), Vec::new());
    let mut are_right = true;
    for step in steps {
        match step {
            Step::Send(byte) => {
                if let Some(mut slot) = client.take() {
                    slot.fill(&[byte; 100]);
                    sent.push_back((slot.index(), slot.serial(), byte));
                    slot.lend();
                }
            }
            Step::Receive => {
                if let Some((slot, serial, byte)) = sent.pop_front() {
                    let loan = executor.loan(slot, serial, 100);
                    are_right &= loan.is_some();
                    loans.extend(loan.map(|loan| (loan, byte)));
                }
            }
            Step::Free(place) => {
                if !loans.is_empty() {
                    let (loan, byte) = loans.swap_remove(place % loans.len());
                    are_right &= loan.as_ref().iter().all(|found| *found == byte);
                }
            }
        }
    }
    are_right
}

proptest! {
    #[test]
    fn no_slot_is_used_twice_at_a_time(steps in steps()) {
        prop_assert!(carry_out(steps));
    }

    #[test]
    fn words_of_a_hostile_peer_let_no_slot_be_taken_twice(words in proptest::collection::vec((0..SLOTS, 0..9_u64), 0..40)) {
        let (client, executor) = pair();
        let mut held = Vec::new();
        for (slot, value) in words {
            executor.word(slot as usize).store(value, Ordering::Release);
            held.extend(client.take());
            let mut indices: Vec<u32> = held.iter().map(Slot::index).collect();
            indices.sort_unstable();
            prop_assert!(indices.is_sorted_by(|a, b| a < b), "{indices:?}");
            if held.len() as u32 == SLOTS {
                held.drain(..2).for_each(Slot::lend);
            }
        }
    }
}
