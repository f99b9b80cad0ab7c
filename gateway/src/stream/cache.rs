//! Cache of the workers of sessions, which lets clients resume without the API server.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::route::Object;

/// Capacity of one generation; an entry takes a few hundred bytes. A full young generation replaces the old one, whose entries are forgotten.
const MOST: usize = 4096;

/// Cache of workers' endpoints, by session. Every entry was read by a caller that may open the session's stream.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Object, CachedWorker>,
    old: HashMap<Object, CachedWorker>,
}

/// The worker of a session, and the caller that opened its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedWorker {
    pub endpoint: String,
    /// Caller that opened the stream. A client that resumes the stream with the session's secret counts as the same caller.
    pub caller: Option<Arc<str>>,
}

impl Endpoints {
    pub(super) fn get(&self, session: &Object) -> Option<CachedWorker> {
        let cache = self.0.lock();
        cache.young.get(session).or_else(|| cache.old.get(session)).cloned()
    }

    pub(super) fn put(&self, session: &Object, worker: CachedWorker) {
        let mut cache = self.0.lock();
        if cache.young.len() >= MOST {
            cache.old = std::mem::take(&mut cache.young);
        }
        cache.young.insert(session.clone(), worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Kind;

    #[test]
    fn the_last_worker_of_a_session_is_cached_within_a_limit() {
        let cache = Endpoints::default();
        let worker = |endpoint: &str| CachedWorker {
            endpoint: endpoint.to_owned(),
            caller: Some("somebody".into()),
        };
        let session = |namespace: &str, name: &str| Object {
            kind: Kind::Session,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mine = session("team", "mine");
        cache.put(&mine, worker("http://one"));
        cache.put(&mine, worker("http://other"));
        assert_eq!(cache.get(&mine), Some(worker("http://other")));
        assert!(cache.get(&session("tea", "mmine")).is_none());
        for place in 0..2 * MOST {
            cache.put(&session("team", &place.to_string()), worker("http://one"));
        }
        assert!(cache.get(&mine).is_none());
        assert!(cache.get(&session("team", &(2 * MOST - 1).to_string())).is_some());
        let kept = cache.0.lock();
        assert!(kept.young.len() + kept.old.len() <= 2 * MOST);
    }
}
