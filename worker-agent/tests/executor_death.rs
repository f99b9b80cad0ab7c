//! Executors die with their agent, however the agent ends, and inherit nothing from it.

#[path = "burst_executors/harness.rs"]
mod harness;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use harness::{argument, executors_of, kernel};
use sahasra_ranges::AttemptRange;

/// Longer than any step of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Acts as the agent: starts an executor that never ends its chunk, prints its process id, and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test below, in a process of its own"]
async fn agent_with_an_endless_chunk() {
    let pool = harness::pool().await;
    let work = kernel(
        "spin",
        1,
        vec![argument::output(4), argument::index(4), argument::scalar(&0u32.to_le_bytes())],
    )
    .timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![AttemptRange {
        first: 0,
        count: 1,
        attempt: 1,
    }])
    .unwrap();
    harness::until_active(&pool, 1).await;
    println!("\nrunning {}", pool.processes("cpu-0")[0]);
    while events.next().await.is_some() {}
}

#[test]
fn executors_die_with_a_killed_agent_and_see_nothing_of_its_secrets() {
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_with_an_endless_chunk", "--ignored", "--nocapture"])
        .env("KUBECONFIG", "/somewhere")
        .env("SECRET_TOKEN", "hush")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = lines.map_while(Result::ok);
        let running = lines.find_map(|line| line.strip_prefix("running ")?.parse().ok());
        // The receiver may have timed out.
        let _ = say.send(running);
    });
    let running: Option<u32> = said.recv_timeout(TIMEOUT).unwrap_or_default();
    let Some(executor) = running else {
        agent.kill().unwrap();
        panic!("the agent does not say which executor runs: {:?}", agent.wait());
    };
    assert_eq!(executors_of(agent.id()), [executor]);

    let environment = std::fs::read(format!("/proc/{executor}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(
        !environment.contains("KUBECONFIG") && !environment.contains("hush"),
        "{environment}"
    );
    let limits = std::fs::read_to_string(format!("/proc/{executor}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let mut descriptors: Vec<String> = std::fs::read_dir(format!("/proc/{executor}/fd"))
        .unwrap()
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
        // Files that the executor's sandbox keeps open for its Landlock rules.
        .filter(|target| !target.starts_with("/proc/"))
        .map(|target| target.split([':', ' ']).next().unwrap().to_owned())
        .collect();
    descriptors.sort();
    // The socket twice (one descriptor for each direction), /dev/null as standard input, the stderr pipe as both outputs, the status page.
    assert_eq!(
        descriptors,
        ["/dev/null", "/memfd", "pipe", "pipe", "socket", "socket"],
        "nothing else was inherited"
    );
    assert_eq!(std::fs::read_link(format!("/proc/{executor}/cwd")).unwrap().to_str(), Some("/"));
    let status = std::fs::read_to_string(format!("/proc/{executor}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"));
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    // CAP_DAC_OVERRIDE remains: root still reads other users' files.
    assert!(u64::from_str_radix(capabilities, 16).unwrap() & !0b10 == 0, "{capabilities}");

    agent.kill().unwrap();
    agent.wait().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let alive = || {
        std::fs::read_to_string(format!("/proc/{executor}/stat")).is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
        })
    };
    while alive() {
        assert!(Instant::now() < deadline, "the executor outlives its agent");
        std::thread::sleep(Duration::from_millis(5));
    }
}
