//! What coordinators send, and what can happen next.

/// What a coordinator asks of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Up to two slices, from the boot that the coordinator knows.
    Acquire {
        /// That boot.
        boot: u8,
        /// How many slices.
        slices: u8,
    },
    /// Another time to live.
    Renew(Name),
    /// The grant back.
    Release(Name),
}

/// Name of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub(super) boot: u8,
    pub(super) counter: u8,
}

/// A message under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lease: usize,
    pub(super) call: Call,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A coordinator sends a message.
    Send(Message),
    /// It arrives; whether it will arrive again, and whether its answer arrives.
    Deliver {
        /// Which.
        message: Message,
        /// It stays under way.
        again: bool,
        /// The coordinator hears the answer.
        answered: bool,
    },
    /// It is lost.
    Lose(Message),
    /// A coordinator learns what an agent has lent.
    Adopt {
        /// Who.
        coordinator: usize,
        /// From whom.
        agent: usize,
    },
    /// A kernel starts on a lease's slice.
    Start {
        /// Where.
        agent: usize,
        /// For whom.
        lease: usize,
        /// It never ends by itself.
        hangs: bool,
    },
    /// A kernel ends.
    End {
        /// Where.
        agent: usize,
        /// For whom.
        lease: usize,
    },
    /// Time goes on. Agents know nothing of each other, so that their clocks may as well go together.
    Tick,
    /// An agent dies and starts anew.
    Restart(usize),
}
