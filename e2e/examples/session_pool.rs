//! Starts a pool for measurements of sessions, with every part in a process of its own: API server and etcd, an operator, one agent whose CPU
//! device has the engine `xla`, two gateways, one of which uses TLS, and another agent, of class `tls`, that uses TLS. `SAHASRA_E2E_BIN_DIR` must
//! name optimised binaries, and `SAHASRA_PJRT_PLUGIN` the plugin.
//!
//! When everything is ready, prints one JSON object: addresses of the gateways and the agent, a caller's token and namespace, the file of the
//! authority of the TLS gateway's certificate, class, authority and name of the agent with TLS, and process ids. Ends at the end of its
//! standard input.

use std::error::Error;
use std::io::Read;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use sahasra_e2e::{Pool, PoolOptions, Port, Process, Specification, WorkerCertificates, eventually, tools};
use serde_json::{Value, json};

type Failure = Box<dyn Error>;

/// Memory of the device without TLS: 64 sessions of 64 MiB and one of 4 GiB.
const MEMORY: &str = "9Gi";
/// Memory of the device of the TLS agent: one session for bulk transfers.
const TLS_MEMORY: &str = "2Gi";
const WITHIN: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    if std::env::var_os("SAHASRA_PJRT_PLUGIN").is_none() {
        return Err("SAHASRA_PJRT_PLUGIN names no plugin".into());
    }
    let agent = ["--no-cuda", "--cpu-device-memory", MEMORY];
    let mut pool = Pool::start(
        PoolOptions::default()
            .agents(1)
            .agent_arguments(agent)
            .certificates(WorkerCertificates::NAME),
    )
    .await?;
    let tls_agent = tls_agent(&mut pool).await?;
    let authority = pool.control_plane.directory().join("ca.crt");
    let certificate = pool.control_plane.directory().join("apiserver.crt");
    let key = pool.control_plane.directory().join("apiserver.key");
    let (plain, plain_port) = gateway(&pool, "gateway", &[]).await?;
    let tls = [
        "--tls-cert-file".as_ref(),
        certificate.as_os_str(),
        "--tls-private-key-file".as_ref(),
        key.as_os_str(),
    ];
    let (encrypting, tls_port) = gateway(&pool, "gateway-tls", &tls).await?;
    let (namespace, token) = caller(&pool).await?;
    let pid = |process: &Process| process.pid();
    let agent = &pool.agents[0];
    let places = json!({
        "gateway": plain_port.url(),
        "gateway_tls": format!("https://localhost:{}", tls_port.number()),
        "authority": authority,
        "agent": agent.url(),
        "agent_tls": tls_agent,
        "namespace": namespace,
        "token": token,
        "pids": {
            "agent": pid(&agent.process), "operator": pid(&pool.operator.process), "gateway": pid(&plain), "gateway_tls": pid(&encrypting),
        },
    });
    println!("{places}");
    let until_the_end = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(until_the_end).await??;
    Ok(())
}

/// Starts an agent that uses TLS; returns its class, and the authority and name that verify its certificate.
async fn tls_agent(pool: &mut Pool) -> Result<Value, Failure> {
    const CLASS: &str = "tls";
    let classes = pool.control_plane.directory().join("classes.yaml");
    std::fs::write(&classes, json!({"classes": [{"class": CLASS, "model": "*"}]}).to_string())?;
    let certificates = pool.certificates.as_ref().ok_or("no certificates")?;
    let (authority, mut arguments) = (certificates.path("ca.crt"), certificates.agent_arguments());
    let own = ["--no-cuda", "--cpu-device-memory", TLS_MEMORY, "--device-classes-file"];
    arguments.extend(own.map(str::to_owned));
    arguments.push(classes.display().to_string());
    let agent = pool.add_agent_with(&arguments, true).await?;
    Ok(json!({
        "class": CLASS, "authority": authority, "server_name": WorkerCertificates::NAME, "pid": agent.process.pid(),
    }))
}

async fn gateway(pool: &Pool, name: &str, more: &[&std::ffi::OsStr]) -> Result<(Process, Port), Failure> {
    let port = Port::reserve()?;
    let program = tools::binaries().await?.join("sahasra-gateway");
    let mut specification = Specification::new(name, program, &pool.control_plane.log_directory())
        .arguments(["--listen", &port.address(), "--operator-url", &pool.operator.url()])
        .arguments(more)
        .environment("KUBECONFIG", pool.control_plane.kubeconfig());
    // A TLS server is not probed; its readiness shows at the first request of a client.
    if more.is_empty() {
        specification = specification.ready_at(format!("{}/readyz", port.url()));
    }
    Ok((specification.start().await?, port))
}

/// Creates a namespace with a ServiceAccount that has the cluster role `edit` there; returns the namespace and the account's token.
async fn caller(pool: &Pool) -> Result<(String, String), Failure> {
    let control_plane = &pool.control_plane;
    let namespace = control_plane.create_namespace("bench").await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.client().await?, &namespace);
    let metadata = ObjectMeta {
        name: Some("caller".to_owned()),
        ..ObjectMeta::default()
    };
    let account = ServiceAccount {
        metadata,
        ..ServiceAccount::default()
    };
    accounts.create(&PostParams::default(), &account).await?;
    let user = format!("system:serviceaccount:{namespace}:caller");
    let bind = format!("create rolebinding caller --clusterrole=edit --serviceaccount={namespace}:caller --namespace={namespace}");
    control_plane.kubectl(bind.split(' ')).await?.success()?;
    let kubeconfig = std::fs::read_to_string(control_plane.kubeconfig_for(&namespace, "caller").await?)?;
    let kubeconfig: Value = serde_json::from_str(&kubeconfig)?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str().ok_or("no token")?.to_owned();
    // The controller that fills aggregated roles may take a while.
    let asked = format!("auth can-i create gpusessions.sahasra.dev --namespace={namespace} --as={user}");
    eventually(WITHIN, async || control_plane.kubectl(asked.split(' ')).await.ok()?.success().ok())
        .await
        .ok_or("the role is not aggregated")?;
    Ok((namespace, token))
}
