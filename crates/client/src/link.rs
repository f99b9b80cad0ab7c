//! Task that keeps a session connected: it connects, exchanges the greeting, writes queued operations, reads answers, and connects again
//! when the connection breaks.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use sahasra_wire::session::{FailureCode, RejectionCode, SharedMemory, frame, server_frame::Kind};

use crate::{
    Error, rest, sharing,
    state::Shared,
    target::{Options, Target},
    transport::{self, Pulse, Reader, Route, Writer},
};

mod reading;
mod writing;

use reading::{READ_BYTES, message, receive};
use writing::write;

/// First pause before another attempt. The pause doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// Minimum timeout of one attempt to connect, even if less time is left in total.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);
/// Timeout for connecting in order to close a session.
const CLOSE: Duration = Duration::from_secs(10);
const WELCOME: Duration = Duration::from_secs(30);
/// Time without received bytes after which the client checks whether the session still exists, if a caller waits for an answer.
const QUIET: Duration = Duration::from_secs(1);
/// Lower bound of the timeout for a silent gateway if a short grace period reduces it: long enough for two pings.
const LEAST_SILENCE: Duration = Duration::from_secs(10);
/// Duration of one long poll for the failure of the session.
const POLL_DURATION: Duration = Duration::from_secs(25);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for querying the gateway for the reason why the session ended.
const EXPLANATION: Duration = Duration::from_secs(5);
/// Time within which the operator learns that a session's executor has ended: it reads the inventories every five seconds.
const INVENTORY: Duration = Duration::from_secs(8);

pub(crate) async fn run(shared: Arc<Shared>, target: Target) {
    let mut broken_since = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let attempt = async {
            // An attempt that stalls ends when the total time is over.
            let left = connect_timeout(&shared).saturating_sub(broken_since.elapsed()).max(LEAST_ATTEMPT);
            match tokio::time::timeout(left, connect(&shared, &target)).await {
                Ok(Ok(connection)) => (serve(&shared, connection).await, true),
                Ok(Err(error)) => (error, false),
                Err(_) => (Error::unreachable(target.peer.authority(), io::ErrorKind::TimedOut.into()), false),
            }
        };
        let (error, dialled) = tokio::select! {
            outcome = attempt => outcome,
            end = silence(&shared, &target) => {
                let is_closing = shared.lock().closing.is_some();
                shared.end(if is_closing { Error::Closed } else { end });
                return;
            }
        };
        if dialled {
            broken_since = Instant::now();
            pause = FIRST_PAUSE;
        }
        let (over, closing, connected) = {
            let state = shared.lock();
            (state.ended.is_some(), state.closing.is_some(), state.core.has_connected())
        };
        if over {
            return;
        }
        if let Some(end) = fatal(&error, &target.route, connected) {
            // A peer that rejects connections is lost for certain, so the gateway is not queried for the reason.
            let is_clear = matches!(&error, Error::Unreachable { .. } | Error::Http { status: 502, .. });
            let end = match end {
                end if is_clear => end,
                end => explain(&target, closing, is_over(&error)).await.unwrap_or(end),
            };
            shared.end(end);
            return;
        }
        if !dialled
            && (connected || closing)
            && let Some(end) = explain(&target, closing, false).await
        {
            shared.end(end);
            return;
        }
        if broken_since.elapsed() + pause > connect_timeout(&shared) {
            let end = if connected { Error::Lost(Arc::new(error)) } else { error };
            shared.end(if closing { Error::Closed } else { end });
            return;
        }
        tracing::debug!(error = %error.chain(), "connection to the session lost: reconnecting");
        // The random pause keeps many sessions that lost the same worker or gateway from reconnecting at the same moment.
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn connect_timeout(shared: &Shared) -> Duration {
    let state = shared.lock();
    match (state.closing.is_some(), state.core.has_connected()) {
        (true, _) => CLOSE,
        (false, true) => shared.options.grace,
        (false, false) => shared.options.connect,
    }
}

/// Returns the error with which the session ends, or `None` if another attempt to connect may help.
fn fatal(error: &Error, route: &Route, connected: bool) -> Option<Error> {
    match error {
        Error::Unreachable { source, peer } => {
            // A worker that refuses TCP connections has ended, together with its executors. A gateway may be restarting.
            let gone = connected && matches!(route, Route::Direct) && source.kind() == io::ErrorKind::ConnectionRefused;
            gone.then(|| Error::worker_lost(format!("{peer} refused the connection")))
        }
        // Reason with which a gateway reports that the worker has ended.
        Error::Http { reason, message, .. } if connected && reason == "WorkerUnreachable" => Some(Error::worker_lost(message)),
        // The session's process has ended, or its time is over.
        Error::Http {
            status: 404 | 410,
            message,
            ..
        } if connected => Some(Error::worker_lost(message)),
        // Retried: a gateway may be unable to reach the worker, and the agent may be unable to check the client's access. Before the first
        // connection, the agent may not know the session yet.
        Error::Http { status: 404, .. } if !connected => None,
        Error::Http { status, .. } => (*status < 500 && *status != 429).then(|| error.clone()),
        // Only [`RejectionCode::Unknown`] says that the client's state is lost. Other rejections end the session with their own error.
        Error::Refused {
            code: RejectionCode::Unknown,
            ..
        } => Some(Error::Lost(Arc::new(error.clone()))),
        Error::Refused { .. } => Some(error.clone()),
        Error::Timeout(_) => None,
        // The configuration worked before: a token or a certificate is being renewed.
        Error::Configuration(_) if connected => None,
        Error::Failed(failure) if failure.code == FailureCode::Ended => Some(Error::Ended {
            reason: "Ended".to_owned(),
            message: failure.message.clone(),
        }),
        _ => Some(error.clone()),
    }
}

/// Returns whether the worker answered that it does not have the session any more.
fn is_over(error: &Error) -> bool {
    matches!(error, Error::Http { status: 404 | 410, .. })
}

/// Queries the gateway for the reason why the session ended. Returns `None` if the session has not ended or the gateway does not answer in
/// time. A session that `is_over` at its worker has failed, or will as soon as the operator has read the worker's inventory: the gateway
/// waits for that.
async fn explain(target: &Target, closing: bool, is_over: bool) -> Option<Error> {
    if closing {
        return Some(Error::Closed);
    }
    let (gateway, namespace, name) = target.gateway.as_ref()?;
    let found = if is_over {
        tokio::time::timeout(INVENTORY + EXPLANATION, gateway.session_failed(namespace, name, INVENTORY)).await
    } else {
        tokio::time::timeout(EXPLANATION, gateway.session(namespace, name)).await
    };
    match found {
        Ok(found) => over(found, namespace, name),
        Err(_) => None,
    }
}

/// Returns the error for a session that has ended according to its object, or `None` if it has not ended.
fn over(found: Result<serde_json::Value, Error>, namespace: &str, name: &str) -> Option<Error> {
    match found {
        Ok(session) => rest::session_end(&session),
        Err(Error::Http { status: 404, .. }) => Some(Error::Ended {
            reason: "Deleted".to_owned(),
            message: format!("{namespace}/{name} was deleted"),
        }),
        Err(_) => None,
    }
}

/// Polls the gateway for the failure of the session while a caller waits and no bytes arrive: a worker that hangs breaks no connection.
/// Returns when the session has ended, with the reason. Never returns without a gateway.
async fn silence(shared: &Shared, target: &Target) -> Error {
    let Some((gateway, namespace, name)) = &target.gateway else {
        return std::future::pending().await;
    };
    let heard = || shared.received.load(Ordering::Relaxed);
    loop {
        let before = heard();
        tokio::time::sleep(QUIET).await;
        if heard() != before || !shared.is_awaited() {
            continue;
        }
        let broken = async {
            while heard() == before && shared.is_awaited() {
                tokio::time::sleep(QUIET).await;
            }
        };
        tokio::select! {
            found = gateway.session_failed(namespace, name, POLL_DURATION) => match over(found, namespace, name) {
                Some(end) => return end,
                None => tokio::time::sleep(QUIET).await,
            },
            () = broken => {}
        }
    }
}

struct Connection {
    reader: Reader,
    writer: Writer,
    read: BytesMut,
    pulse: Arc<Pulse>,
}

async fn connect(shared: &Shared, target: &Target) -> Result<Connection, Error> {
    let (secret, hello) = {
        let state = shared.lock();
        (state.core.secret(), state.core.hello(shared.options.replace, shared.options.grace))
    };
    let mut head = BytesMut::new();
    frame::encode(&hello, 0, &mut head)?;
    let pulse = Pulse::new();
    let opened = transport::open(&target.peer, &target.route, &target.token, &target.path, (&secret, &head), &pulse).await?;
    let mut connection = Connection {
        reader: opened.reader,
        writer: opened.writer,
        read: BytesMut::new(),
        pulse,
    };
    let unsent = (!opened.greeted).then(|| head.freeze());
    match tokio::time::timeout(WELCOME, greet(shared, &mut connection, target, unsent)).await {
        Ok(greeted) => greeted.map(|()| connection),
        Err(_) => Err(Error::Timeout("the session's greeting")),
    }
}

/// Gets the memory that the session offers, unless this client has it from an earlier connection.
async fn share(shared: &Shared, offer: Option<Box<SharedMemory>>) {
    if let Some(offer) = offer.filter(|_| shared.options.shares_memory && shared.memory.get().is_none())
        && let Some(memory) = sharing::attach(*offer).await
    {
        // No other task connects this session.
        let _ = shared.memory.set(memory);
    }
}

/// Sends the client's first frame, unless the peer has it already, and waits for the answer.
async fn greet(shared: &Shared, connection: &mut Connection, target: &Target, hello: Option<Bytes>) -> Result<(), Error> {
    let broken = |error| Error::unreachable(target.peer.authority(), error);
    if let Some(hello) = hello {
        connection.writer.write(&mut VecDeque::from([hello])).await.map_err(broken)?;
    }
    loop {
        if let Some((message, payload_bytes)) = message(&mut connection.read)? {
            if payload_bytes > 0 {
                return Err(Error::protocol("greeting with a payload"));
            }
            return match message.kind {
                Some(Kind::Welcome(mut welcome)) => {
                    let offer = welcome.shared_memory.take();
                    {
                        let mut state = shared.lock();
                        state.core.welcomed(message.received, &welcome)?;
                        if welcome.resumed {
                            state.resumed += 1;
                        }
                        state.welcome = Some(welcome);
                    }
                    share(shared, offer).await;
                    // Taken last: this can be cancelled before, and the next connection answers then.
                    let first = shared.lock().first.take();
                    if let Some(first) = first {
                        first.keep(Ok(()));
                    }
                    Ok(())
                }
                Some(Kind::Refused(refused)) => Err(refused.into()),
                Some(Kind::Failed(failed)) => Err(Error::Failed(failed.into())),
                _ => Err(Error::protocol("the session sent no greeting")),
            };
        }
        connection.reader.read(&mut connection.read, READ_BYTES).await.map_err(broken)?;
    }
}

async fn serve(shared: &Shared, connection: Connection) -> Error {
    let Connection {
        mut reader,
        mut writer,
        mut read,
        pulse,
    } = connection;
    let is_web_socket = matches!(writer, Writer::WebSocket(_));
    // Declared outside of `receive`, so that the partly read part is kept when `receive` is cancelled.
    let mut taking = None;
    let error = tokio::select! {
        error = write(shared, &mut writer, &pulse) => error,
        error = stalled(shared, &pulse), if is_web_socket => error,
        error = receive(shared, &mut reader, &mut read, &mut taking) => error,
    };
    if let Some(taking) = taking {
        shared.lock().core.interrupted(taking);
    }
    // The peer may not read any more.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, writer.close()).await;
    error
}

fn broken(error: io::Error) -> Error {
    Error::unreachable("the session", error)
}

/// Returns the timeout for a gateway that sends nothing while a caller waits.
fn silence_timeout(options: &Options) -> Duration {
    options.silence.min(options.grace.max(LEAST_SILENCE))
}

/// Returns an error when a gateway has sent nothing for [`silence_timeout`] while a caller waited. Only a WebSocket has pings; a direct
/// connection to a worker relies on TCP keepalive.
async fn stalled(shared: &Shared, pulse: &Pulse) -> Error {
    let silence = silence_timeout(&shared.options);
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(QUIET.min(silence / 4)).await;
        since = if shared.is_awaited() {
            since.max(pulse.last_received())
        } else {
            Instant::now()
        };
        if since.elapsed() > silence {
            let what = format!("no data from the gateway for {} s", silence.as_secs_f32());
            return broken(io::Error::new(io::ErrorKind::TimedOut, what));
        }
    }
}
