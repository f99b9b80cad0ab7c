use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

const SLOTS: u32 = 4;
const SLOT_BYTES: u64 = 8192;
const PINNED_BYTES: u64 = 64 << 10;
const LAYOUT: Layout = Layout {
    slots: SLOTS,
    slot_bytes: SLOT_BYTES,
    pinned_bytes: PINNED_BYTES,
};

/// Memory as the client and the executor have it.
fn pair() -> (Arc<SlotPool>, Arc<SharedMemory>) {
    let (executor, file) = SharedMemory::create(LAYOUT).unwrap();
    let client = SharedMemory::map(&file, LAYOUT).unwrap();
    (SlotPool::new(client), Arc::new(executor))
}

#[test]
fn a_file_that_can_shrink_or_has_another_size_is_refused() {
    let (_, file) = SharedMemory::create(LAYOUT).unwrap();
    assert!(SharedMemory::map(&file, LAYOUT).is_ok());
    for other in [
        Layout {
            slots: SLOTS + 1,
            ..LAYOUT
        },
        Layout {
            slot_bytes: 2 * SLOT_BYTES,
            ..LAYOUT
        },
        Layout {
            pinned_bytes: 2 * PINNED_BYTES,
            ..LAYOUT
        },
    ] {
        assert!(SharedMemory::map(&file, other).is_err(), "{other:?}");
    }
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
    let bytes = LAYOUT.file_bytes().unwrap();
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, bytes as u64).unwrap();
    assert!(SharedMemory::map(&unsealed, LAYOUT).is_err());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(SharedMemory::map(&reader, LAYOUT).is_err());
}

#[test]
fn numbers_that_are_out_of_range_are_refused() {
    for (slots, slot_bytes, pinned_bytes) in [
        (0, 4096, 0),
        (MAX_SLOTS + 1, 4096, 0),
        (u32::MAX, u64::MAX, 0),
        (1, 0, 0),
        (1, 4095, 0),
        (1, MAX_SLOT_BYTES + 4096, 0),
        (2, u64::MAX - 4095, 0),
        (1, 4096, 1),
        (1, 4096, MAX_PINNED_BYTES + 4096),
        (1, 4096, u64::MAX - 4095),
    ] {
        let layout = Layout {
            slots,
            slot_bytes,
            pinned_bytes,
        };
        assert!(SharedMemory::create(layout).is_err(), "{layout:?}");
    }
}

#[test]
fn slots_that_do_not_exist_are_not_lent() {
    let (_, executor) = pair();
    assert_eq!(executor.loan_slot(SLOTS - 1, 1, SLOT_BYTES).unwrap().bytes(), SLOT_BYTES as usize);
    for (slot, bytes) in [(SLOTS, 1), (u32::MAX, 1), (0, SLOT_BYTES + 1), (0, u64::MAX)] {
        assert!(executor.loan_slot(slot, 1, bytes).is_none(), "{bytes} bytes of slot {slot}");
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
    drop(executor.loan_slot(index, serial + 1, 4).unwrap());
    let loan = executor.loan_slot(index, serial, 4).unwrap();
    assert_eq!(loan.as_ref(), b"rows");
    assert!(executor.loan_slot(index, serial, 4).is_none(), "it is lent already");
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
    let loan = executor.loan_slot(slot.index(), slot.serial(), 1).unwrap();
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
    let mut loan = executor.loan_slot(slot.index(), slot.serial(), 6).unwrap();
    loan.target().copy_from_slice(b"answer");
    drop(loan);
    let mut copied = [0; 6];
    slot.copy_to(&mut copied);
    assert_eq!(&copied, b"answer");
}

#[test]
fn a_file_arrives_with_its_message_and_a_message_without_one_alone() {
    let (here, there) = UnixStream::pair().unwrap();
    let (executor, file) = SharedMemory::create(LAYOUT).unwrap();
    send(&here, b"attached", &file).unwrap();
    assert!(unread_bytes(&here).unwrap() > 0);
    let (message, received) = receive(&there).unwrap();
    assert_eq!(unread_bytes(&here).unwrap(), 0);
    assert_eq!(message, b"attached");
    let client = SlotPool::new(SharedMemory::map(received.unwrap(), LAYOUT).unwrap());
    let mut slot = client.take().unwrap();
    slot.fill(b"shared");
    assert_eq!(Arc::new(executor).loan_slot(slot.index(), 1, 6).unwrap().as_ref(), b"shared");
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
                    let loan = executor.loan_slot(slot, serial, 100);
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

#[test]
fn host_memory_is_where_the_executor_finds_it_and_zero_when_it_is_allocated_again() {
    let (client, executor) = pair();
    let first = client.allocate_pinned(5000).unwrap();
    let second = client.allocate_pinned(1).unwrap();
    let offset = client.pinned_offset(second.start().as_ptr(), 1).unwrap();
    // SAFETY: the byte is that of the allocation.
    unsafe { second.start().write(7) };
    assert_eq!(executor.loan_pinned(offset, 1).unwrap().as_ref(), [7]);
    let first_offset = client.pinned_offset(first.start().as_ptr(), 5000).unwrap();
    executor.loan_pinned(first_offset, 5000).unwrap().target().fill(9);
    // SAFETY: the byte is that of the allocation.
    assert_eq!(unsafe { first.start().add(4999).read() }, 9);
    drop(first);
    let again = client.allocate_pinned(8192).unwrap();
    assert_eq!(client.pinned_offset(again.start().as_ptr(), 8192), Some(first_offset));
    assert!(
        executor
            .loan_pinned(first_offset, 8192)
            .unwrap()
            .as_ref()
            .iter()
            .all(|byte| *byte == 0)
    );
    assert!(client.allocate_pinned(PINNED_BYTES as usize).is_none(), "there is no room");
    assert!(client.allocate_pinned(usize::MAX).is_none());
}

#[test]
fn what_is_not_all_within_the_host_memory_has_no_place_there() {
    let (client, executor) = pair();
    let whole = client.allocate_pinned(PINNED_BYTES as usize).unwrap();
    let (start, bytes) = (whole.start().as_ptr().cast_const(), whole.bytes());
    assert_eq!(client.pinned_offset(start, bytes), Some(0));
    assert_eq!(client.pinned_offset(start, bytes + 1), None);
    assert_eq!(client.pinned_offset(start.wrapping_sub(1), 1), None);
    assert_eq!(client.pinned_offset(start.wrapping_add(bytes), 1), None);
    assert_eq!(client.pinned_offset(start, usize::MAX), None);
    assert!(executor.loan_pinned(0, PINNED_BYTES).is_some());
    for (offset, bytes) in [(0, PINNED_BYTES + 1), (PINNED_BYTES, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(executor.loan_pinned(offset, bytes).is_none(), "{bytes} bytes at {offset}");
    }
}
