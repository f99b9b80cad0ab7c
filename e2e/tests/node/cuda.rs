//! CUDA programs in pods, as docs/cuda.md describes them.

use std::path::Path;
use std::process::Command;

use sahasra_e2e::{NAMESPACE, eventually, tools};

use super::in_cluster::{Cluster, WITHIN};

const GATEWAY: &str = "sahasra-gateway.sahasra-system.svc";

/// The manifest under "In a pod" of the documentation, for the images of this test.
fn manifest(pod: &str, command: &str, aliases: &str) -> String {
    let page = std::fs::read_to_string(tools::workspace_root().join("docs/cuda.md")).expect("a page");
    let block = page.split_once("## In a pod").and_then(|(_, rest)| rest.split_once("```yaml\n"));
    let (manifest, _) = block.and_then(|(_, rest)| rest.split_once("```")).expect("a manifest");
    let mut manifest = manifest.to_owned();
    for (documented, here) in [
        ("REGISTRY/sahasra-cuda:TAG", "localhost/sahasra-cuda:e2e"),
        ("python:3.13", "localhost/cuda-program:e2e"),
        ("command: [python, train.py]", &format!("command: {command}")),
        ("{name: train, namespace: team}", &format!("{{name: {pod}, namespace: team}}")),
        // The cluster has no DNS.
        ("restartPolicy: Never", &format!("restartPolicy: Never\n  hostAliases: {aliases}")),
    ] {
        assert!(manifest.contains(documented), "{documented}");
        manifest = manifest.replace(documented, here);
    }
    manifest
}

/// Creates a CA, and a certificate of it for a name: `ca.crt`, `tls.crt` and `tls.key` in a folder.
fn certificates(folder: &Path, name: &str) {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        let output = command
            .args(arguments.split(' '))
            .current_dir(folder)
            .output()
            .expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {new} -subj /CN=ca -days 2 -keyout ca.key -out ca.crt"));
    openssl(&format!("req {new} -subj /CN=gateway -keyout tls.key -out tls.csr"));
    std::fs::write(folder.join("extensions"), format!("subjectAltName=DNS:{name}\n")).expect("written");
    openssl("x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out tls.crt");
}

#[tokio::test]
#[ignore = "runs inside the cluster that the_whole_node starts"]
async fn programs_in_pods_run_on_sessions() {
    let cluster = Cluster::find().await;
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path(), GATEWAY);
    let file = |name: &str| folder.path().join(name).display().to_string();
    for command in [
        format!("create namespace {NAMESPACE}"),
        "create namespace team".to_owned(),
        format!(
            "create secret tls gateway-tls --cert={} --key={} -n {NAMESPACE}",
            file("tls.crt"),
            file("tls.key")
        ),
        format!("create configmap gateway-ca --from-file={} -n team", file("ca.crt")),
    ] {
        cluster.kubectl(&command).await;
    }
    let helm = tools::helm().await.expect("helm");
    let image = |part: &str| format!("{part}.image.repository=localhost/sahasra-{part},{part}.image.tag=e2e");
    let values = [
        image("operator"),
        image("worker"),
        image("gateway"),
        "gateway.enabled=true,gateway.tls.secretName=gateway-tls".to_owned(),
    ];
    let install = [
        "install",
        "sahasra",
        "helm/sahasra",
        "--namespace",
        NAMESPACE,
        "--set",
        &values.join(","),
    ];
    cluster.run(helm.clone(), &install).await;
    let address = async |service: &str| {
        cluster
            .kubectl(&format!("get service {service} -o jsonpath={{.spec.clusterIP}}"))
            .await
    };
    let api = address("kubernetes -n default").await;
    let alias = |address: &str, name: &str| format!(r#"[{{"ip":"{address}","hostnames":["{name}"]}}]"#);
    let patch = format!(
        r#"{{"spec":{{"template":{{"spec":{{"hostAliases":{}}}}}}}}}"#,
        alias(&api, "kubernetes.default.svc")
    );
    cluster
        .kubectl(&format!("patch deployment sahasra-gateway -n {NAMESPACE} -p {patch}"))
        .await;
    for part in [
        "deployment/sahasra-operator",
        "daemonset/sahasra-worker",
        "deployment/sahasra-gateway",
    ] {
        cluster
            .kubectl(&format!("rollout status -n {NAMESPACE} {part} --timeout=120s"))
            .await;
    }
    cluster.kubectl("wait --for=create gpuworkers/node0 --timeout=30s").await;
    cluster.kubectl("wait --for=condition=Ready gpuworkers/node0 --timeout=30s").await;

    let aliases = alias(&address(&format!("sahasra-gateway -n {NAMESPACE}")).await, GATEWAY);
    let program = "/usr/local/bin/cuda_program";
    let exec = format!(
        "[/opt/sahasra/bin/sahasra, exec, --gateway, 'https://{GATEWAY}', --namespace, team, --vram, 64Mi, --, {program}, exhaust]"
    );
    for (pod, command, printed) in [
        ("steps", format!("[{program}, steps, '20']"), "20 steps are right\n"),
        ("preloaded", format!("[{program}, steps, '3']"), "3 steps are right\n"),
        ("exec", exec, "total 64 MiB, got 64 MiB, then CUDA_ERROR_OUT_OF_MEMORY\n"),
    ] {
        let mut manifest = manifest(pod, &command, &aliases);
        if pod == "preloaded" {
            manifest = manifest.replace(
                "name: LD_LIBRARY_PATH, value: /opt/sahasra/lib/sahasra",
                "name: LD_PRELOAD, value: /opt/sahasra/lib/sahasra/libsahasra-cuda.so",
            );
        }
        std::fs::write(file("pod.yaml"), manifest).expect("written");
        cluster.kubectl(&format!("apply --server-side -f {}", file("pod.yaml"))).await;
        let ended = async || {
            let phase = cluster
                .kubectl(&format!("get pod {pod} -n team -o jsonpath={{.status.phase}}"))
                .await;
            ["Succeeded", "Failed"].contains(&phase.as_str()).then_some(phase)
        };
        let phase = eventually(WITHIN, ended).await.expect("the pod ends");
        let log = cluster.kubectl(&format!("logs {pod} -n team")).await;
        assert_eq!((phase.as_str(), log.as_str()), ("Succeeded", printed), "{pod}");
    }
    assert_eq!(cluster.kubectl("get gpusessions,vramleases -A -o name").await, "");
    let uninstall = ["uninstall", "sahasra", "--namespace", NAMESPACE, "--wait", "--timeout=120s"];
    cluster.run(helm, &uninstall).await;
    cluster
        .kubectl(&format!("delete namespace team {NAMESPACE} --wait --timeout=120s"))
        .await;
}
