//! The board of a session: a page that its executor writes and the agent reads.
//!
//! Two words go the other way, from the agent: the time at which the session ends unless it is extended, in case the agent hangs, and that it ends
//! the session now, in case its control socket closes because the agent died.
//!
//! Figures only, each by itself: a reader never needs two of them to belong together. The executor decides what it writes, so
//! the agent takes nothing here for more than what a tenant says of itself; what counts against a device is the grant. The one
//! thing besides figures is the digest of the secret by which the session's client may come back.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

pub use crate::executor::board::monotonic_nanoseconds;
use sha2::{Digest, Sha256};

use crate::shared_page::SharedPage;

/// 64-bit words of the page.
const WORDS: usize = 512;
/// Words from one figure to the next: a cache line, as they are written by different threads.
const LINE: usize = 8;

const LIMIT: usize = 0;
const READY: usize = LINE;
const TENSORS: usize = 2 * LINE;
const STORED_BYTES: usize = 3 * LINE;
const ACTIVE: usize = 4 * LINE;
const CONNECTED: usize = 5 * LINE;
const ACTIVITY: usize = 6 * LINE;
const RECEIVED: usize = 7 * LINE;
const SENT: usize = 8 * LINE;
/// Four words.
const SECRET: usize = 9 * LINE;
const UNTIL: usize = 10 * LINE;
const OVER: usize = 11 * LINE;

/// What a board says at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The engine is open: programs can run.
    pub ready: bool,
    /// Tensors stored.
    pub tensors: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Executions that have begun and not ended.
    pub active_executions: u64,
    /// A client is connected.
    pub connected: bool,
    /// When a client last asked for anything or an execution ended, in nanoseconds of the machine's monotonic clock.
    pub last_activity: u64,
    /// Bytes of streams received since the start.
    pub received_bytes: u64,
    /// Bytes of streams sent since the start.
    pub sent_bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Board {
    page: SharedPage<WORDS>,
}

impl Board {
    /// A new board and its file. The last activity is now.
    ///
    /// # Errors
    /// The system's.
    pub fn create(limit_bytes: u64) -> std::io::Result<(Self, OwnedFd)> {
        let (page, file) = SharedPage::create("sahasra-session-board")?;
        let board = Self { page };
        board.page.word(LIMIT).store(limit_bytes, Release);
        board.touch();
        Ok((board, file))
    }

    /// The board in a file that [`Board::create`] made.
    ///
    /// # Errors
    /// The system's; a file that is no board.
    pub fn map(file: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            page: SharedPage::map(file)?,
        })
    }

    /// Bytes that the session may hold on its device, set by the agent before the executor starts.
    pub fn limit_bytes(&self) -> u64 {
        self.page.word(LIMIT).load(Acquire)
    }

    /// All figures. Each is of some moment during the call.
    pub fn figures(&self) -> Figures {
        let read = |place| self.page.word(place).load(Acquire);
        Figures {
            ready: read(READY) != 0,
            tensors: read(TENSORS),
            stored_bytes: read(STORED_BYTES),
            active_executions: read(ACTIVE),
            connected: read(CONNECTED) != 0,
            last_activity: read(ACTIVITY),
            received_bytes: read(RECEIVED),
            sent_bytes: read(SENT),
        }
    }

    /// Shows by which secret its client may come back: its digest, so that nobody learns the secret here. None: nobody may.
    pub fn set_secret(&self, secret: Option<&[u8]>) {
        let digest = secret.map_or([0; 4], digest);
        for (place, word) in digest.into_iter().enumerate() {
            self.page.word(SECRET + place).store(word, Release);
        }
    }

    /// Whether a client may come back by this secret. It takes as long for a wrong one as for the right one. While another is being
    /// written neither is right.
    pub fn is_secret(&self, secret: &[u8]) -> bool {
        let shown: [u64; 4] = std::array::from_fn(|place| self.page.word(SECRET + place).load(Acquire));
        let given = digest(secret);
        let differs = shown.iter().zip(given).fold(0, |differs, (shown, given)| differs | (shown ^ given));
        shown != [0; 4] && differs == 0
    }

    /// The agent says until when the session lasts unless it is extended, in nanoseconds of the machine's monotonic clock.
    pub fn set_until(&self, until: u64) {
        self.page.word(UNTIL).store(until, Release);
    }

    /// Until when the session lasts, as far as the agent has said; 0 before it has.
    pub fn until(&self) -> u64 {
        self.page.word(UNTIL).load(Acquire)
    }

    /// The agent ends the session.
    pub fn set_over(&self) {
        self.page.word(OVER).store(1, Release);
    }

    /// Whether the agent ends the session.
    pub fn is_over(&self) -> bool {
        self.page.word(OVER).load(Acquire) != 0
    }

    /// Says that the engine is open.
    pub fn set_ready(&self) {
        self.page.word(READY).store(1, Release);
    }

    /// Says what is stored.
    pub fn set_stored(&self, tensors: u64, bytes: u64) {
        self.page.word(TENSORS).store(tensors, Release);
        self.page.word(STORED_BYTES).store(bytes, Release);
    }

    /// An execution begins.
    pub fn execution_begins(&self) {
        self.page.word(ACTIVE).fetch_add(1, AcqRel);
        self.touch();
    }

    /// An execution has ended, however.
    pub fn execution_ends(&self) {
        // A call too many is a mistake of the executor; the figure stays one.
        let _ = self.page.word(ACTIVE).fetch_update(AcqRel, Acquire, |active| active.checked_sub(1));
        self.touch();
    }

    /// Says whether a client is connected. That one came or left is an activity.
    pub fn set_connected(&self, connected: bool) {
        self.page.word(CONNECTED).store(u64::from(connected), Release);
        self.touch();
    }

    /// A client has asked for something, now.
    pub fn touch(&self) {
        self.page.word(ACTIVITY).fetch_max(monotonic_nanoseconds(), AcqRel);
    }

    /// So many bytes of a stream came in.
    pub fn received(&self, bytes: u64) {
        self.page.word(RECEIVED).fetch_add(bytes, AcqRel);
    }

    /// So many bytes of a stream went out.
    pub fn sent(&self, bytes: u64) {
        self.page.word(SENT).fetch_add(bytes, AcqRel);
    }
}

fn digest(secret: &[u8]) -> [u64; 4] {
    let digest: [u8; 32] = Sha256::digest(secret).into();
    std::array::from_fn(|place| {
        let bytes = digest.iter().skip(8 * place).take(8);
        bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_sees_what_the_executor_writes() {
        let before = monotonic_nanoseconds();
        let (agent, file) = Board::create(512 << 20).unwrap();
        let executor = Board::map(&file).unwrap();
        drop(file);
        assert_eq!(executor.limit_bytes(), 512 << 20);
        let fresh = agent.figures();
        assert!(fresh.last_activity >= before);
        let nothing = Figures {
            last_activity: fresh.last_activity,
            ..Figures::default()
        };
        assert_eq!(fresh, nothing);

        executor.set_ready();
        executor.set_connected(true);
        executor.set_stored(3, 4096);
        executor.execution_begins();
        executor.execution_begins();
        executor.execution_ends();
        executor.received(10);
        executor.sent(7);
        executor.sent(7);
        let seen = agent.figures();
        assert!(seen.last_activity > fresh.last_activity);
        let expected = Figures {
            ready: true,
            tensors: 3,
            stored_bytes: 4096,
            active_executions: 1,
            connected: true,
            last_activity: seen.last_activity,
            received_bytes: 10,
            sent_bytes: 14,
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_agent_tells_the_right_secret_from_others_and_never_sees_it() {
        let (agent, file) = Board::create(1).unwrap();
        let executor = Board::map(&file).unwrap();
        assert!(!agent.is_secret(b"") && !agent.is_secret(b"first"));
        executor.set_secret(Some(b"first"));
        assert!(agent.is_secret(b"first") && !agent.is_secret(b"firs") && !agent.is_secret(b"second"));
        let words: Vec<u8> = (0..WORDS)
            .flat_map(|place| agent.page.word(place).load(Acquire).to_be_bytes())
            .collect();
        assert!(!words.windows(5).any(|five| five == b"first"));
        executor.set_secret(Some(b"second"));
        assert!(agent.is_secret(b"second") && !agent.is_secret(b"first"));
        executor.set_secret(None);
        assert!(!agent.is_secret(b"second") && !agent.is_secret(&[]));
    }

    #[test]
    fn executions_never_count_below_none() {
        let (board, _file) = Board::create(1).unwrap();
        board.execution_ends();
        board.execution_begins();
        assert_eq!(board.figures().active_executions, 1);
    }

    #[test]
    fn an_executors_other_board_is_none_of_a_session() {
        let (_board, file) = crate::executor::board::Board::create().unwrap();
        assert!(Board::map(&file).is_err());
    }
}
