//! Protocol state of one client's stream: which of its operations have arrived, which answers it has not confirmed, how much may be in
//! flight, and the secret for resuming. It outlives connections, and has no access to sockets or a clock.
//!
//! Connections are identified by numbers that are never reused, clients by their generation: messages from or for a connection or client
//! that was replaced in the meantime are dropped here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_wire::session::{
    Hello, LARGEST_WINDOW_BYTES, LARGEST_WINDOW_FRAMES, Refused, RejectionCode, ServerFrame, VERSION, server_frame::Kind,
};

use super::answer::SessionAnswer;

#[cfg(test)]
mod tests;

/// Grace period of a client that does not specify one.
const DEFAULT_GRACE: Duration = Duration::from_secs(60);
const MAX_GRACE: Duration = Duration::from_secs(600);

/// Limit of what one side may have outstanding towards the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub frames: u32,
    /// Bytes of payload; of answers, also those of their messages.
    pub bytes: u64,
}

/// Window for operations sent to the executor: some tens of parts, and the steps of a client while a program compiles.
pub(crate) const WINDOW: Window = Window {
    frames: 4096,
    bytes: 64 << 20,
};

/// Outcome of accepting a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcomed {
    /// Whether the client continues with its tensors and programs; otherwise those of the previous client must be freed.
    pub resumed: bool,
    /// Secret for resuming.
    pub resume: Bytes,
    /// Time for which the client's tensors and programs are kept without a connection.
    pub grace: Duration,
    /// Number of the last operation that the engine has taken.
    pub received: u64,
    pub generation: u64,
    /// Number of the connection that this one replaces.
    pub replaced: Option<u64>,
}

/// Classification of a received operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    /// An operation that was received before.
    Again,
    /// An operation from a connection that no longer belongs to the client.
    Stale,
}

/// Violation of the stream's rules by the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("invalid operation number {found}: expected {expected}")]
    Gap { found: u64, expected: u64 },
    #[error("invalid acknowledgement of response {received}: {sent} were sent")]
    Future {
        /// Number that the client confirmed.
        received: u64,
        sent: u64,
    },
    #[error("window exceeded: at most {} frames and {} bytes of payload may be outstanding", WINDOW.frames, WINDOW.bytes)]
    Window,
}

/// What [`Link::send`] returned for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Frames, or none at present.
    Go,
    /// The last frames, if any: the client closed the session, or its stream was malformed or ended.
    Last,
    /// The connection no longer belongs to the client.
    Over,
}

#[derive(Debug, Default)]
struct Client {
    generation: u64,
    resume: Bytes,
    grace: Duration,
    connection: Option<u64>,
    /// Time at which the client is forgotten; set only while it has no connection.
    until: Option<Instant>,
    window: Window,
    /// Numbers of the last operation that arrived, that the engine has taken, and that was confirmed to the client as taken.
    /// `waiting_bytes` are the payload bytes of operations that arrived and are not taken, `unacknowledged_bytes` those of operations that are
    /// taken but not confirmed.
    arrived: u64,
    taken: u64,
    acknowledged: u64,
    waiting_bytes: u64,
    unacknowledged_bytes: u64,
    /// Answers that the client has not confirmed; the first has the number `confirmed + 1`.
    answers: VecDeque<Kept>,
    confirmed: u64,
    /// Number of `answers` that were sent on the current connection, and their bytes.
    sent: usize,
    sent_bytes: u64,
    kept_bytes: u64,
    /// Set if no further answers follow.
    ending: Option<Ending>,
}

/// An answer, and its bytes: those of its payload, and of its message without the numbers.
#[derive(Debug)]
struct Kept {
    answer: SessionAnswer,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Ending {
    Closed,
    /// The executor ended the stream: it ignores further operations and the client's window, and sends the reason once, at any position of
    /// the stream.
    Broken(Option<Box<Kind>>),
}

/// The clients of a session, of which there is at most one at a time.
#[derive(Debug, Default)]
pub(crate) struct Link {
    client: Option<Client>,
    generation: u64,
}

impl Link {
    /// Processes the `Hello` of a connection. `received` is the number of the last answer that the client has received, from the frame of
    /// the `Hello`. `secret` becomes the secret for resuming if the client is new.
    pub(crate) fn hello(
        &mut self,
        connection: u64,
        hello: &Hello,
        received: u64,
        secret: Bytes,
        now: Instant,
    ) -> Result<Welcomed, Refused> {
        if hello.lowest_version > VERSION || hello.highest_version < VERSION {
            let message = format!(
                "unsupported stream version: the worker supports {VERSION}, the client supports {} to {}",
                hello.lowest_version, hello.highest_version
            );
            return Err(Refused::new(RejectionCode::Version, message));
        }
        self.expire(now);
        let window = Window {
            frames: hello.window_frames.clamp(1, LARGEST_WINDOW_FRAMES),
            bytes: hello.window_bytes.min(LARGEST_WINDOW_BYTES),
        };
        let live = self.client.as_mut().filter(|client| client.ending.is_none());
        if !hello.resume.is_empty() {
            let Some(client) = live.filter(|client| same(&client.resume, &hello.resume)) else {
                let message = "the stream to resume was not found: its grace period expired, or another client replaced it";
                return Err(Refused::new(RejectionCode::Unknown, message));
            };
            if let Err(error) = client.confirm(received) {
                return Err(Refused::new(RejectionCode::Malformed, error.to_string()));
            }
            let replaced = client.connection.replace(connection);
            client.until = None;
            client.window = window;
            (client.sent, client.sent_bytes) = (0, 0);
            client.acknowledged = client.taken;
            client.unacknowledged_bytes = 0;
            return Ok(Welcomed {
                resumed: true,
                resume: client.resume.clone(),
                grace: client.grace,
                received: client.taken,
                generation: client.generation,
                replaced,
            });
        }
        let replaced = live.and_then(|client| client.connection);
        if replaced.is_some() && !hello.replace {
            let message = "another client is connected: close it, or connect with `replace`";
            return Err(Refused::new(RejectionCode::Busy, message));
        }
        self.generation += 1;
        let grace = match hello.grace_milliseconds {
            0 => DEFAULT_GRACE,
            milliseconds => Duration::from_millis(milliseconds).min(MAX_GRACE),
        };
        self.client = Some(Client {
            generation: self.generation,
            resume: secret.clone(),
            grace,
            connection: Some(connection),
            window,
            ..Client::default()
        });
        Ok(Welcomed {
            resumed: false,
            resume: secret,
            grace,
            received: 0,
            generation: self.generation,
            replaced,
        })
    }

    /// The client, if `connection` is its current connection.
    fn connected(&mut self, connection: u64) -> Option<&mut Client> {
        self.client.as_mut().filter(|client| client.connection == Some(connection))
    }

    /// The client of `generation`, unless its stream has ended.
    fn of(&mut self, generation: u64) -> Option<&mut Client> {
        let client = self.client.as_mut()?;
        (client.generation == generation && client.ending.is_none()).then_some(client)
    }

    /// Processes the client's confirmation that it has received the answers up to number `received`. Returns whether the connection is the
    /// client's.
    ///
    /// # Errors
    /// [`LinkError::Future`].
    pub(crate) fn confirmed(&mut self, connection: u64, received: u64) -> Result<bool, LinkError> {
        match self.connected(connection) {
            Some(client) => client.confirm(received).map(|()| true),
            None => Ok(false),
        }
    }

    /// Processes a received operation.
    ///
    /// # Errors
    /// [`LinkError::Gap`], [`LinkError::Window`].
    pub(crate) fn arrived(&mut self, connection: u64, sequence: u64, payload_bytes: usize) -> Result<Arrival, LinkError> {
        let Some(client) = self.connected(connection).filter(|client| client.ending.is_none()) else {
            return Ok(Arrival::Stale);
        };
        if sequence <= client.arrived {
            return Ok(Arrival::Again);
        }
        if sequence != client.arrived + 1 {
            return Err(LinkError::Gap {
                found: sequence,
                expected: client.arrived + 1,
            });
        }
        // The client counts operations as outstanding until they are confirmed; here they count only until they are taken. So this check is
        // more lenient than the client's window.
        if client.arrived - client.taken > u64::from(WINDOW.frames) || client.waiting_bytes > WINDOW.bytes {
            return Err(LinkError::Window);
        }
        client.arrived = sequence;
        client.waiting_bytes += payload_bytes as u64;
        Ok(Arrival::New)
    }

    /// Records that the engine takes the next operation. Returns whether the client must be sent a confirmation.
    pub(crate) fn take(&mut self, generation: u64, payload_bytes: usize) -> bool {
        let Some(client) = self.of(generation) else {
            return false;
        };
        client.taken += 1;
        client.waiting_bytes = client.waiting_bytes.saturating_sub(payload_bytes as u64);
        client.unacknowledged_bytes += payload_bytes as u64;
        client.must_acknowledge()
    }

    /// Queues an answer for the client of `generation`, if that is still the current one.
    pub(crate) fn answer(&mut self, generation: u64, answer: SessionAnswer) {
        if let Some(client) = self.of(generation) {
            let bytes = (answer.kind.encoded_len() + answer.payload.len()) as u64;
            client.kept_bytes += bytes;
            client.answers.push_back(Kept { answer, bytes });
        }
    }

    /// Queues the last answer for a client that has closed the session.
    pub(crate) fn close(&mut self, generation: u64, answer: SessionAnswer) {
        self.answer(generation, answer);
        self.end(generation, Ending::Closed);
    }

    /// Ends the stream of the connection's client because the stream is malformed or the session ends. The client is sent the reason and
    /// loses its tensors and programs. Returns the client's generation.
    pub(crate) fn breaks(&mut self, connection: u64, reason: Kind) -> Option<u64> {
        let client = self.connected(connection).filter(|client| client.ending.is_none())?;
        let generation = client.generation;
        // The client can no longer confirm answers, and so cannot make room in its window for the rest.
        client.answers.truncate(client.sent);
        self.end(generation, Ending::Broken(Some(Box::new(reason))));
        Some(generation)
    }

    pub(crate) fn forget(&mut self) {
        self.client = None;
    }

    fn end(&mut self, generation: u64, ending: Ending) {
        if let Some(client) = self.of(generation) {
            client.ending = Some(ending);
            if client.connection.is_none() {
                self.client = None;
            }
        }
    }

    /// Whether the client has so many unconfirmed answers that no further ones should be produced.
    pub(crate) fn is_congested(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.answers.len() > client.window.frames as usize || client.kept_bytes > client.window.bytes.max(1))
    }

    /// Whether [`Link::send`] would return frames, or report the end of the stream.
    pub(crate) fn has_to_send(&mut self, connection: u64) -> bool {
        let Some(client) = self.connected(connection) else {
            return true;
        };
        let is_next = client.answers.get(client.sent).is_some_and(|kept| client.may_send(kept.bytes));
        let is_last = client.ending.is_some() && client.sent == client.answers.len();
        is_next || is_last || matches!(client.ending, Some(Ending::Broken(Some(_)))) || client.must_acknowledge()
    }

    /// Appends the next frames for this connection to `into`: at most `most_frames` frames, and about `most_bytes` bytes.
    pub(crate) fn send(&mut self, connection: u64, most_frames: usize, most_bytes: u64, into: &mut Vec<(ServerFrame, Bytes)>) -> Sending {
        let Some(client) = self.connected(connection) else {
            return Sending::Over;
        };
        let mut bytes = 0;
        while let Some(Kept { answer, bytes: of_answer }) = client.answers.get(client.sent)
            && into.len() < most_frames
            && bytes < most_bytes
        {
            let of_answer = *of_answer;
            if !client.may_send(of_answer) {
                break;
            }
            let frame = ServerFrame {
                sequence: client.confirmed + client.sent as u64 + 1,
                received: client.taken,
                kind: Some(answer.kind.clone()),
                ..ServerFrame::default()
            };
            into.push((frame, answer.payload.clone()));
            client.sent += 1;
            client.sent_bytes += of_answer;
            bytes += of_answer;
        }
        // The reason has no sequence number: it is not an answer, and may come between the parts of a tensor.
        if let Some(Ending::Broken(reason)) = &mut client.ending
            && let Some(reason) = reason.take()
        {
            let frame = ServerFrame {
                received: client.taken,
                kind: Some(*reason),
                ..ServerFrame::default()
            };
            into.push((frame, Bytes::new()));
        }
        if into.is_empty() && client.must_acknowledge() {
            let frame = ServerFrame {
                received: client.taken,
                kind: None,
                ..ServerFrame::default()
            };
            into.push((frame, Bytes::new()));
        }
        if !into.is_empty() {
            client.acknowledged = client.taken;
            client.unacknowledged_bytes = 0;
        }
        match client.ending {
            Some(_) if client.sent == client.answers.len() => Sending::Last,
            _ => Sending::Go,
        }
    }

    /// Records the end of a connection. Returns whether it was the client's.
    pub(crate) fn disconnected(&mut self, connection: u64, now: Instant) -> bool {
        let Some(client) = self.connected(connection) else {
            return false;
        };
        client.connection = None;
        client.until = Some(now + client.grace);
        if client.ending.is_some() {
            self.client = None;
        }
        true
    }

    /// End of the client's grace period, if it has no connection.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.client.as_ref()?.until
    }

    /// Forgets a client whose grace period is over. Returns whether there was one.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let over = self.expires().is_some_and(|until| until <= now);
        if over {
            self.client = None;
        }
        over
    }

    /// The client's secret for resuming, while it can be used.
    pub(crate) fn secret(&self) -> Option<&Bytes> {
        let client = self.client.as_ref().filter(|client| client.ending.is_none())?;
        Some(&client.resume)
    }

    /// Whether a client is connected whose stream has not ended.
    pub(crate) fn is_connected(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.connection.is_some() && client.ending.is_none())
    }
}

/// Compares secrets in a time that does not depend on where they differ.
pub(super) fn same(secret: &[u8], shown: &[u8]) -> bool {
    secret.len() == shown.len() && secret.iter().zip(shown).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

impl Client {
    fn confirm(&mut self, received: u64) -> Result<(), LinkError> {
        let sent = self.confirmed + self.answers.len() as u64;
        if received > sent {
            return Err(LinkError::Future { received, sent });
        }
        while self.confirmed < received
            && let Some(Kept { bytes, .. }) = self.answers.pop_front()
        {
            self.confirmed += 1;
            self.kept_bytes -= bytes;
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= bytes;
            }
        }
        Ok(())
    }

    /// Whether the window has room for an answer of this size.
    fn may_send(&self, bytes: u64) -> bool {
        let window = self.window;
        let fits = self.sent < window.frames as usize && self.sent_bytes + bytes <= window.bytes;
        // The client need not confirm while little is outstanding, so an answer larger than the rest of its window would otherwise never be
        // sent.
        let is_little = self.sent <= window.frames as usize / 4 && self.sent_bytes <= window.bytes / 4;
        fits || is_little
    }

    /// Whether operations of a quarter of the window were taken but not confirmed to the client.
    fn must_acknowledge(&self) -> bool {
        self.taken - self.acknowledged >= u64::from(WINDOW.frames / 4) || self.unacknowledged_bytes >= WINDOW.bytes / 4
    }
}
