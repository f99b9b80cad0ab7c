//! Features that only the embedded control plane has: reproducible runs, and controlled interruption of watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, VersionMatch, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use sahasra_local::{ControlPlane, Options};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})).expect("a ConfigMap")
}

fn api(control_plane: &ControlPlane) -> Api<ConfigMap> {
    Api::default_namespaced(control_plane.client("default"))
}

async fn create(api: &Api<ConfigMap>, name: &str) -> ConfigMap {
    api.create(&PostParams::default(), &config_map(name)).await.expect("made")
}

/// Runs a few writes that involve all sources of nondeterminism, and records the output of watches and lists.
async fn trace(seed: u64) -> String {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let options = Options {
        clock: Arc::new(move || jiff::Timestamp::from_second(clock.fetch_add(1, Ordering::Relaxed)).expect("a time")),
        seed,
        ..Options::default()
    };
    let control_plane = ControlPlane::new(options);
    let api = api(&control_plane);
    let watch = api.watch(&WatchParams::default().timeout(60), "0").await.expect("a watch").boxed();
    let mut generated = config_map("");
    generated.metadata.name = None;
    generated.metadata.generate_name = Some("g-".to_owned());
    let owner = api.create(&PostParams::default(), &generated).await.expect("made");
    let mut owned = config_map("owned");
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid()}]);
    owned.metadata.owner_references = serde_json::from_value(reference).expect("references");
    api.create(&PostParams::default(), &owned).await.expect("made");
    api.patch(
        "owned",
        &PatchParams::apply("one"),
        &Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}})),
    )
    .await
    .expect("applied");
    api.delete(&owner.name_any(), &DeleteParams::default()).await.expect("deleted");
    let list = api.list(&ListParams::default()).await.expect("a list");
    let events: Vec<WatchEvent<ConfigMap>> = watch.try_collect().await.expect("it ends by its time-out");
    let events: Vec<String> = events
        .iter()
        .map(|event| match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                format!("{event:?} {}", serde_json::to_string(object).expect("JSON"))
            }
            WatchEvent::Bookmark(bookmark) => format!("bookmark {}", bookmark.metadata.resource_version),
            WatchEvent::Error(status) => format!("error {}", status.message),
        })
        .collect();
    format!("{}\n{events:#?}", serde_json::to_string(&list).expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_objects_and_events() {
    let first = trace(7).await;
    assert!(first.contains("bookmark") && first.contains("Deleted"), "{first}");
    assert_eq!(first, trace(7).await);
    assert_ne!(first, trace(8).await);
}

#[tokio::test(start_paused = true)]
async fn compaction_ends_watches_that_lag_behind() {
    let control_plane = ControlPlane::new(Options::default());
    let api = api(&control_plane);
    let first = create(&api, "a").await;
    create(&api, "b").await;
    let page = api.list(&ListParams::default().limit(1)).await.expect("a page");
    create(&api, "c").await;
    let mut current = api
        .watch(&WatchParams::default(), &control_plane.revision().to_string())
        .await
        .expect("a watch")
        .boxed();
    control_plane.compact();
    let mut old = api
        .watch(&WatchParams::default(), &first.resource_version().expect("a version"))
        .await
        .expect("a watch")
        .boxed();
    let event = old.next().await.expect("an event").expect("no error of the stream");
    assert!(
        matches!(&event, WatchEvent::Error(status) if status.code == 410 && status.reason == "Expired"),
        "{event:?}"
    );
    assert!(old.next().await.is_none());
    // A watch that has received all changes continues.
    create(&api, "d").await;
    let event = current.next().await.expect("an event").expect("no error of the stream");
    assert!(matches!(&event, WatchEvent::Added(object) if object.name_any() == "d"), "{event:?}");
    // The list cannot continue at its revision, but can continue after its last key.
    let token = page.metadata.continue_.expect("there is more");
    let refused = api
        .list(&ListParams::default().continue_token(&token))
        .await
        .expect_err("it is too old");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    let token = status.metadata.expect("metadata").continue_.expect("a token to go on with");
    let rest = api.list(&ListParams::default().continue_token(&token)).await.expect("the rest");
    assert_eq!(rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["b", "c", "d"]);
    let exact = ListParams::default()
        .at(&first.resource_version().expect("a version"))
        .matching(VersionMatch::Exact);
    let refused = api.list(&exact).await.expect_err("it is too old");
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 410), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn history_is_bounded() {
    let control_plane = ControlPlane::new(Options {
        watch_history: 3,
        ..Options::default()
    });
    let api = api(&control_plane);
    let first = create(&api, "a").await;
    for name in ["b", "c", "d"] {
        create(&api, name).await;
    }
    let mut kept = api
        .watch(&WatchParams::default(), &first.resource_version().expect("a version"))
        .await
        .expect("a watch")
        .boxed();
    let event = kept.next().await.expect("an event").expect("no error of the stream");
    assert!(matches!(&event, WatchEvent::Added(object) if object.name_any() == "b"), "{event:?}");
    drop(kept);
    create(&api, "e").await;
    let mut gone = api
        .watch(&WatchParams::default(), &first.resource_version().expect("a version"))
        .await
        .expect("a watch")
        .boxed();
    let event = gone.next().await.expect("an event").expect("no error of the stream");
    assert!(matches!(&event, WatchEvent::Error(status) if status.code == 410), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_survives_closed_and_expired_watches() {
    let control_plane = ControlPlane::new(Options::default());
    let api = api(&control_plane);
    create(&api, "a").await;
    let mut events = watcher(api.clone(), watcher::Config::default()).boxed();
    while !matches!(events.try_next().await.expect("no error"), Some(watcher::Event::InitDone)) {}
    while control_plane.open_watches() == 0 {
        assert!(futures::poll!(events.try_next()).is_pending());
        tokio::task::yield_now().await;
    }
    control_plane.close_watches();
    create(&api, "b").await;
    let event = events.try_next().await.expect("it resumes").expect("an event");
    assert!(
        matches!(&event, watcher::Event::Apply(object) if object.name_any() == "b"),
        "{event:?}"
    );
    while control_plane.open_watches() == 0 {
        assert!(futures::poll!(events.try_next()).is_pending());
        tokio::task::yield_now().await;
    }
    control_plane.expire_watches();
    create(&api, "c").await;
    let mut names = Vec::new();
    loop {
        match events.next().await.expect("it goes on") {
            Ok(watcher::Event::InitApply(object)) => names.push(object.name_any()),
            Ok(watcher::Event::InitDone) => break,
            Ok(_) | Err(_) => {}
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
    drop(events);
    assert_eq!(control_plane.open_watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_events_are_deleted_an_hour_after_their_last_write() {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let options = Options {
        clock: Arc::new(move || jiff::Timestamp::from_second(clock.load(Ordering::Relaxed)).expect("a time")),
        ..Options::default()
    };
    let control_plane = ControlPlane::new(options);
    create(&api(&control_plane), "a").await;
    let events: Api<Event> = Api::default_namespaced(control_plane.client("default"));
    let newer: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(control_plane.client("default"));
    let names = async || -> Vec<String> {
        let list = events.list(&ListParams::default()).await.expect("a list");
        list.iter().map(ResourceExt::name_any).collect()
    };
    for name in ["first", "second"] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default", "finalizers": ["sahasra.dev/kept"]},
            "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": "default"}, "reason": "Tried", "message": "it was tried",
        });
        let event: Event = serde_json::from_value(event).expect("an Event");
        events.create(&PostParams::default(), &event).await.expect("made");
    }
    let mut watch = events
        .watch(&WatchParams::default(), &control_plane.revision().to_string())
        .await
        .expect("a watch")
        .boxed();
    now.store(1800, Ordering::Relaxed);
    let again = Patch::Merge(json!({"series": {"count": 2, "lastObservedTime": "1970-01-01T00:30:00.000000Z"}}));
    newer.patch("second", &PatchParams::default(), &again).await.expect("written again");
    let event = watch.next().await.expect("an event").expect("no error of the stream");
    assert!(
        matches!(&event, WatchEvent::Modified(event) if event.name_any() == "second"),
        "{event:?}"
    );
    now.store(3599, Ordering::Relaxed);
    assert_eq!(names().await, ["first", "second"]);
    now.store(3600, Ordering::Relaxed);
    // A read of any object suffices.
    api(&control_plane).get("a").await.expect("it stays");
    let event = watch.next().await.expect("an event").expect("no error of the stream");
    let WatchEvent::Deleted(deleted) = event else { panic!("{event:?}") };
    assert_eq!(deleted.name_any(), "first");
    assert_eq!(deleted.resource_version(), Some(control_plane.revision().to_string()));
    assert!(events.get_opt("first").await.expect("an answer").is_none());
    assert_eq!(names().await, ["second"]);
    now.store(1800 + 3600, Ordering::Relaxed);
    assert_eq!(names().await, Vec::<String>::new());
    now.store(i64::from(u32::MAX), Ordering::Relaxed);
    api(&control_plane).get("a").await.expect("it stays");
}

#[tokio::test(start_paused = true)]
async fn a_resource_version_from_the_future_is_rejected() {
    let control_plane = ControlPlane::new(Options::default());
    let refused = api(&control_plane)
        .list(&ListParams::default().at("999999"))
        .await
        .expect_err("a revision in the future");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (504, "Timeout"));
    assert!(
        status.message.starts_with("Timeout: Too large resource version: 999999, current: "),
        "{}",
        status.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_be_of_tables() {
    let control_plane = ControlPlane::new(Options::default());
    create(&api(&control_plane), "a").await;
    let request = http::Request::get("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        .body(kube::client::Body::empty())
        .expect("a request");
    let answer = control_plane.client("default").send(request).await.expect("an answer");
    let body = http_body_util::BodyExt::collect(answer.into_body())
        .await
        .expect("it ends")
        .to_bytes();
    let event: serde_json::Value = serde_json::from_slice(&body).expect("one event");
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(event["object"]["rows"][0]["cells"][0], "a");
    assert_eq!(event["object"]["columnDefinitions"][0]["name"], "Name");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_can_be_protected_from_deletion() {
    let control_plane = ControlPlane::new(Options {
        lasting_namespace: Some("system"),
        ..Options::default()
    });
    let namespaces: Api<Namespace> = Api::all(control_plane.client("default"));
    for name in ["system", "other"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        namespaces.create(&PostParams::default(), &namespace).await.expect("made");
    }
    namespaces.delete("other", &DeleteParams::default()).await.expect("deleted");
    let refused = namespaces.delete("system", &DeleteParams::default()).await.expect_err("it is kept");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "namespaces \"system\" is forbidden: this namespace may not be deleted"
    );
}

#[tokio::test(start_paused = true)]
async fn a_patch_to_a_value_that_is_no_object_is_rejected() {
    let control_plane = ControlPlane::new(Options::default());
    create(&api(&control_plane), "a").await;
    for (content_type, patch) in [
        ("application/merge-patch+json", "3"),
        ("application/strategic-merge-patch+json", "[]"),
        ("application/json-patch+json", r#"[{"op": "replace", "path": "", "value": "a"}]"#),
        ("application/apply-patch+yaml", "3"),
    ] {
        let request = http::Request::patch("/api/v1/namespaces/default/configmaps/a?fieldManager=me")
            .header("content-type", content_type)
            .body(patch.as_bytes().to_vec())
            .expect("a request");
        let refused = control_plane.client("default").request::<serde_json::Value>(request).await;
        let refused = refused.expect_err("its result is no ConfigMap");
        let kube::Error::Api(status) = refused else { panic!("{refused}") };
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"), "{content_type}");
    }
}
