//! One pool for all tests of a binary, used by one test at a time: most of a test's start-up time is that of the control plane.

use std::ops::{Deref, DerefMut};

use tokio::sync::{Mutex, MutexGuard};

use super::{Pool, PoolError, PoolOptions};
use crate::process::Process;

/// A pool that is started by the first test that borrows it.
#[derive(Debug)]
pub struct SharedPool {
    options: fn() -> PoolOptions,
    pool: Mutex<Option<Pool>>,
}

/// Exclusive use of the pool by one test. If the test panics, the pool reports its logs and is stopped; the next test starts another one.
#[derive(Debug)]
pub struct Turn(MutexGuard<'static, Option<Pool>>);

impl SharedPool {
    /// Creates a pool with these options that starts on first use.
    #[must_use]
    pub const fn new(options: fn() -> PoolOptions) -> Self {
        Self {
            options,
            pool: Mutex::const_new(None),
        }
    }

    /// Waits until no other test uses the pool. Then all servers run and are ready: servers that an earlier test stopped are restarted.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn borrow(&'static self) -> Result<Turn, PoolError> {
        let mut pool = self.pool.lock().await;
        match pool.as_mut() {
            Some(running) => running.revive().await?,
            None => *pool = Some(Pool::start((self.options)()).await?),
        }
        Ok(Turn(pool))
    }
}

impl Pool {
    /// Starts every server that is not running.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn revive(&mut self) -> Result<(), PoolError> {
        let servers = std::iter::once(&mut self.operator).chain(&mut self.agents);
        let starts = servers.map(|server| Process::start(&mut server.process));
        futures::future::try_join_all(starts).await?;
        Ok(())
    }
}

impl Deref for Turn {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.0.as_ref().expect("a borrowed pool was started")
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut Pool {
        self.0.as_mut().expect("a borrowed pool was started")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0 = None;
        }
    }
}
