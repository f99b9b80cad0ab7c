//! Storage that a worker needs. Each thread keeps it from launch to launch, so that a launch allocates nothing.

use std::cell::Cell;

use super::address::{Kept, Known};
use super::group::Group;
use super::worker::Site;
use crate::compile::code::Lines;
use crate::lanes::LANES;
use crate::lanes::memory::Resolved;

/// Register or local storage larger than this number of bytes is freed after a launch.
const KEEP_LIMIT: usize = 64 << 20;

pub(super) struct Scratch {
    pub(super) uniform: Lines,
    pub(super) registers: Lines,
    pub(super) shared: Lines,
    pub(super) local: Lines,
    /// Side buffer: one register, mask words and widened addresses.
    pub(super) side: Lines,
    pub(super) resolved: Resolved,
    pub(super) pointers: Box<[*mut u8; LANES]>,
    pub(super) groups: Vec<Group>,
    pub(super) sites: Vec<Site>,
    pub(super) kept: Vec<Kept>,
    pub(super) known: Vec<Known>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Takes the storage of this thread, or new storage if another launch on this thread is using it.
pub(super) fn take() -> Box<Scratch> {
    SCRATCH.take().unwrap_or_else(|| {
        Box::new(Scratch {
            uniform: Lines::default(),
            registers: Lines::default(),
            shared: Lines::default(),
            local: Lines::default(),
            side: Lines::of_bytes(2048),
            resolved: Resolved::new(),
            pointers: Box::new([std::ptr::null_mut(); LANES]),
            groups: Vec::new(),
            sites: Vec::new(),
            kept: Vec::new(),
            known: Vec::new(),
        })
    })
}

pub(super) fn give_back(mut scratch: Box<Scratch>) {
    scratch.kept.clear();
    if scratch.local.0.len() * 64 > KEEP_LIMIT {
        scratch.local = Lines::default();
    }
    if scratch.registers.0.len() * 64 > KEEP_LIMIT {
        scratch.registers = Lines::default();
    }
    SCRATCH.set(Some(scratch));
}
