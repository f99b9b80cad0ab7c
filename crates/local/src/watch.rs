//! Watches: response bodies that stream changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, future::OptionFuture, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

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
pub(crate) struct Watch {
    shared: Arc<Shared>,
    watched: Watched,
    /// Number of times that all watches had been ended when this one was opened.
    ends: u64,
    /// Revision up to which changes have been processed.
    seen: u64,
    pending: VecDeque<Bytes>,
    has_ended: bool,
    wants_bookmarks: bool,
    deadline: Option<Instant>,
    next_bookmark: Option<Instant>,
    _open: Arc<()>,
}

impl Watch {
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
        let store = shared.store();
        let revision = store.revision;
        let from_state = version == 0 || sends_initial;
        let mut watch = Self {
            shared: shared.clone(),
            watched,
            ends: store.watch_ends,
            seen: if from_state { revision } else { version },
            pending: VecDeque::new(),
            has_ended: false,
            wants_bookmarks,
            deadline: timeout.map(|timeout| now + timeout),
            next_bookmark: None,
            _open: shared.open_watches.clone(),
        };
        if from_state && query.text("sendInitialEvents") != "false" {
            let objects = store.objects(watch.watched.resource, watch.watched.namespace.as_deref());
            let selected: Vec<Arc<Value>> = objects
                .filter(|(_, object)| watch.watched.selector.matches(object))
                .map(|(_, object)| object.clone())
                .collect();
            for object in selected {
                watch.push("ADDED", &object);
            }
            if sends_initial && wants_bookmarks {
                watch.push_bookmark(revision, true);
            }
        }
        drop(store);
        watch.schedule_bookmark(now);
        Ok(watch)
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
        let is_ended = self.ends != store.watch_ends;
        if is_ended || self.seen < store.forgotten {
            self.has_ended = true;
            if !is_ended || store.watch_end == WatchEnd::Expired {
                self.push_expired(store.forgotten);
            }
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

    /// The events as they occur.
    pub(crate) fn events(self) -> impl Stream<Item = Bytes> {
        stream::unfold(self, async |mut watch| Some((watch.next().await?, watch)))
    }

    /// The next event, or `None` at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        let shared = self.shared.clone();
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            // Created before the changes are read, so that none is missed.
            let changed = shared.changed.notified();
            self.advance();
            if !self.pending.is_empty() || self.has_ended {
                continue;
            }
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
            let due = OptionFuture::from(next.map(sleep_until));
            tokio::select! {
                biased;
                () = changed => {}
                Some(()) = due => {}
            }
        }
    }
}
