//! Watches: response bodies that stream changes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use crate::control_plane::Shared;
use crate::refusal::Refusal;
use crate::request::Query;
use crate::selector::Selector;
use crate::store::WatchEnd;
use crate::view::View;

/// Interval of bookmarks, for clients that request them.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the timeout of a watch.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Watched {
    /// Index under which the store keeps the objects.
    pub resource: usize,
    pub namespace: Option<String>,
    pub selector: Selector,
    pub view: View,
}

#[derive(Debug)]
pub(crate) struct WatchStream {
    shared: Arc<Shared>,
    watched: Watched,
    watcher: u64,
    /// Revision up to which changes have been processed.
    seen: u64,
    pending: VecDeque<Bytes>,
    has_ended: bool,
    wants_bookmarks: bool,
    deadline: Option<Instant>,
    next_bookmark: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl WatchStream {
    /// Starts a watch at the requested resource version, or with the current objects.
    pub(crate) fn open(shared: &Arc<Shared>, watched: Watched, query: &Query) -> Result<Self, Refusal> {
        let version = query.number("resourceVersion")?.unwrap_or_default();
        let sends_initial = query.is_true("sendInitialEvents");
        if sends_initial && query.text("resourceVersionMatch") != "NotOlderThan" {
            return Err(Refusal::bad_request(
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        let wants_bookmarks = query.is_true("allowWatchBookmarks");
        let timeout = query
            .number("timeoutSeconds")?
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs);
        let now = Instant::now();
        let mut store = shared.store();
        let watcher = store.watch();
        let revision = store.revision;
        let from_state = version == 0 || sends_initial;
        let mut stream = Self {
            shared: shared.clone(),
            watched,
            watcher,
            seen: if from_state { revision } else { version },
            pending: VecDeque::new(),
            has_ended: false,
            wants_bookmarks,
            deadline: timeout.map(|timeout| now + timeout),
            next_bookmark: None,
            timer: None,
        };
        if from_state && query.text("sendInitialEvents") != "false" {
            let objects = store.objects(stream.watched.resource, stream.watched.namespace.as_deref());
            let selected: Vec<Arc<Value>> = objects
                .filter(|(_, object)| stream.watched.selector.matches(object))
                .map(|(_, object)| object.clone())
                .collect();
            for object in selected {
                stream.push("ADDED", &object);
            }
            if sends_initial && wants_bookmarks {
                stream.push_bookmark(revision, true);
            }
        }
        drop(store);
        stream.schedule_bookmark(now);
        Ok(stream)
    }

    fn push(&mut self, kind: &str, object: &Value) {
        let shown = self.watched.view.object(object);
        self.push_event(kind, &shown);
    }

    fn push_event(&mut self, kind: &str, object: &Value) {
        let mut line = json!({"type": kind, "object": object}).to_string();
        line.push('\n');
        self.pending.push_back(Bytes::from(line));
    }

    fn push_bookmark(&mut self, revision: u64, ends_initial: bool) {
        let object = self.watched.view.bookmark(revision, ends_initial);
        self.push_event("BOOKMARK", &object);
    }

    fn schedule_bookmark(&mut self, now: Instant) {
        if !self.wants_bookmarks {
            return;
        }
        let mut at = now + BOOKMARK_INTERVAL;
        if let Some(deadline) = self.deadline {
            let before_end = deadline - BOOKMARK_BEFORE_END;
            if before_end > now {
                at = at.min(before_end);
            }
        }
        self.next_bookmark = Some(at);
    }

    /// Adds events for the changes since the last call to `pending`.
    fn advance(&mut self) {
        let shared = self.shared.clone();
        let store = shared.store();
        if let Some(end) = store.end_of(self.watcher) {
            self.has_ended = true;
            if end == WatchEnd::Expired {
                self.push_expired(store.forgotten);
            }
            return;
        }
        if self.seen < store.forgotten {
            self.has_ended = true;
            self.push_expired(store.forgotten);
            return;
        }
        for change in store.changes_since(self.seen) {
            if !change.key.is_in(self.watched.resource, self.watched.namespace.as_deref()) {
                continue;
            }
            let selector = &self.watched.selector;
            let was = change.before.as_ref().is_some_and(|before| selector.matches(before));
            let is = !change.is_deletion && selector.matches(&change.after);
            match (was, is) {
                (false, true) => self.push("ADDED", &change.after),
                (true, true) => self.push("MODIFIED", &change.after),
                (true, false) if change.is_deletion => self.push("DELETED", &change.after),
                (true, false) => {
                    // The object no longer matches the selector: send its last matching state, with the resource version of the change.
                    let mut last = change.before.as_deref().cloned().unwrap_or_default();
                    crate::object::copy_metadata(&change.after, &mut last, "resourceVersion");
                    self.push("DELETED", &last);
                }
                (false, false) => {}
            }
        }
        self.seen = self.seen.max(store.revision);
    }

    fn push_expired(&mut self, forgotten: u64) {
        let refusal = Refusal::expired(format!("too old resource version: {} ({forgotten})", self.seen), None);
        self.push_event("ERROR", &json!(refusal.0));
    }

    /// The next event, or `None` at the end of the stream.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            self.advance();
            if !self.pending.is_empty() || self.has_ended {
                continue;
            }
            let replaced = self.shared.store().wait(self.watcher, context.waker());
            // Dropped after the lock is released, because dropping a waker may drop a task, and with it another watch.
            drop(replaced);
            let now = Instant::now();
            if self.next_bookmark.is_some_and(|at| at <= now) {
                self.push_bookmark(self.seen, false);
                self.schedule_bookmark(now);
                continue;
            }
            if self.deadline.is_some_and(|deadline| deadline <= now) {
                self.has_ended = true;
                continue;
            }
            let next = [self.next_bookmark, self.deadline].into_iter().flatten().min();
            let Some(next) = next else { return Poll::Pending };
            match &mut self.timer {
                Some(timer) if timer.deadline() == next => {}
                Some(timer) => timer.as_mut().reset(next),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(next))),
            }
            let fired = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
            if !fired {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let waker = self.shared.store().unwatch(self.watcher);
        drop(waker);
    }
}
