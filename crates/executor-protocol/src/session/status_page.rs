//! The status page of a session: a page of shared memory that the session executor writes and the agent reads.
//!
//! The agent writes two words of the page: the time at which the session ends unless it is extended, in case the agent hangs; and a flag
//! that the agent is ending the session, which distinguishes that case from an agent that died when the control socket closes.
//!
//! The rest are independent statistics: a reader never needs two of them to be consistent. The executor runs a tenant's programs, so the
//! agent treats the values as the tenant's own claims; the grant alone counts against a device. Besides statistics the page holds the
//! digest of the secret with which the session's client may reconnect.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::clock::{monotonic_now, to_word};
use crate::shared_page::SharedPage;

/// Size of the page in 64-bit words.
const WORDS: usize = 512;
/// Distance between two values in words: one cache line, because different threads write them.
const LINE: usize = 8;

const TENSORS: usize = 0;
const STORED_BYTES: usize = LINE;
const ACTIVE: usize = 2 * LINE;
const CONNECTED: usize = 3 * LINE;
const ACTIVITY: usize = 4 * LINE;
const RECEIVED: usize = 5 * LINE;
const SENT: usize = 6 * LINE;
/// The digest occupies four words.
const SECRET: usize = 7 * LINE;
const UNTIL: usize = 8 * LINE;
const OVER: usize = 9 * LINE;

/// Values of a status page at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub tensors: u64,
    /// Total bytes of the stored tensors.
    pub stored_bytes: u64,
    /// Executions that have begun and not ended.
    pub active_executions: u64,
    pub connected: bool,
    /// Time of the last client request or end of an execution, by the machine's monotonic clock.
    pub last_activity: Duration,
    /// Bytes received on streams since the executor started.
    pub received_bytes: u64,
    /// Bytes sent on streams since the executor started.
    pub sent_bytes: u64,
}

/// Shared page of statistics of a session, see the [module](self).
#[derive(Debug)]
pub struct StatusPage {
    page: SharedPage<WORDS>,
}

impl StatusPage {
    /// Creates a status page, and returns it with its file. The time of the last activity is now.
    pub fn create() -> std::io::Result<(Self, OwnedFd)> {
        let (page, file) = SharedPage::create("sahasra-session-status")?;
        let status_page = Self { page };
        status_page.touch();
        Ok((status_page, file))
    }

    /// Maps the status page in a file that [`StatusPage::create`] made.
    ///
    /// # Errors
    /// Errors of the operating system, or an error for a file that holds no status page.
    pub fn map(file: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            page: SharedPage::map(file)?,
        })
    }

    /// Reads all values. Each is read at its own moment during the call.
    pub fn stats(&self) -> Stats {
        let read = |place| self.page.word(place).load(Acquire);
        Stats {
            tensors: read(TENSORS),
            stored_bytes: read(STORED_BYTES),
            active_executions: read(ACTIVE),
            connected: read(CONNECTED) != 0,
            last_activity: Duration::from_nanos(read(ACTIVITY)),
            received_bytes: read(RECEIVED),
            sent_bytes: read(SENT),
        }
    }

    /// Publishes the secret with which the session's client may reconnect, or `None` to reject every reconnection. Only the digest is
    /// stored, so that no reader of the page learns the secret.
    pub fn set_secret(&self, secret: Option<&[u8]>) {
        let digest = secret.map_or([0; 4], digest);
        for (place, word) in digest.into_iter().enumerate() {
            self.page.word(SECRET + place).store(word, Release);
        }
    }

    /// Returns whether a client may reconnect with this secret. The comparison takes constant time. While another secret is being written,
    /// neither the old nor the new one matches.
    pub fn is_secret(&self, secret: &[u8]) -> bool {
        self.has_words(digest(secret))
    }

    /// Returns whether this is the [digest](secret_digest) of the secret. The comparison takes constant time.
    pub fn is_secret_digest(&self, digest: &[u8]) -> bool {
        digest.try_into().is_ok_and(|digest| self.has_words(words(digest)))
    }

    fn has_words(&self, words: [u64; 4]) -> bool {
        let shown: [u64; 4] = std::array::from_fn(|place| self.page.word(SECRET + place).load(Acquire));
        let is_same: bool = shown.ct_eq(&words).into();
        shown != [0; 4] && is_same
    }

    /// Sets the time at which the session ends unless it is extended, by the machine's monotonic clock. Called by the agent.
    pub fn set_until(&self, until: Duration) {
        self.page.word(UNTIL).store(to_word(until), Release);
    }

    /// Returns the time at which the session ends unless it is extended, by the machine's monotonic clock, or `None` before the
    /// agent has set it.
    pub fn until(&self) -> Option<Duration> {
        let until = self.page.word(UNTIL).load(Acquire);
        (until > 0).then(|| Duration::from_nanos(until))
    }

    /// Marks the session as ended by the agent.
    pub fn set_over(&self) {
        self.page.word(OVER).store(1, Release);
    }

    /// Returns whether the agent is ending the session.
    pub fn is_over(&self) -> bool {
        self.page.word(OVER).load(Acquire) != 0
    }

    /// Sets the number of stored tensors and their total bytes.
    pub fn set_stored(&self, tensors: u64, bytes: u64) {
        self.page.word(TENSORS).store(tensors, Release);
        self.page.word(STORED_BYTES).store(bytes, Release);
    }

    pub fn execution_begins(&self) {
        self.page.word(ACTIVE).fetch_add(1, AcqRel);
        self.touch();
    }

    /// Counts the end of an execution, whatever its outcome.
    pub fn execution_ends(&self) {
        // An unmatched call is a bug of the executor; the count stays at 0.
        let _ = self.page.word(ACTIVE).fetch_update(AcqRel, Acquire, |active| active.checked_sub(1));
        self.touch();
    }

    /// Sets whether a client is connected. A client that connects or disconnects counts as activity.
    pub fn set_connected(&self, connected: bool) {
        self.page.word(CONNECTED).store(u64::from(connected), Release);
        self.touch();
    }

    /// Sets the time of the last activity to now.
    pub fn touch(&self) {
        self.page.word(ACTIVITY).fetch_max(to_word(monotonic_now()), AcqRel);
    }

    pub fn received(&self, bytes: u64) {
        self.page.word(RECEIVED).fetch_add(bytes, AcqRel);
    }

    pub fn sent(&self, bytes: u64) {
        self.page.word(SENT).fetch_add(bytes, AcqRel);
    }
}

/// Digest of a secret, by which its holder can be known without the secret.
pub fn secret_digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn digest(secret: &[u8]) -> [u64; 4] {
    words(secret_digest(secret))
}

fn words(digest: [u8; 32]) -> [u64; 4] {
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
        let before = monotonic_now();
        let (agent, file) = StatusPage::create().unwrap();
        let executor = StatusPage::map(&file).unwrap();
        drop(file);
        let fresh = agent.stats();
        assert!(fresh.last_activity >= before);
        let nothing = Stats {
            last_activity: fresh.last_activity,
            ..Stats::default()
        };
        assert_eq!(fresh, nothing);

        executor.set_connected(true);
        executor.set_stored(3, 4096);
        executor.execution_begins();
        executor.execution_begins();
        executor.execution_ends();
        executor.received(10);
        executor.sent(7);
        executor.sent(7);
        let seen = agent.stats();
        assert!(seen.last_activity > fresh.last_activity);
        let expected = Stats {
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
        let (agent, file) = StatusPage::create().unwrap();
        let executor = StatusPage::map(&file).unwrap();
        assert!(!agent.is_secret(b"") && !agent.is_secret(b"first"));
        executor.set_secret(Some(b"first"));
        assert!(agent.is_secret(b"first") && !agent.is_secret(b"firs") && !agent.is_secret(b"second"));
        let words: Vec<u8> = (0..WORDS)
            .flat_map(|place| agent.page.word(place).load(Acquire).to_be_bytes())
            .collect();
        assert!(!words.windows(5).any(|five| five == b"first"));
        executor.set_secret(Some(b"second"));
        assert!(agent.is_secret(b"second") && !agent.is_secret(b"first"));
        let digest = secret_digest(b"second");
        assert!(agent.is_secret_digest(&digest) && !agent.is_secret_digest(&digest[..31]) && !agent.is_secret_digest(b"second"));
        executor.set_secret(None);
        assert!(!agent.is_secret(b"second") && !agent.is_secret(&[]));
        assert!(!agent.is_secret_digest(&digest) && !agent.is_secret_digest(&[0; 32]));
    }

    #[test]
    fn executions_never_count_below_none() {
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.execution_ends();
        status_page.execution_begins();
        assert_eq!(status_page.stats().active_executions, 1);
    }

    #[test]
    fn the_status_page_of_a_burst_is_none_of_a_session() {
        let (_status_page, file) = crate::burst::status_page::StatusPage::create().unwrap();
        assert!(StatusPage::map(&file).is_err());
    }
}
