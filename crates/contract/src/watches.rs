//! Watches: start, events and end.

use std::pin::Pin;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::subject::{Subject, WITHIN, typed};

type Events<K> = Pin<Box<dyn Stream<Item = Result<WatchEvent<K>, kube::Error>> + Send>>;

async fn watch<K>(api: &Api<K>, parameters: &WatchParams, version: &str) -> Events<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    api.watch(parameters, version).await.unwrap().boxed()
}

async fn next<K: std::fmt::Debug>(events: &mut Events<K>) -> WatchEvent<K> {
    let event = tokio::time::timeout(WITHIN, events.next()).await.expect("an event in time");
    event.expect("the stream goes on").unwrap()
}

/// Type of an event and name of its object.
fn shown<K: ResourceExt>(event: &WatchEvent<K>) -> String {
    match event {
        WatchEvent::Added(object) => format!("added {}", object.name_any()),
        WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {} {}", status.code, status.reason),
    }
}

fn quiet() -> WatchParams {
    WatchParams {
        bookmarks: false,
        ..WatchParams::default()
    }
}

async fn version(subject: &Subject) -> String {
    subject
        .sessions()
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap()
}

async fn touch(subject: &Subject, name: &str, patch: Value) -> DynamicObject {
    subject
        .sessions()
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap()
}

pub async fn a_watch_shows_changes_after_a_version(subject: &Subject) {
    subject.session("before").await;
    let mut events = watch(&subject.sessions(), &quiet(), &version(subject).await).await;
    subject.session("a").await;
    touch(subject, "a", json!({"metadata": {"labels": {"x": "y"}}})).await;
    subject.sessions().delete("a", &Default::default()).await.unwrap();
    for expected in ["added a", "modified a", "deleted a"] {
        assert_eq!(shown(&next(&mut events).await), expected);
    }
}

pub async fn a_watch_from_version_zero_begins_with_the_existing_objects(subject: &Subject) {
    subject.session("a").await;
    subject.session("b").await;
    let mut events = watch(&subject.sessions(), &quiet(), "0").await;
    let mut first = vec![shown(&next(&mut events).await), shown(&next(&mut events).await)];
    first.sort();
    assert_eq!(first, ["added a", "added b"]);
    subject.session("c").await;
    assert_eq!(shown(&next(&mut events).await), "added c");
}

pub async fn a_watch_resumes_at_its_last_version(subject: &Subject) {
    let start = version(subject).await;
    let first = subject.session("a").await;
    subject.session("b").await;
    let mut events = watch(&subject.sessions(), &quiet(), &start).await;
    assert_eq!(shown(&next(&mut events).await), "added a");
    drop(events);
    subject.session("c").await;
    let mut events = watch(&subject.sessions(), &quiet(), &first.resource_version().unwrap()).await;
    assert_eq!(shown(&next(&mut events).await), "added b");
    assert_eq!(shown(&next(&mut events).await), "added c");
}

pub async fn a_watch_selects_by_label_as_labels_change(subject: &Subject) {
    let start = version(subject).await;
    let mut events = watch(&subject.sessions(), &quiet().labels("team=one"), &start).await;
    subject.session("a").await;
    touch(subject, "a", json!({"metadata": {"labels": {"team": "one"}}})).await;
    touch(subject, "a", json!({"metadata": {"labels": {"team": "one", "more": "x"}}})).await;
    let out = touch(subject, "a", json!({"metadata": {"labels": {"team": "two"}}})).await;
    for expected in ["added a", "modified a"] {
        assert_eq!(shown(&next(&mut events).await), expected);
    }
    let WatchEvent::Deleted(last) = next(&mut events).await else {
        panic!("it is no longer selected")
    };
    // The last state that matched the selector, with the resource version of the change after which it no longer matched.
    assert_eq!(last.labels()["team"], "one");
    assert_eq!(last.resource_version(), out.resource_version());
}

pub async fn a_watch_of_a_version_that_is_forgotten_expires(subject: &Subject) {
    subject.session("a").await;
    let mut events = watch(&subject.sessions(), &quiet(), "1").await;
    let WatchEvent::Error(status) = next(&mut events).await else {
        panic!("version 1 is forgotten everywhere")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(status.message.starts_with("too old resource version: 1 ("), "{}", status.message);
    assert!(tokio::time::timeout(WITHIN, events.next()).await.unwrap().is_none());
}

pub async fn a_watch_ends_in_time_with_a_bookmark_before(subject: &Subject) {
    subject.session("a").await;
    let start = version(subject).await;
    let parameters = WatchParams::default().timeout(4).fields("metadata.name=a");
    // A busy server may send the bookmark too late: one watch out of a few receives it.
    for attempt in 0..5 {
        let events = watch(&subject.sessions(), &parameters, &start).await;
        // A kube-apiserver sends a bookmark only if a session has changed since the version at which the watch began.
        subject.session(&format!("other-{attempt}")).await;
        let events: Vec<_> = tokio::time::timeout(WITHIN, events.try_collect()).await.expect("it ends").unwrap();
        assert!(events.iter().all(|event| matches!(event, WatchEvent::Bookmark(_))), "{events:?}");
        let Some(WatchEvent::Bookmark(bookmark)) = events.first() else {
            continue;
        };
        assert!(bookmark.metadata.resource_version.parse::<u64>().unwrap() >= start.parse().unwrap());
        assert_eq!(
            (bookmark.types.kind.as_str(), bookmark.types.api_version.as_str()),
            ("GpuSession", "sahasra.dev/v1alpha1")
        );
        return;
    }
    panic!("no watch had a bookmark before it ended");
}

pub async fn a_streamed_list_ends_with_a_bookmark(subject: &Subject) {
    subject.session("a").await;
    let parameters = WatchParams {
        send_initial_events: true,
        ..WatchParams::default()
    };
    let mut events = watch(&subject.sessions(), &parameters, "").await;
    assert_eq!(shown(&next(&mut events).await), "added a");
    let WatchEvent::Bookmark(bookmark) = next(&mut events).await else {
        panic!("a bookmark ends the list")
    };
    assert_eq!(bookmark.metadata.annotations["k8s.io/initial-events-end"], "true");
    subject.session("b").await;
    loop {
        match next(&mut events).await {
            WatchEvent::Bookmark(_) => {}
            event => return assert_eq!(shown(&event), "added b"),
        }
    }
}

pub async fn a_deletion_has_a_version_of_its_own(subject: &Subject) {
    let made = subject.session("a").await;
    let mut events = watch(&subject.sessions(), &quiet(), &made.resource_version().unwrap()).await;
    subject.sessions().delete("a", &Default::default()).await.unwrap();
    let WatchEvent::Deleted(last) = next(&mut events).await else {
        panic!("it was deleted")
    };
    let number = |object: &DynamicObject| object.resource_version().unwrap().parse::<u64>().unwrap();
    assert!(number(&last) > number(&made));
    assert_eq!(last.uid(), made.uid());
}

pub async fn the_last_update_of_finalizers_is_seen_as_a_deletion(subject: &Subject) {
    subject.session("a").await;
    touch(subject, "a", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    let start = version(subject).await;
    let mut events = watch(&subject.sessions(), &quiet(), &start).await;
    subject.sessions().delete("a", &Default::default()).await.unwrap();
    touch(subject, "a", json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(shown(&next(&mut events).await), "modified a");
    assert_eq!(shown(&next(&mut events).await), "deleted a");
}

pub async fn a_reflector_follows(subject: &Subject) {
    let made: ConfigMap = typed(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"case": "1"}}}));
    subject.config_maps().create(&PostParams::default(), &made).await.unwrap();
    let configs = [watcher::Config::default(), watcher::Config::default().streaming_lists()];
    for (turn, config) in configs.into_iter().enumerate() {
        let mut events = watcher(subject.config_maps(), config.labels("case=1")).boxed();
        let mut seen = Vec::new();
        while !matches!(seen.last(), Some(watcher::Event::InitDone)) {
            seen.push(
                tokio::time::timeout(WITHIN, events.try_next())
                    .await
                    .expect("in time")
                    .unwrap()
                    .unwrap(),
            );
        }
        let initial = seen.iter().filter(|event| matches!(event, watcher::Event::InitApply(_))).count();
        assert_eq!(initial, 1, "{seen:?}");
        let patch = Patch::Merge(json!({"data": {"turn": turn.to_string()}}));
        subject.config_maps().patch("a", &PatchParams::default(), &patch).await.unwrap();
        let event = tokio::time::timeout(WITHIN, events.try_next())
            .await
            .expect("in time")
            .unwrap()
            .unwrap();
        let watcher::Event::Apply(applied) = event else {
            panic!("{event:?}")
        };
        assert_eq!(applied.data.unwrap()["turn"], turn.to_string());
    }
}
