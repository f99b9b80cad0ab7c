//! Lists: selectors, pages and resource versions.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::subject::{Subject, refused, summary, typed};

async fn labelled(subject: &Subject) {
    for (name, tier) in [("a", "gold"), ("b", "silver"), ("c", "gold"), ("d", "")] {
        let labels = if tier.is_empty() {
            json!({"case": "1"})
        } else {
            json!({"case": "1", "tier": tier})
        };
        let made: ConfigMap = typed(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}));
        subject.config_maps().create(&PostParams::default(), &made).await.unwrap();
    }
}

async fn names(subject: &Subject, parameters: ListParams) -> Vec<String> {
    let list = subject.config_maps().list(&parameters).await.unwrap();
    list.items.iter().map(ResourceExt::name_any).collect()
}

/// A real cluster creates a ConfigMap in each namespace, which this label excludes.
fn ours() -> ListParams {
    ListParams::default().labels("case=1")
}

pub async fn labels_select(subject: &Subject) {
    labelled(subject).await;
    for (selector, expected) in [
        ("case=1", &["a", "b", "c", "d"][..]),
        ("case=1,tier=gold", &["a", "c"]),
        ("case=1,tier!=gold", &["b", "d"]),
        ("case=1,tier", &["a", "b", "c"]),
        ("case=1,!tier", &["d"]),
        ("case=1,tier in (silver,bronze)", &["b"]),
        ("case=1,tier notin (silver,bronze)", &["a", "c", "d"]),
    ] {
        assert_eq!(names(subject, ListParams::default().labels(selector)).await, expected, "{selector}");
    }
}

pub async fn fields_select(subject: &Subject) {
    labelled(subject).await;
    assert_eq!(names(subject, ours().fields("metadata.name=b")).await, ["b"]);
    assert_eq!(names(subject, ours().fields("metadata.name!=b")).await, ["a", "c", "d"]);
    let namespace = format!("metadata.namespace={}", subject.namespace);
    assert_eq!(names(subject, ours().fields(&namespace)).await.len(), 4);
    assert_eq!(names(subject, ours().fields("metadata.namespace=other")).await.len(), 0);
    subject.session("s").await;
    let sessions = subject
        .sessions()
        .list(&ListParams::default().fields("metadata.name=s"))
        .await
        .unwrap();
    assert_eq!(sessions.items.len(), 1);
}

pub async fn fields_that_cannot_be_selected_by_are_rejected(subject: &Subject) {
    let status = refused(subject.sessions().list(&ListParams::default().fields("spec.class=g5")).await);
    assert_eq!(summary(&status), (400, "BadRequest", "field label not supported: spec.class"));
    let status = refused(subject.config_maps().list(&ListParams::default().fields("data.a=b")).await);
    assert_eq!(
        summary(&status),
        (
            400,
            "BadRequest",
            "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    );
}

pub async fn pages_follow_each_other(subject: &Subject) {
    for name in ["a", "b", "c", "d", "e"] {
        subject.session(name).await;
    }
    let first = subject.sessions().list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let token = first.metadata.continue_.clone().unwrap();
    let second = subject
        .sessions()
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(second.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    let token = second.metadata.continue_.clone().unwrap();
    let last = subject
        .sessions()
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(last.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["e"]);
    assert_eq!(last.metadata.continue_.unwrap_or_default(), "");
    assert_eq!(last.metadata.remaining_item_count, None);
}

pub async fn a_list_is_finished_as_it_began(subject: &Subject) {
    for name in ["a", "b", "c"] {
        subject.session(name).await;
    }
    let first = subject.sessions().list(&ListParams::default().limit(1)).await.unwrap();
    subject.sessions().delete("b", &Default::default()).await.unwrap();
    subject.session("bb").await;
    let token = first.metadata.continue_.clone().unwrap();
    let rest = subject
        .sessions()
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap();
    assert_eq!(rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
}

pub async fn a_broken_continue_token_is_rejected(subject: &Subject) {
    let status = refused(
        subject
            .sessions()
            .list(&ListParams::default().limit(1).continue_token("broken"))
            .await,
    );
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
    assert!(
        status.message.starts_with("invalid continue token: continue key is not valid"),
        "{}",
        status.message
    );
}

pub async fn only_metadata_can_be_listed(subject: &Subject) {
    let session = subject.session("a").await;
    let list = subject.sessions().list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].metadata, session.metadata);
    let one = subject.sessions().get_metadata("a").await.unwrap();
    assert_eq!(one.metadata, session.metadata);
}

pub async fn a_broken_label_selector_is_rejected(subject: &Subject) {
    for selector in ["=x", "a in b", "a,", "a=b=c", "a=b c", "!a=b", "a>b"] {
        let status = refused(subject.sessions().list(&ListParams::default().labels(selector)).await);
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"), "{selector}");
    }
}
