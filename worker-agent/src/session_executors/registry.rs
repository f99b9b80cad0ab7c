//! The sessions that hold a slice on this agent, by the owner of the grant, with the state and the executor of each.
//!
//! Bookkeeping only: [`crate::agent`] starts and ends processes and changes the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sahasra_executor_protocol::clock::monotonic_now;
use sahasra_executor_protocol::session::status_page::Stats;
use sahasra_names::{DeviceName, OwnerUid};
use sahasra_wire::{grants::SessionTerms, inventory::SessionLoad, milliseconds};
use tokio_util::sync::CancellationToken;

use super::launch::Launch;
use super::process::Process;

/// How long the agent reports an executor that exited on its own.
const ENDS_KEPT: Duration = Duration::from_secs(600);
/// Limit of reported ends of executors; beyond it the oldest is forgotten.
const MAX_ENDS: usize = 1024;

/// State of one session that holds a slice on this agent.
#[derive(Debug)]
pub struct Session {
    /// UID of the owner of the session's grant.
    pub owner_uid: OwnerUid,
    /// Device of the session's slice.
    pub device: DeviceName,
    /// Bytes that the session may hold on its device.
    pub limit_bytes: u64,
    /// Time of the grant, by the agent's clock.
    pub granted: Duration,
    about: Mutex<About>,
    process: Mutex<Option<Arc<Process>>>,
    /// Locked while an executor is started or its end is recorded. Readers of `process` do not wait for this.
    pub changing: tokio::sync::Mutex<()>,
    /// Cancelled when the session's grant has ended.
    pub ended: CancellationToken,
}

#[derive(Clone, Debug)]
struct About {
    terms: SessionTerms,
    ttl: Duration,
    /// When the session last had an executor, or when it was granted, by the agent's clock.
    used: Duration,
}

impl Session {
    /// Returns the terms that the operator last sent.
    pub fn terms(&self) -> SessionTerms {
        self.about.lock().terms.clone()
    }

    /// Returns the time by which an extension prolongs the grant.
    pub fn ttl(&self) -> Duration {
        self.about.lock().ttl
    }

    /// Returns the time until which a connected client may keep the session, by the agent's clock.
    pub fn limit(&self) -> Duration {
        self.granted + self.about.lock().terms.keep()
    }

    pub fn process(&self) -> Option<Arc<Process>> {
        self.process.lock().clone()
    }

    pub fn set_process(&self, process: Option<Arc<Process>>) {
        *self.process.lock() = process;
    }

    /// Returns the statistics of the session's executor, if one runs.
    fn stats(&self) -> Option<Stats> {
        self.process().map(|process| process.status_page().stats())
    }

    fn load(&self, streams: bool, now: Duration) -> SessionLoad {
        let stats = self.stats();
        let about = self.about.lock().clone();
        // Only the status page of an executor has times of the machine's clock.
        let since = stats.map(|stats| monotonic_now().saturating_sub(stats.last_activity));
        let idle = idle(now.saturating_sub(self.granted), now.saturating_sub(about.used), stats.zip(since));
        let stats = stats.unwrap_or_default();
        SessionLoad {
            owner_uid: self.owner_uid.to_string(),
            namespace: about.terms.namespace,
            name: about.terms.name,
            tensors: stats.tensors,
            stored_bytes: stats.stored_bytes,
            active_executions: stats.active_executions,
            idle_milliseconds: milliseconds(idle),
            connected: stats.connected,
            streams,
            ended: String::new(),
            held_milliseconds: milliseconds(now.saturating_sub(self.granted)),
        }
    }
}

/// Returns how long a session has been idle. `granted` is the time since its grant, `unused` the time since it last had an executor, and
/// `status_page` the statistics of its executor with the time since their last activity.
fn idle(granted: Duration, unused: Duration, status_page: Option<(Stats, Duration)>) -> Duration {
    match status_page {
        None => unused,
        Some((stats, _)) if stats.active_executions > 0 => Duration::ZERO,
        // The executor reports this value itself, so it is limited to the time since the grant.
        Some((_, since)) => since.min(granted),
    }
}

/// Adds up the work, the tensors and the traffic of executors.
fn sum(total: Stats, of: &Stats) -> Stats {
    Stats {
        tensors: total.tensors.saturating_add(of.tensors),
        stored_bytes: total.stored_bytes.saturating_add(of.stored_bytes),
        active_executions: total.active_executions.saturating_add(of.active_executions),
        received_bytes: total.received_bytes.saturating_add(of.received_bytes),
        sent_bytes: total.sent_bytes.saturating_add(of.sent_bytes),
        ..total
    }
}

/// All sessions of an agent, see the [module](self).
#[derive(Debug)]
pub struct Sessions {
    pub(crate) launcher: Arc<dyn Launch>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_owner: BTreeMap<OwnerUid, Arc<Session>>,
    /// Owner of the latest grant for each namespace and name.
    by_name: BTreeMap<(String, String), OwnerUid>,
    ends: BTreeMap<OwnerUid, (Duration, SessionLoad)>,
    /// Bytes received and sent on streams of executors that have ended.
    ended: Stats,
}

impl State {
    fn stats(&self) -> impl Iterator<Item = (&Session, Stats)> {
        let sessions = self.by_owner.values();
        sessions.filter_map(|session| Some((&**session, session.stats()?)))
    }
}

impl Sessions {
    pub fn new(launcher: Arc<dyn Launch>) -> Self {
        Self {
            launcher,
            state: Mutex::default(),
        }
    }

    /// Records a session for which a slice was granted.
    pub fn granted(&self, owner_uid: &OwnerUid, terms: &SessionTerms, device: &DeviceName, limit_bytes: u64, ttl: Duration, now: Duration) {
        let mut state = self.state.lock();
        let name = (terms.namespace.clone(), terms.name.clone());
        state.by_name.insert(name, owner_uid.clone());
        state.ends.remove(owner_uid);
        // A repeated request for the same grant keeps the session and the values of the first one.
        state.by_owner.entry(owner_uid.clone()).or_insert_with(|| {
            Arc::new(Session {
                owner_uid: owner_uid.clone(),
                device: device.clone(),
                limit_bytes,
                granted: now,
                about: Mutex::new(About {
                    terms: terms.clone(),
                    ttl,
                    used: now,
                }),
                process: Mutex::default(),
                changing: tokio::sync::Mutex::default(),
                ended: CancellationToken::new(),
            })
        });
    }

    /// Updates the terms and the TTL of a session whose grant the operator renewed.
    pub fn renewed(&self, owner_uid: &str, terms: &SessionTerms, ttl: Duration) {
        if let Some(session) = self.state.lock().by_owner.get(owner_uid) {
            let mut about = session.about.lock();
            (about.terms, about.ttl) = (terms.clone(), ttl);
        }
    }

    /// Returns the session of this name, unless it has ended.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Session>> {
        let state = self.state.lock();
        let owner = state.by_name.get(&(namespace.to_owned(), name.to_owned()))?;
        state.by_owner.get(owner).filter(|session| !session.ended.is_cancelled()).cloned()
    }

    pub fn of_owner(&self, owner_uid: &str) -> Option<Arc<Session>> {
        self.state.lock().by_owner.get(owner_uid).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Session>> {
        self.state.lock().by_owner.values().cloned().collect()
    }

    /// Removes the session of an owner that holds nothing any more.
    pub fn gone(&self, owner_uid: &OwnerUid) {
        let mut state = self.state.lock();
        if let Some(session) = state.by_owner.remove(owner_uid) {
            session.ended.cancel();
            let terms = session.terms();
            let name = (terms.namespace, terms.name);
            if state.by_name.get(&name).is_some_and(|owner| owner == owner_uid) {
                state.by_name.remove(&name);
            }
        }
    }

    /// Records that a session's executor exited on its own. The agent reports this for a while.
    pub fn lost(&self, session: &Session, text: String, now: Duration) {
        let load = SessionLoad {
            ended: text,
            streams: false,
            connected: false,
            ..session.load(false, now)
        };
        let mut state = self.state.lock();
        state.ends.retain(|_, (since, _)| now.saturating_sub(*since) < ENDS_KEPT);
        if state.ends.len() >= MAX_ENDS {
            let oldest = state
                .ends
                .iter()
                .min_by_key(|(_, (since, _))| *since)
                .map(|(owner, _)| owner.clone());
            oldest.and_then(|owner| state.ends.remove(&owner));
        }
        state.ends.insert(session.owner_uid.clone(), (now, load));
    }

    /// Removes the report of a lost executor, after the operator has released the grant.
    pub fn forget(&self, owner_uid: &str) {
        self.state.lock().ends.remove(owner_uid);
    }

    /// Records that the executor of a session ended at `now`. The bytes of its streams stay counted.
    pub fn executor_ended(&self, session: &Session, process: &Process, now: Duration) {
        session.about.lock().used = now;
        session.set_process(None);
        let stats = process.status_page().stats();
        let mut state = self.state.lock();
        let ended = &mut state.ended;
        ended.received_bytes = ended.received_bytes.saturating_add(stats.received_bytes);
        ended.sent_bytes = ended.sent_bytes.saturating_add(stats.sent_bytes);
    }

    /// Returns the number of sessions, that of sessions with a connected client, and the sum of their statistics, which includes the bytes
    /// of all streams since the agent started.
    pub(crate) fn totals(&self) -> (usize, usize, Stats) {
        let state = self.state.lock();
        let connected = state.stats().filter(|(_, stats)| stats.connected).count();
        let total = state.stats().fold(state.ended, |total, (_, stats)| sum(total, &stats));
        (state.by_owner.len(), connected, total)
    }

    /// Returns the load of each session, and the reports of executors that exited on their own.
    pub fn loads(&self, now: Duration) -> Vec<SessionLoad> {
        let state = self.state.lock();
        let held = state
            .by_owner
            .values()
            .filter(|session| !state.ends.contains_key(&session.owner_uid));
        let held = held.map(|session| session.load(!session.ended.is_cancelled(), now));
        let ends = state.ends.values().filter(|(since, _)| now.saturating_sub(*since) < ENDS_KEPT);
        held.chain(ends.map(|(_, load)| load.clone())).collect()
    }

    /// Returns the sum of the statistics of all sessions on one device.
    pub fn on_device(&self, device: &str) -> Stats {
        let state = self.state.lock();
        let here = state.stats().filter(|(session, _)| session.device == *device);
        here.fold(Stats::default(), |total, (_, stats)| sum(total, &stats))
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use sahasra_names::{Backend, Engine};

    use super::*;
    use crate::devices::DeviceDescription;
    use crate::session_executors::launch::LaunchError;

    #[derive(Debug)]
    struct NoLauncher;

    impl Launch for NoLauncher {
        fn engines(&self, _backend: Backend) -> Vec<Engine> {
            Vec::new()
        }

        fn launch<'a>(
            &'a self,
            _device: &'a DeviceDescription,
            _namespace: &'a str,
            _engine: Engine,
            _limit_bytes: u64,
        ) -> BoxFuture<'a, Result<Process, LaunchError>> {
            unreachable!("no session has a client")
        }

        fn trim_cache(&self) {}
    }

    fn terms(name: &str, keep_seconds: u64) -> SessionTerms {
        SessionTerms {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            uid: "uid".to_owned(),
            engine: Engine::Ptx.to_string(),
            keep_milliseconds: keep_seconds * 1000,
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_session_is_found_by_name_until_its_grant_is_gone() {
        let sessions = Sessions::new(Arc::new(NoLauncher));
        sessions.granted(&"lease-1".into(), &terms("mine", 60), &"cpu-0".into(), 1, seconds(60), seconds(5));
        let found = sessions.find("team", "mine").unwrap();
        assert_eq!((found.owner_uid.as_str(), found.limit()), ("lease-1", seconds(65)));
        assert!(sessions.find("other", "mine").is_none());
        sessions.renewed("lease-1", &terms("mine", 120), seconds(30));
        assert_eq!((found.limit(), found.ttl()), (seconds(125), seconds(30)));
        sessions.gone(&"lease-1".into());
        assert!(found.ended.is_cancelled() && sessions.find("team", "mine").is_none());
        assert!(sessions.loads(seconds(6)).is_empty());
    }

    #[test]
    fn a_new_session_of_a_name_is_found_while_the_old_one_still_drains() {
        let sessions = Sessions::new(Arc::new(NoLauncher));
        sessions.granted(&"old".into(), &terms("mine", 60), &"cpu-0".into(), 1, seconds(60), seconds(0));
        sessions.granted(&"new".into(), &terms("mine", 60), &"cpu-0".into(), 1, seconds(60), seconds(9));
        assert_eq!(sessions.find("team", "mine").unwrap().owner_uid.as_str(), "new");
        sessions.gone(&"old".into());
        assert_eq!(sessions.find("team", "mine").unwrap().owner_uid.as_str(), "new");
    }

    #[test]
    fn a_lost_executor_is_reported_until_its_grant_is_released() {
        let sessions = Sessions::new(Arc::new(NoLauncher));
        sessions.granted(&"lease-1".into(), &terms("mine", 60), &"cpu-0".into(), 1, seconds(60), seconds(0));
        let session = sessions.of_owner("lease-1").unwrap();
        sessions.lost(&session, "its executor was killed by signal 9".to_owned(), seconds(1));
        sessions.gone(&"lease-1".into());
        let reported = sessions.loads(seconds(2));
        assert_eq!((reported.len(), reported[0].name.as_str()), (1, "mine"));
        assert!(reported[0].ended.contains("signal 9") && !reported[0].streams);
        assert!(sessions.loads(seconds(700)).is_empty(), "not for ever");
        sessions.forget("lease-1");
        assert!(sessions.loads(seconds(2)).is_empty());
    }

    #[test]
    fn ends_are_bounded_and_the_oldest_is_forgotten_first() {
        let sessions = Sessions::new(Arc::new(NoLauncher));
        for place in 0..=MAX_ENDS as u64 {
            let owner = OwnerUid::from(format!("{place}"));
            sessions.granted(&owner, &terms(&owner, 60), &"cpu-0".into(), 1, seconds(60), seconds(0));
            let session = sessions.of_owner(&owner).unwrap();
            sessions.lost(&session, "gone".to_owned(), Duration::from_millis(place));
            sessions.gone(&owner);
        }
        let reported = sessions.loads(seconds(2));
        assert_eq!(reported.len(), MAX_ENDS);
        assert!(reported.iter().all(|load| load.owner_uid != "0"));
    }

    #[test]
    fn idleness_counts_from_the_last_activity_and_never_while_something_runs() {
        let seconds = Duration::from_secs;
        let status_page = |active_executions, since| {
            let stats = Stats {
                active_executions,
                ..Stats::default()
            };
            Some((stats, seconds(since)))
        };
        assert_eq!(idle(seconds(9), seconds(9), None), seconds(9), "since the grant");
        assert_eq!(idle(seconds(9), seconds(2), None), seconds(2), "since its executor ended");
        assert_eq!(idle(seconds(9), seconds(9), status_page(0, 4)), seconds(4));
        assert_eq!(idle(seconds(9), seconds(9), status_page(1, 4)), seconds(0));
        assert_eq!(
            idle(seconds(9), seconds(9), status_page(0, 400)),
            seconds(9),
            "whatever the executor says"
        );
    }
}
