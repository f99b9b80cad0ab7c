use super::*;
use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::mpsc,
};

use object_store::{ObjectStoreExt, PutPayload};

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn settings_that_use_the_agents_credentials_are_rejected() {
    let policy = StorePolicy::default();
    for (url, key) in [
        ("s3://bucket/job", "aws_web_identity_token_file"),
        ("s3://bucket/job", "container_credentials_full_uri"),
        ("s3://bucket/job", "metadata_endpoint"),
        ("gs://bucket/job", "google_service_account_path"),
        ("gs://bucket/job", "application_credentials"),
        ("az://container/job", "azure_federated_token_file"),
        ("az://container/job", "use_azure_cli"),
        ("az://container/job", "msi_endpoint"),
    ] {
        let outcome = open(&policy, url, &settings(&[(key, "x")]));
        assert!(matches!(outcome, Err(OpenError::Setting(name)) if name == key), "{key}");
    }
}

#[tokio::test]
async fn an_object_is_read_only_up_to_its_announced_length() {
    let store = object_store::memory::InMemory::new();
    let path = Path::from("object");
    store.put(&path, PutPayload::from_static(b"12345")).await.unwrap();
    let read = async |most| bytes_within(store.get(&path).await.unwrap(), most).await;
    assert_eq!(read(5).await.unwrap(), "12345");
    assert!(read(4).await.unwrap_err().to_string().contains("more than the 4 bytes"));
}

#[test]
fn a_store_without_rights_is_opened_as_a_stranger() {
    let store = open(&StorePolicy::default(), "s3://bucket/job", &settings(&[("region", "eu-1")])).unwrap();
    assert!(format!("{store:?}").contains("skip_signature: true"), "{store:?}");
    let keys = settings(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "eu-1")]);
    let store = open(&StorePolicy::default(), "s3://bucket/job", &keys).unwrap();
    assert!(format!("{store:?}").contains("skip_signature: false"), "{store:?}");
}

#[test]
fn other_schemes_are_rejected() {
    for url in ["http://169.254.169.254/latest", "memory:///", "ftp://host/path", "nonsense"] {
        let outcome = open(&StorePolicy::default(), url, &BTreeMap::new());
        assert!(matches!(outcome, Err(OpenError::Scheme(_) | OpenError::Url { .. })), "{url}");
    }
}

#[test]
fn an_empty_segment_of_a_path_is_rejected_as_such() {
    for url in ["file:///tmp//results", "s3://bucket/a//b"] {
        let outcome = open(&StorePolicy::default(), url, &BTreeMap::new());
        assert!(matches!(outcome, Err(OpenError::Path { .. })), "{url}");
    }
}

#[tokio::test]
async fn objects_are_read_below_the_root_only_and_no_folder_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("a")).unwrap();
    std::fs::write(root.join("a/input 1.bin"), b"mine").unwrap();
    std::fs::write(directory.path().join("token"), b"the operator's own").unwrap();
    std::os::unix::fs::symlink(directory.path().join("token"), root.join("a/link")).unwrap();
    let policy = StorePolicy::new(Some(root.clone()), Endpoints::default());
    let nothing = BTreeMap::new();
    let url = |path: &str| format!("file://{}/{path}", root.display());

    let (store, name) = open_object(&policy, &url("a/input%201.bin"), &nothing).unwrap();
    assert_eq!(&store.get(&name).await.unwrap().bytes().await.unwrap()[..], b"mine");

    for outside in ["../token", "a/../../token", "%2e%2e/token"] {
        let outcome = open_object(&policy, &url(outside), &nothing);
        assert!(matches!(outcome, Err(OpenError::FileNotAllowed { .. })), "{outside}");
    }
    assert!(open_object(&StorePolicy::default(), &url("a/input%201.bin"), &nothing).is_err());
    assert!(open_object(&policy, &url("absent/x"), &nothing).is_err());
    assert!(!root.join("absent").exists());
    assert!(matches!(open_object(&policy, "s3://bucket", &nothing), Err(OpenError::NoObject(_))));
    let (store, name) = open_object(&policy, "s3://bucket/job/kernel.ptx", &nothing).unwrap();
    assert_eq!((name.as_ref(), format!("{store:?}").contains("job")), ("kernel.ptx", true));

    assert!(matches!(
        open_object(&policy, &url("a/link"), &nothing),
        Err(OpenError::FileNotAllowed { .. })
    ));
}

#[tokio::test]
async fn files_stay_below_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let outside = directory.path().join("outside");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    let policy = StorePolicy::new(Some(root.clone()), Endpoints::default());
    let url = |path: &std::path::Path| format!("file://{}", path.display());
    let store = open(&policy, &url(&root.join("job")), &BTreeMap::new()).unwrap();
    store.put(&Path::from("a/b"), PutPayload::from_static(b"x")).await.unwrap();
    assert_eq!(std::fs::read(root.join("job/a/b")).unwrap(), b"x");
    for path in [outside.clone(), root.join("../outside"), root.join("link/job")] {
        assert!(matches!(
            open(&policy, &url(&path), &BTreeMap::new()),
            Err(OpenError::FileNotAllowed { .. })
        ));
    }
    let refused = open(&policy, &url(&outside), &BTreeMap::new()).err().map(|error| error.to_string());
    let told = refused.expect("refused");
    assert!(
        told.contains("--file-store-root") && told.contains(&format!("below {},", root.display())),
        "{told}"
    );
    assert!(!told.contains("stores are not allowed ("), "{told}");
    assert!(!outside.join("job").exists(), "nothing is made outside");
    let none = StorePolicy::default();
    let told = open(&none, &url(&root), &BTreeMap::new()).err().map(|error| error.to_string());
    assert!(
        told.as_ref()
            .is_some_and(|told| told.contains("file stores are not allowed (") && told.contains("--file-store-root")),
        "{told:?}"
    );
    for missing in ["job/absent", "absent/x"] {
        let told = open_object(&policy, &url(&root.join(missing)), &BTreeMap::new())
            .err()
            .map(|error| error.to_string());
        assert!(
            told.as_ref()
                .is_some_and(|told| told.contains("absent: ") || told.contains("absent/x: ")),
            "{told:?}"
        );
    }
    std::fs::write(root.join("file"), b"x").unwrap();
    let told = open(&policy, &url(&root.join("file/below")), &BTreeMap::new())
        .err()
        .map(|error| error.to_string());
    assert!(told.as_ref().is_some_and(|told| told.contains("file/below: ")), "{told:?}");
}

/// A server that gives every request the same answer and sends the first line of each to the receiver.
fn answering(answer: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let read = connection.read(&mut request).unwrap_or_default();
            let line = String::from_utf8_lossy(&request[..read])
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            let _ = seen.send(line);
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    (endpoint, requests)
}

fn allowing(endpoint: &str) -> StorePolicy {
    StorePolicy::new(None, [endpoint.parse::<Endpoint>().unwrap()].into_iter().collect())
}

#[test]
fn an_endpoint_that_is_not_allowed_is_rejected_with_its_setting() {
    let key = r#"{"private_key": "k", "private_key_id": "i", "client_email": "e", "disable_oauth": true, "gcs_base_url": "http://169.254.169.254"}"#;
    for (url, key, value) in [
        ("s3://latest/meta-data", "aws_endpoint", "http://169.254.169.254"),
        ("s3://latest/meta-data", "AWS_ENDPOINT_URL", "http://minio.storage.svc:9000"),
        ("s3://bucket/job", "endpoint", "https://127.0.0.1:6443"),
        ("gs://bucket/job", "google_base_url", "http://10.0.0.1"),
        ("gs://bucket/job", "google_service_account_key", key),
        ("az://container/job", "azure_endpoint", "http://10.0.0.1"),
        ("az://container/job", "azure_storage_use_emulator", "true"),
    ] {
        let options = settings(&[(key, value), ("allow_http", "true")]);
        let refused = open(&StorePolicy::default(), url, &options).unwrap_err();
        let OpenError::Endpoint { setting, .. } = &refused else {
            panic!("{key}: {refused}")
        };
        assert!(key.to_ascii_lowercase().ends_with(setting.as_str()), "{key}: {setting}");
        assert!(refused.to_string().contains("--allowed-store-endpoints"), "{refused}");
    }
    let allowed = allowing("http://minio.storage.svc:9000");
    let options = settings(&[
        ("aws_endpoint", "http://minio.storage.svc:9000"),
        ("allow_http", "true"),
        ("region", "us-east-1"),
    ]);
    open(&allowed, "s3://bucket/job", &options).unwrap();
}

#[tokio::test]
async fn no_setting_leads_a_request_elsewhere() {
    let (endpoint, requests) = answering("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine");
    let host = endpoint.strip_prefix("http://").unwrap();
    // Settings that become part of a host name.
    for (url, pairs) in [
        ("s3://bucket/job/a", vec![("region", format!("x@{host}/"))]),
        ("s3://bucket/job/a", vec![("region", format!("@{host}#"))]),
        ("az://container/job/a", vec![("account_name", format!("x@{host}/"))]),
        ("az://container/job/a", vec![("account_name", format!("{host}#"))]),
    ] {
        let options = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let Ok((store, name)) = open_object(&StorePolicy::default(), url, &options) else {
            continue;
        };
        assert!(store.get(&name).await.is_err(), "{pairs:?}");
    }
    assert!(requests.try_recv().is_err(), "a request was made");
}

#[tokio::test]
async fn the_body_of_a_stores_error_response_is_not_passed_on() {
    for (status, said) in [
        ("404 Not Found", "object or bucket not found"),
        ("403 Forbidden", "rights of the keys"),
        ("401 Unauthorized", "rejected the keys"),
        ("418 I'm a teapot", "418"),
        ("302 Found\r\nlocation: http://127.0.0.1:1/secret", ""),
    ] {
        let answer: &'static str = format!("HTTP/1.1 {status}\r\ncontent-length: 10\r\nconnection: close\r\n\r\nthe secret").leak();
        let (endpoint, requests) = answering(answer);
        let options = settings(&[("endpoint", &endpoint), ("allow_http", "true"), ("region", "us-east-1")]);
        let (store, name) = open_object(&allowing(&endpoint), "s3://bucket/job/a", &options).unwrap();
        let error = store.get(&name).await.unwrap_err();
        let told = summary(&error);
        assert!(told.contains(said) && !told.contains("secret"), "{status}: {told}");
        assert!(!format!("{error} {error:?}").contains("the secret"), "{error:?}");
        assert!(requests.recv().unwrap().starts_with("GET /bucket/job/a"));
    }
}

#[tokio::test]
async fn a_name_that_resolves_to_this_machine_must_be_allowed_by_name() {
    // Every resolver knows `localhost`, and the resolver has no special rule for it.
    let everything = ["http://*:*".parse::<Endpoint>().unwrap()].into_iter().collect::<Endpoints>();
    let names = guard::Names(everything);
    let resolve = |names: &guard::Names| reqwest::dns::Resolve::resolve(names, "localhost".parse().unwrap());
    assert!(resolve(&names).await.is_err());
    let named = guard::Names(["http://localhost:9000".parse::<Endpoint>().unwrap()].into_iter().collect());
    assert!(resolve(&named).await.is_ok_and(|mut addresses| addresses.next().is_some()));
}
