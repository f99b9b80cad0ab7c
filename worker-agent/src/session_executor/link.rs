//! One client of the session as far as its stream goes: which of its operations came, which answers it still has to take, how
//! much may be on its way, and what it must show to resume. It outlives connections, and knows neither sockets nor a clock.
//!
//! Connections are named by numbers that are never used again, clients by their generation: what comes from, or is meant for,
//! one that was replaced meanwhile is dropped here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_wire::session::{
    Hello, LARGEST_WINDOW_BYTES, LARGEST_WINDOW_FRAMES, RefusalCode, Refused, ServerFrame, VERSION, server_frame::Kind,
};

#[cfg(test)]
mod tests;

/// Grace of a client that does not say.
const DEFAULT_GRACE: Duration = Duration::from_secs(60);
/// Longest grace.
const LONGEST_GRACE: Duration = Duration::from_secs(600);

/// How much one side may have outstanding towards the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Frames.
    pub frames: u32,
    /// Bytes of payload.
    pub bytes: u64,
}

/// What may be on its way to the executor: some tens of parts, and steps for the time that a program takes to compile.
pub const WINDOW: Window = Window {
    frames: 4096,
    bytes: 64 << 20,
};

/// An answer, without its number.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The message.
    pub kind: Kind,
    /// Bytes beside it.
    pub payload: Bytes,
}

impl From<Kind> for Answer {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            payload: Bytes::new(),
        }
    }
}

/// A client was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcomed {
    /// What was here is here still; otherwise it is to be freed.
    pub resumed: bool,
    /// The secret for the next time.
    pub resume: Bytes,
    /// How long it is kept without a connection.
    pub grace: Duration,
    /// Operations up to this number were taken.
    pub received: u64,
    /// The client's generation.
    pub generation: u64,
    /// The connection that ends by this.
    pub replaced: Option<u64>,
}

/// What to do with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    New,
    /// It came before.
    Again,
    /// The connection is not the client's any more.
    Stale,
}

/// A stream that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A number was left out.
    #[error("operation {found} comes where {expected} is expected")]
    Gap {
        /// The number that comes.
        found: u64,
        /// The one that should.
        expected: u64,
    },
    /// More is told to be received than was sent.
    #[error("answers up to {received} are said to have come, {sent} were sent")]
    Future {
        /// What the client says.
        received: u64,
        /// What was sent.
        sent: u64,
    },
    /// The window is not heeded.
    #[error("more is outstanding than the window allows ({} frames, {} bytes of payload)", WINDOW.frames, WINDOW.bytes)]
    Window,
}

/// What there is to send on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Frames, or none for now.
    Go,
    /// Frames perhaps, and nothing after them: the client closed, or its stream made no sense.
    Last,
    /// The connection is not the client's any more.
    Over,
}

#[derive(Debug)]
struct Client {
    generation: u64,
    resume: Bytes,
    grace: Duration,
    connection: Option<u64>,
    /// When what it has is freed; only without a connection.
    until: Option<Instant>,
    window: Window,
    /// Operations that came, were taken by the engine, and were told to be; bytes of payload likewise.
    arrived: u64,
    taken: u64,
    told: u64,
    waiting_bytes: u64,
    untold_bytes: u64,
    /// Answers that the client has not said to have; the first has the number `confirmed + 1`.
    answers: VecDeque<Answer>,
    confirmed: u64,
    /// How many of them went out on this connection, and their bytes of payload.
    sent: usize,
    sent_bytes: u64,
    /// Bytes of payload of all of them.
    kept_bytes: u64,
    /// Nothing comes after these answers.
    ending: Option<Ending>,
}

#[derive(Clone, Debug, PartialEq)]
enum Ending {
    /// It closed.
    Closed,
    /// Nothing that it says is heard any more, and its window is nothing to it: it is told why, once, at any place of the stream.
    Broken(Option<Box<Kind>>),
}

/// The clients of a session, of which there is one at a time.
#[derive(Debug, Default)]
pub struct Link {
    client: Option<Client>,
    generation: u64,
}

impl Link {
    /// A connection begins. `secret` is what a new client is to show when it resumes, `received` stands in the frame.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn hello(&mut self, connection: u64, hello: &Hello, received: u64, secret: Bytes, now: Instant) -> Result<Welcomed, Refused> {
        let refused = |code: RefusalCode, message: String| Refused {
            code: code.into(),
            message,
        };
        if hello.lowest_version > VERSION || hello.highest_version < VERSION {
            let message = format!(
                "version {VERSION} of the stream is spoken here, the client speaks {} to {}",
                hello.lowest_version, hello.highest_version
            );
            return Err(refused(RefusalCode::Version, message));
        }
        self.expire(now);
        let window = Window {
            frames: hello.window_frames.clamp(1, LARGEST_WINDOW_FRAMES),
            bytes: hello.window_bytes.min(LARGEST_WINDOW_BYTES),
        };
        let live = self.client.as_mut().filter(|client| client.ending.is_none());
        if !hello.resume.is_empty() {
            let Some(client) = live.filter(|client| same(&client.resume, &hello.resume)) else {
                let message = "what is to be resumed is not here any more: the grace is over, or another client began anew";
                return Err(refused(RefusalCode::Unknown, message.to_owned()));
            };
            if let Err(error) = client.confirm(received) {
                return Err(refused(RefusalCode::Malformed, error.to_string()));
            }
            let replaced = client.connection.replace(connection);
            client.until = None;
            client.window = window;
            (client.sent, client.sent_bytes) = (0, 0);
            client.told = client.taken;
            client.untold_bytes = 0;
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
            let message = "another client is connected; it has to close, or this one to say that it replaces it";
            return Err(refused(RefusalCode::Busy, message.to_owned()));
        }
        self.generation += 1;
        let grace = match hello.grace_milliseconds {
            0 => DEFAULT_GRACE,
            milliseconds => Duration::from_millis(milliseconds).min(LONGEST_GRACE),
        };
        self.client = Some(Client {
            generation: self.generation,
            resume: secret.clone(),
            grace,
            connection: Some(connection),
            until: None,
            window,
            arrived: 0,
            taken: 0,
            told: 0,
            waiting_bytes: 0,
            untold_bytes: 0,
            answers: VecDeque::new(),
            confirmed: 0,
            sent: 0,
            sent_bytes: 0,
            kept_bytes: 0,
            ending: None,
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

    /// The client, where this connection is its.
    fn connected(&mut self, connection: u64) -> Option<&mut Client> {
        self.client.as_mut().filter(|client| client.connection == Some(connection))
    }

    /// The client of that generation, unless nothing more is to be said to it.
    fn of(&mut self, generation: u64) -> Option<&mut Client> {
        let client = self.client.as_mut()?;
        (client.generation == generation && client.ending.is_none()).then_some(client)
    }

    /// A frame came that says that answers up to this number were received. Gives whether the connection is the client's.
    ///
    /// # Errors
    /// [`LinkError::Future`].
    pub fn confirmed(&mut self, connection: u64, received: u64) -> Result<bool, LinkError> {
        match self.connected(connection) {
            Some(client) => client.confirm(received).map(|()| true),
            None => Ok(false),
        }
    }

    /// An operation came.
    ///
    /// # Errors
    /// [`LinkError::Gap`], [`LinkError::Window`].
    pub fn arrived(&mut self, connection: u64, sequence: u64, payload_bytes: usize) -> Result<Arrival, LinkError> {
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
        // What was taken and not told counts as outstanding for the client and not here: this is more than what it may.
        if client.arrived - client.taken > u64::from(WINDOW.frames) || client.waiting_bytes > WINDOW.bytes {
            return Err(LinkError::Window);
        }
        client.arrived = sequence;
        client.waiting_bytes += payload_bytes as u64;
        Ok(Arrival::New)
    }

    /// The engine takes the next operation. Gives whether the client has to be told.
    pub fn take(&mut self, generation: u64, payload_bytes: usize) -> bool {
        let Some(client) = self.of(generation) else {
            return false;
        };
        client.taken += 1;
        client.waiting_bytes = client.waiting_bytes.saturating_sub(payload_bytes as u64);
        client.untold_bytes += payload_bytes as u64;
        client.must_tell()
    }

    /// An answer for the client, if it is there still.
    pub fn answer(&mut self, generation: u64, answer: Answer) {
        if let Some(client) = self.of(generation) {
            client.kept_bytes += answer.payload.len() as u64;
            client.answers.push_back(answer);
        }
    }

    /// The answer after which nothing comes: the client closed.
    pub fn close(&mut self, generation: u64, answer: Answer) {
        self.answer(generation, answer);
        self.end(generation, Ending::Closed);
    }

    /// The stream of this connection's client is over, as it makes no sense or the session ends: it is told, and loses what it has.
    /// Gives its generation.
    pub fn breaks(&mut self, connection: u64, reason: Kind) -> Option<u64> {
        let client = self.connected(connection).filter(|client| client.ending.is_none())?;
        let generation = client.generation;
        // It is not heard any more, and so cannot make room for the rest.
        client.answers.truncate(client.sent);
        self.end(generation, Ending::Broken(Some(Box::new(reason))));
        Some(generation)
    }

    /// Forgets the client.
    pub fn forget(&mut self) {
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

    /// Whether the client has so much to take that no more should be made for it.
    pub fn is_congested(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.answers.len() > client.window.frames as usize || client.kept_bytes > client.window.bytes.max(1))
    }

    /// Whether [`Link::send`] would give frames, or says that it is over.
    pub fn has_to_send(&mut self, connection: u64) -> bool {
        let Some(client) = self.connected(connection) else {
            return true;
        };
        let is_next = client.answers.get(client.sent).is_some_and(|answer| client.may_send(answer));
        let is_last = client.ending.is_some() && client.sent == client.answers.len();
        is_next || is_last || matches!(client.ending, Some(Ending::Broken(Some(_)))) || client.must_tell()
    }

    /// The frames to send next on this connection, at most so many and about so many bytes.
    pub fn send(&mut self, connection: u64, most_frames: usize, most_bytes: u64, into: &mut Vec<(ServerFrame, Bytes)>) -> Sending {
        let Some(client) = self.connected(connection) else {
            return Sending::Over;
        };
        let mut bytes = 0;
        while let Some(answer) = client.answers.get(client.sent)
            && into.len() < most_frames
            && bytes < most_bytes
        {
            if !client.may_send(answer) {
                break;
            }
            let payload = answer.payload.len() as u64;
            let frame = ServerFrame {
                sequence: client.confirmed + client.sent as u64 + 1,
                received: client.taken,
                kind: Some(answer.kind.clone()),
                ..ServerFrame::default()
            };
            into.push((frame, answer.payload.clone()));
            client.sent += 1;
            client.sent_bytes += payload;
            bytes += payload;
        }
        // Of no number: it is no answer, and may come between the parts of a tensor.
        if let Some(Ending::Broken(reason)) = &mut client.ending
            && let Some(reason) = reason.take()
        {
            let frame = ServerFrame {
                sequence: 0,
                received: client.taken,
                kind: Some(*reason),
                ..ServerFrame::default()
            };
            into.push((frame, Bytes::new()));
        }
        if into.is_empty() && client.must_tell() {
            let frame = ServerFrame {
                sequence: 0,
                received: client.taken,
                kind: None,
                ..ServerFrame::default()
            };
            into.push((frame, Bytes::new()));
        }
        if !into.is_empty() {
            client.told = client.taken;
            client.untold_bytes = 0;
        }
        match client.ending {
            Some(_) if client.sent == client.answers.len() => Sending::Last,
            _ => Sending::Go,
        }
    }

    /// A connection is over. Gives whether it was the client's.
    pub fn disconnected(&mut self, connection: u64, now: Instant) -> bool {
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

    /// When the client's grace is over, if it has no connection.
    pub fn expires(&self) -> Option<Instant> {
        self.client.as_ref()?.until
    }

    /// Forgets a client whose grace is over. Gives whether one was.
    pub fn expire(&mut self, now: Instant) -> bool {
        let over = self.expires().is_some_and(|until| until <= now);
        if over {
            self.client = None;
        }
        over
    }

    /// What the client is to show when it resumes, while that would be of use.
    pub fn secret(&self) -> Option<&Bytes> {
        let client = self.client.as_ref().filter(|client| client.ending.is_none())?;
        Some(&client.resume)
    }

    /// Whether a client is connected that has not ended.
    pub fn is_connected(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.connection.is_some() && client.ending.is_none())
    }
}

impl Client {
    fn confirm(&mut self, received: u64) -> Result<(), LinkError> {
        let sent = self.confirmed + self.answers.len() as u64;
        if received > sent {
            return Err(LinkError::Future { received, sent });
        }
        while self.confirmed < received
            && let Some(answer) = self.answers.pop_front()
        {
            let payload = answer.payload.len() as u64;
            self.confirmed += 1;
            self.kept_bytes -= payload;
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= payload;
            }
        }
        Ok(())
    }

    /// Whether the window has room for the next answer.
    fn may_send(&self, answer: &Answer) -> bool {
        let (window, payload) = (self.window, answer.payload.len() as u64);
        let fits = self.sent < window.frames as usize && self.sent_bytes + payload <= window.bytes;
        // The client need not tell of so little: what is larger than the rest of its window would never go.
        let is_little = self.sent <= window.frames as usize / 4 && self.sent_bytes <= window.bytes / 4;
        fits || is_little
    }

    /// Whether a quarter of what may be outstanding was taken and not told.
    fn must_tell(&self) -> bool {
        self.taken - self.told >= u64::from(WINDOW.frames / 4) || self.untold_bytes >= WINDOW.bytes / 4
    }
}

/// Compares in a time that does not tell where they differ.
fn same(secret: &[u8], shown: &[u8]) -> bool {
    secret.len() == shown.len() && secret.iter().zip(shown).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
