//! Messages of coordinators, and actions of the model.

/// Request of a coordinator to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    /// Acquires up to two slices from the boot that the coordinator knows.
    Acquire {
        boot: u8,
        slices: u8,
    },
    /// Extends a grant by another time to live.
    Renew(Name),
    Release(Name),
}

/// Identity of a grant: the boot of its agent, and a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(super) boot: u8,
    pub(super) counter: u8,
}

/// Message in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lease: usize,
    pub(super) call: Call,
}

/// Next event in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A coordinator sends a message.
    Send(Message),
    /// A message arrives.
    Deliver {
        message: Message,
        /// Whether the message stays in transit and may arrive again.
        again: bool,
        /// Whether the response reaches the coordinator.
        answered: bool,
    },
    /// A message is lost.
    Lose(Message),
    /// A coordinator reads an agent's inventory and adopts its grants.
    Adopt {
        coordinator: usize,
        /// Agent whose inventory is read.
        agent: usize,
    },
    /// A kernel starts on a lease's slice.
    Start {
        agent: usize,
        lease: usize,
        /// Whether the kernel never ends on its own.
        hangs: bool,
    },
    /// A kernel ends.
    End {
        agent: usize,
        /// Lease whose kernel ends.
        lease: usize,
    },
    /// The clocks of all agents advance together, which loses no behaviour because agents do not know each other.
    Tick,
    /// An agent crashes and restarts.
    Restart(usize),
}
