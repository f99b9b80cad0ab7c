//! A TCP proxy whose connections can be cut on demand, or after a number of bytes derived from a seed.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// A proxy that listens on a port of its own until it is dropped.
pub(crate) struct Proxy {
    pub url: String,
    cut: Arc<Notify>,
    accepting: JoinHandle<()>,
    faults: Arc<Mutex<Option<Faults>>>,
}

/// Random numbers that decide about cuts and delays.
pub(crate) struct Faults {
    random: fastrand::Rng,
    /// Upper bound of the bytes, of both directions together, after which a connection is cut; on average it is cut after half of them.
    within: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64, within: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, within }
    }
}

impl Proxy {
    /// Starts a proxy for `address`, which is `host:port`.
    pub(crate) async fn start(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (cut, faults) = (Arc::new(Notify::new()), Arc::new(Mutex::new(None)));
        let (address, cutting, seeded) = (address.to_owned(), cut.clone(), faults.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, address.clone(), cutting.clone(), seeded.clone()));
            }
        });
        Self {
            url,
            cut,
            accepting,
            faults,
        }
    }

    /// Cuts all open connections.
    pub(crate) fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// Sets the faults of later connections; `None` for connections without faults.
    pub(crate) fn set(&self, faults: Option<Faults>) {
        *self.faults.lock() = faults;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut.notify_waiters();
    }
}

/// Copies data in both directions until one side ends or the connection is cut.
async fn pass(mut client: TcpStream, address: String, cut: Arc<Notify>, faults: Arc<Mutex<Option<Faults>>>) {
    let cutting = cut.notified();
    let Ok(mut server) = TcpStream::connect(&address).await else {
        return;
    };
    // A small buffer, so that neither side knows how much of its data was lost in a cut.
    let draw = || {
        let mut faults = faults.lock();
        faults
            .as_mut()
            .map(|Faults { random, within }| (random.u64(1..=*within), random.u64(..), random.u64(..4)))
    };
    let drawn = draw();
    let (mut left, mut delays, kind) = match drawn {
        Some((bytes, delays, kind)) => (bytes, delays, kind),
        None => (u64::MAX, 0, 0),
    };
    let copying = async {
        let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        loop {
            let (read, is_up) = tokio::select! {
                read = from_client.read(&mut up) => (read, true),
                read = from_server.read(&mut down) => (read, false),
            };
            let Ok(count @ 1..) = read else { return };
            let passed = count.min(usize::try_from(left).unwrap_or(usize::MAX));
            delays = delays.rotate_left(7);
            if drawn.is_some() && delays % 16 == 0 {
                tokio::time::sleep(Duration::from_millis(delays / 16 % 8)).await;
            }
            let written = match is_up {
                true => to_server.write_all(&up[..passed]).await,
                false => to_client.write_all(&down[..passed]).await,
            };
            left -= passed as u64;
            if written.is_err() || left == 0 {
                return;
            }
        }
    };
    tokio::select! {
        () = copying => {}
        () = cutting => {}
    }
    // Some connections end in order, some by a reset that drops data in flight.
    if kind >= 2 {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}
