//! Cache of the workers of sessions.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most that are remembered: some hundred bytes each. Of more, those are forgotten that were remembered before the last so many.
const MOST: usize = 4096;

/// Endpoints of workers by namespace and name of the session, as read by callers that may open its stream.
#[derive(Debug, Default)]
pub struct Endpoints(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<(String, String), Seen>,
    old: HashMap<(String, String), Seen>,
}

/// The worker of a session, and the caller that opened its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// URL of its worker.
    pub endpoint: String,
    /// The caller that opened its stream: one that resumes it by the session's secret counts as the same.
    pub caller: Option<Arc<str>>,
}

impl Endpoints {
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a session was.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Seen> {
        let session = (namespace.to_owned(), name.to_owned());
        let known = self.lock();
        known.young.get(&session).or_else(|| known.old.get(&session)).cloned()
    }

    /// A session is there.
    pub fn put(&self, namespace: &str, name: &str, seen: Seen) {
        let mut known = self.lock();
        if known.young.len() >= MOST {
            known.old = std::mem::take(&mut known.young);
        }
        known.young.insert((namespace.to_owned(), name.to_owned()), seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_of_a_session_is_known_and_the_number_is_bounded() {
        let known = Endpoints::default();
        let seen = |endpoint: &str| Seen {
            endpoint: endpoint.to_owned(),
            caller: Some("somebody".into()),
        };
        known.put("team", "mine", seen("http://one"));
        known.put("team", "mine", seen("http://other"));
        assert_eq!(known.get("team", "mine"), Some(seen("http://other")));
        assert!(known.get("tea", "mmine").is_none());
        for place in 0..2 * MOST {
            known.put("team", &place.to_string(), seen("http://one"));
        }
        assert!(known.get("team", "mine").is_none());
        assert!(known.get("team", &(2 * MOST - 1).to_string()).is_some());
        let kept = known.lock();
        assert!(kept.young.len() + kept.old.len() <= 2 * MOST);
    }
}
