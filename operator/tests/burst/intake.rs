//! Tests of the objects that a burst refers to, in ConfigMaps and stores: how they are read, how much is read at a time, and which jobs
//! must not wait.

use std::{
    io::{Read, Write},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Namespace, Secret},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService},
};
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, ACCEPTED},
};
use sahasra_operator::{
    INPUT_BYTES,
    agents::AgentClient,
    burst::{
        intake::{Intake, LEAST_INPUT_BYTES, Outcome, Verdict, Waiting},
        observe::{Invalid, ObserveError},
        reconcile,
    },
};
use sahasra_store::{Endpoint, Endpoints, StorePolicy};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{LIMIT, NAMESPACE, PTX, client, context_with, create, eventually, job, observe};

/// A store in a temporary folder, with a file of this size.
fn store_with(name: &str, bytes: u64) -> (tempfile::TempDir, StorePolicy, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = std::fs::File::create(folder.path().join(name)).expect("the folder takes a file");
    file.set_len(bytes).expect("a sparse file takes no room");
    let stores = StorePolicy::new(Some(folder.path().to_owned()), Endpoints::default());
    let url = format!("file://{}", folder.path().display());
    (folder, stores, url)
}

/// A job whose kernel has an input from this URL.
fn with_input(name: &str, store: &str, url: &str) -> BurstJob {
    job(name, |manifest| {
        let spec = &mut manifest["spec"];
        spec["kernel"]["ptx"]["inline"] = json!(PTX.replace("u64 out", "u64 out, .param .u64 input"));
        spec["kernel"]["args"] = json!([{"output": {"type": "u8"}}, {"constant": {"url": url}}]);
        spec["slice"]["vram"] = json!("64Mi");
        spec["output"] = json!({"store": {"url": store}});
    })
}

fn missing(outcome: Result<sahasra_operator::burst::observe::Observed, ObserveError>) -> (String, &'static str, String) {
    match outcome {
        Err(ObserveError::Missing(Invalid { path, reason, message })) => (path, reason, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_reads_no_file_outside_the_file_store() {
    let (_folder, stores, url) = store_with("input", 1);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("token"), "the operator's own").unwrap();
    let token = format!("file://{}/token", elsewhere.path().display());
    let thief = with_input("thief", &url, &token);
    let (path, reason, message) = missing(observe(&client(), &stores, NAMESPACE, &thief.spec).await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[1].constant.url", "StoreReadFailed"));
    assert!(!message.contains("own"), "{message}");
}

#[tokio::test]
async fn objects_are_read_up_to_the_limits_and_once() {
    const MOST: u64 = 48 << 20;
    let (folder, stores, url) = store_with("most", MOST);
    std::fs::File::create(folder.path().join("more"))
        .unwrap()
        .set_len(MOST + 1)
        .unwrap();
    std::fs::File::create(folder.path().join("third"))
        .unwrap()
        .set_len(MOST / 3)
        .unwrap();
    let client = client();
    let read = |file: &str| {
        let (client, stores) = (client.clone(), stores.clone());
        let job = with_input("reader", &url, &format!("{url}/{file}"));
        async move { observe(&client, &stores, NAMESPACE, &job.spec).await }
    };
    assert_eq!(read("most").await.unwrap().inputs[1].len() as u64, MOST);
    let (path, reason, _) = missing(read("more").await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[1].constant.url", "InputTooLarge"));

    let mut thrice = with_input("thrice", &url, &format!("{url}/third"));
    let again = thrice.spec.kernel.args[1].clone();
    thrice.spec.kernel.args.extend([again.clone(), again.clone()]);
    let observed = observe(&client, &stores, NAMESPACE, &thrice.spec).await.unwrap();
    assert!(
        observed.inputs[1..]
            .iter()
            .all(|input| input.as_ptr() == observed.inputs[1].as_ptr())
    );
    assert!(observed.bytes() < MOST / 3 + 1024, "what is named thrice is here once");
    // The size limit counts the bytes of every argument, because agents receive each argument separately.
    thrice.spec.kernel.args.push(again);
    let (path, reason, _) = missing(observe(&client, &stores, NAMESPACE, &thrice.spec).await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[4].constant.url", "InputTooLarge"));
}

#[tokio::test]
async fn inputs_of_all_bursts_wait_for_memory_and_say_so() {
    let (_folder, stores, url) = store_with("large", 40 << 20);
    let client = client();
    let reconciling = tokio::spawn(reconcile::run(context_with(
        &client,
        AgentClient::default(),
        stores,
        LEAST_INPUT_BYTES,
    )));
    let (jobs, leases) = (
        Api::<BurstJob>::namespaced(client.clone(), NAMESPACE),
        Api::<VramLease>::namespaced(client.clone(), NAMESPACE),
    );
    create(&client, &with_input("first", &url, &format!("{url}/large"))).await;
    eventually(&leases, "first", |_| Some(())).await;
    create(&client, &with_input("second", &url, &format!("{url}/large"))).await;
    let waits = eventually(&jobs, "second", |job| {
        let status = job.status.as_ref()?;
        conditions::get(&status.conditions, ACCEPTED).cloned()
    })
    .await;
    assert_eq!((waits.status.as_str(), waits.reason.as_str()), ("False", "InputMemoryExhausted"));
    assert!(waits.message.contains("40 of the 56 MiB"), "{}", waits.message);
    // A job without inputs does not wait.
    create(&client, &job("small", |_| {})).await;
    eventually(&leases, "small", |_| Some(())).await;
    jobs.delete("first", &Default::default()).await.unwrap();
    eventually(&leases, "second", |_| Some(())).await;
    let status = jobs.get("second").await.unwrap().status.unwrap();
    assert!(conditions::is_true(&status.conditions, ACCEPTED), "{status:?}");
    reconciling.abort();
}

#[tokio::test]
async fn inputs_fill_the_memory_that_an_operator_has_for_them_to_the_last_byte() {
    let (folder, stores, url) = store_with("quarter", INPUT_BYTES / 4);
    std::fs::write(folder.path().join("one"), [1]).unwrap();
    let intake = Intake::new(client(), stores, INPUT_BYTES);
    let quarter = with_input("quarter", &url, &format!("{url}/quarter"));
    let mut held = Vec::new();
    for _ in 0..4 {
        match intake.admit(NAMESPACE, &quarter.spec, None, |waiting| panic!("{waiting:?}")).await {
            Outcome::Accepted(accepted) => held.push(accepted),
            other => panic!("{other:?}"),
        }
    }
    let one = with_input("one", &url, &format!("{url}/one"));
    let (sender, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let report = |waiting: Waiting| {
        let _ = sender.send(waiting);
    };
    let mut last = std::pin::pin!(intake.admit(NAMESPACE, &one.spec, None, report));
    let waiting = tokio::select! {
        outcome = last.as_mut() => panic!("{outcome:?}"),
        waiting = waits.recv() => waiting.unwrap(),
    };
    assert_eq!(waiting.reason, "InputMemoryExhausted");
    assert!(waiting.message.contains("use 192 of the 192 MiB"), "{}", waiting.message);
    drop(held.pop());
    let outcome = tokio::time::timeout(LIMIT, last).await.expect("in time");
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_delays_no_other_burst() {
    // The store accepts connections, but does not answer.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stores = StorePolicy::new(None, [endpoint.parse::<Endpoint>().unwrap()].into_iter().collect());
    let client = client();
    store_secret(&client, &[("endpoint", &endpoint), ("allow_http", "true"), ("region", "us-east-1")]).await;
    let reconciling = tokio::spawn(reconcile::run(context_with(&client, AgentClient::default(), stores, 0)));
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    // More jobs than can be reconciled at the same time.
    for number in 0..40 {
        let mut slow = with_input(&format!("slow-{number}"), "s3://bucket/a", "s3://bucket/input");
        slow.spec.output.as_mut().unwrap().store.secret_ref = serde_json::from_value(json!({"name": "store"})).unwrap();
        create(&client, &slow).await;
    }
    create(&client, &job("quick", |_| {})).await;
    let leases = Api::<VramLease>::namespaced(client.clone(), NAMESPACE);
    eventually(&leases, "quick", |_| Some(())).await;
    jobs.delete("quick", &Default::default()).await.unwrap();
    let gone = async {
        while jobs.get_opt("quick").await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.expect("in time");
    // Eight jobs read the store, without an answer so far. The others report that they wait for them.
    let waiting = async || {
        let mut waiting = 0;
        for slow in jobs.list(&Default::default()).await.unwrap() {
            if let Some(status) = slow.status {
                let accepted = conditions::get(&status.conditions, ACCEPTED).unwrap();
                assert_eq!(accepted.reason, "WaitingForStoreReads", "{}", accepted.message);
                waiting += 1;
            }
        }
        waiting
    };
    let all = async {
        while waiting().await < 32 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("in time");
    assert_eq!(waiting().await, 32);
    reconciling.abort();
}

/// A store with objects of 1 MiB. It answers requests for their sizes, but sends no content.
fn store_that_sends_nothing() -> std::io::Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 16 << 10];
                while connection.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\netag: \"1\"\r\n\
                                  last-modified: Mon, 23 Nov 2026 10:00:00 GMT\r\n\r\n";
                    let _ = connection.write_all(answer.as_bytes());
                }
            });
        }
    });
    Ok(endpoint)
}

#[tokio::test]
async fn slow_stores_of_a_namespace_leave_memory_to_the_others() {
    let endpoint = store_that_sends_nothing().unwrap();
    let stores = StorePolicy::new(None, [endpoint.parse::<Endpoint>().unwrap()].into_iter().collect());
    let client = client();
    let settings = [("endpoint", endpoint.as_str()), ("allow_http", "true"), ("region", "us-east-1")];
    store_secret(&client, &[&settings[..], &KEYS].concat()).await;
    let kernels = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kernels"}, "data": {"k.ptx": PTX}});
    let others: Namespace = serde_json::from_value(json!({"metadata": {"name": "others"}})).unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &others).await.unwrap();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), "others");
    config_maps
        .create(&PostParams::default(), &serde_json::from_value(kernels).unwrap())
        .await
        .unwrap();

    // Memory for 56 objects, and more jobs than that.
    let intake = Arc::new(Intake::new(client.clone(), stores, LEAST_INPUT_BYTES));
    let (sender, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let mut slow = tokio::task::JoinSet::new();
    for number in 0..80 {
        let mut job = with_input(&format!("slow-{number}"), "s3://bucket/a", "s3://bucket/input");
        job.spec.output.as_mut().unwrap().store.secret_ref = serde_json::from_value(json!({"name": "store"})).unwrap();
        let (intake, sender) = (intake.clone(), sender.clone());
        slow.spawn(async move {
            let report = |waiting: Waiting| {
                let _ = sender.send(waiting.reason);
            };
            intake.admit(NAMESPACE, &job.spec, None, report).await
        });
    }
    for _ in 0..72 {
        assert_eq!(waits.recv().await, Some("WaitingForStoreReads"));
    }
    let other = job("other", |manifest| {
        manifest["spec"]["kernel"]["ptx"] = json!({"configMapKeyRef": {"name": "kernels", "key": "k.ptx"}});
    });
    let report = |waiting| panic!("{waiting:?}");
    let outcome = tokio::time::timeout(LIMIT, intake.admit("others", &other.spec, None, report)).await;
    assert!(matches!(outcome, Ok(Outcome::Accepted(_))), "{outcome:?}");
    assert!(slow.try_join_next().is_none());
}

#[tokio::test]
async fn a_rejected_job_is_validated_again_only_after_a_change() {
    let client = client();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let kernels = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kernels"}, "data": {"k.ptx": "int main() {}"}});
    let kernels: ConfigMap = serde_json::from_value(kernels).unwrap();
    config_maps.create(&PostParams::default(), &kernels).await.unwrap();
    let wrong = job("wrong", |manifest| {
        manifest["spec"]["kernel"]["ptx"] = json!({"configMapKeyRef": {"name": "kernels", "key": "k.ptx"}});
    });
    let intake = Intake::new(client.clone(), StorePolicy::default(), 0);
    let admit = async |before| match intake.admit(NAMESPACE, &wrong.spec, before, |_| {}).await {
        Outcome::Refused(verdict) => Some(verdict),
        Outcome::Accepted(_) => None,
        Outcome::Failed(error) => panic!("{error}"),
    };
    let first: Verdict = admit(None).await.unwrap();
    assert_eq!(first.reason, "InvalidPtx");
    let mut remembered = first.clone();
    remembered.message = "remembered".to_owned();
    assert_eq!(admit(Some(remembered.clone())).await.unwrap().message, "remembered");
    let changed = json!({"data": {"k.ptx": "int main() { return 1; }"}});
    config_maps
        .patch("kernels", &PatchParams::default(), &Patch::Merge(changed))
        .await
        .unwrap();
    let again = admit(Some(remembered.clone())).await.unwrap().message;
    assert!(again.ends_with("this is not PTX"), "{again}");
    let right = json!({"data": {"k.ptx": PTX}});
    config_maps
        .patch("kernels", &PatchParams::default(), &Patch::Merge(right))
        .await
        .unwrap();
    assert!(admit(Some(remembered)).await.is_none());
}

/// Credentials for a store that does not check them.
const KEYS: [(&str, &str); 2] = [("access_key_id", "key"), ("secret_access_key", "secret")];

/// Creates the Secret `store` with these settings.
async fn store_secret(client: &Client, settings: &[(&str, &str)]) {
    store_secret_in(NAMESPACE, client, settings).await;
}

async fn store_secret_in(namespace: &str, client: &Client, settings: &[(&str, &str)]) {
    let data = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
    let secret = Secret {
        data: Some(data.collect()),
        ..serde_json::from_value(json!({"metadata": {"name": "store"}})).expect("a Secret")
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    secrets.create(&PostParams::default(), &secret).await.expect("created");
}

/// An S3-compatible store without a network. Every request is answered after the given time with an object of one byte, or never.
#[derive(Clone, Debug)]
struct Slow {
    answers_after: Option<Duration>,
    under_way: Arc<AtomicUsize>,
    /// Maximum number of concurrent requests so far.
    most: Arc<AtomicUsize>,
}

impl Slow {
    fn new(answers_after: Option<Duration>) -> Self {
        Self {
            answers_after,
            under_way: Arc::default(),
            most: Arc::default(),
        }
    }

    fn policy(&self) -> StorePolicy {
        StorePolicy::over(Endpoints::default(), Arc::new(self.clone()))
    }
}

impl HttpConnector for Slow {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Slow {
    // Written as `async_trait` would expand it.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            match self.answers_after {
                Some(after) => sleep(after).await,
                None => std::future::pending().await,
            }
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            let body = if *request.method() == Method::HEAD {
                Bytes::new()
            } else {
                Bytes::from_static(b"1")
            };
            let mut response = Response::new(HttpResponseBody::from(body));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("1"));
            headers.insert(header::ETAG, HeaderValue::from_static("\"1\""));
            headers.insert(header::LAST_MODIFIED, HeaderValue::from_static("Mon, 23 Nov 2026 10:00:00 GMT"));
            Ok(response)
        })
    }
}

/// A job with this many inputs from the store `s3://bucket`.
fn with_inputs(count: usize) -> BurstJob {
    job("reader", |manifest| {
        let names = (0..count).map(|index| format!("input{index}"));
        let parameters: String = names.clone().map(|name| format!(", .param .u64 {name}")).collect();
        let inputs = names.map(|name| json!({"constant": {"url": format!("s3://bucket/{name}")}}));
        let spec = &mut manifest["spec"];
        spec["kernel"]["ptx"]["inline"] = json!(PTX.replace("u64 out", &format!("u64 out{parameters}")));
        spec["kernel"]["args"] = std::iter::once(json!({"output": {"type": "u8"}})).chain(inputs).collect();
        spec["output"] = json!({"store": {"url": "s3://bucket/results", "secretRef": {"name": "store"}}});
    })
}

#[tokio::test(start_paused = true)]
async fn a_burst_has_a_minute_for_everything_that_it_reads_from_its_store() {
    // Each request may take 30 s. These requests are answered in time, but one after the other take 80 s in total.
    for answers_after in [Some(Duration::from_secs(20)), None] {
        let client = client();
        store_secret(&client, &[&[("region", "us-east-1")][..], &KEYS].concat()).await;
        let intake = Intake::new(client, Slow::new(answers_after).policy(), 0);
        let began = Instant::now();
        let outcome = intake
            .admit(NAMESPACE, &with_inputs(8).spec, None, |waiting| panic!("{waiting:?}"))
            .await;
        let Outcome::Refused(refused) = outcome else {
            panic!("{answers_after:?}: {outcome:?}")
        };
        assert_eq!((refused.reason, refused.may_pass), ("StoreReadFailed", true), "{}", refused.message);
        assert!(refused.message.contains("after 60 s"), "{}", refused.message);
        assert_eq!(began.elapsed().as_secs(), 60, "{answers_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_reads_several_objects_of_its_store_at_a_time_and_not_all_of_them() {
    let client = client();
    store_secret(&client, &[&[("region", "us-east-1")][..], &KEYS].concat()).await;
    let store = Slow::new(Some(Duration::from_secs(1)));
    let intake = Intake::new(client, store.policy(), 0);
    let outcome = intake
        .admit(NAMESPACE, &with_inputs(12).spec, None, |waiting| panic!("{waiting:?}"))
        .await;
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
    assert_eq!(store.most.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn bursts_of_all_namespaces_together_read_128_stores_at_a_time() {
    const NAMESPACES: usize = 17;
    const OF_EACH: usize = 8;
    let client = client();
    let namespaces = Api::<Namespace>::all(client.clone());
    for number in 0..NAMESPACES {
        let name = format!("team-{number}");
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        store_secret_in(&name, &client, &[&[("region", "us-east-1")][..], &KEYS].concat()).await;
    }
    let store = Slow::new(Some(Duration::from_secs(10)));
    let intake = Arc::new(Intake::new(client, store.policy(), 0));
    let mut all = tokio::task::JoinSet::new();
    for number in 0..NAMESPACES * OF_EACH {
        let intake = intake.clone();
        all.spawn(async move {
            let namespace = format!("team-{}", number / OF_EACH);
            let report = |waiting| panic!("{waiting:?}");
            intake.admit(&namespace, &with_inputs(1).spec, None, report).await
        });
    }
    while let Some(outcome) = all.join_next().await {
        assert!(matches!(outcome, Ok(Outcome::Accepted(_))), "{outcome:?}");
    }
    assert_eq!(store.most.load(Ordering::SeqCst), 128);
}
