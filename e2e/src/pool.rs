//! A pool under test: an operator and agents as processes under the chart's identities, and their control plane.
//!
//! ```no_run
//! # async fn example() -> Result<(), sahasra_e2e::PoolError> {
//! use sahasra_e2e::{Pool, PoolOptions};
//! let mut pool = Pool::start(PoolOptions::default().agents(2)).await?;
//! pool.agents[0].process.kill().await?;
//! # Ok(())
//! # }
//! ```

mod gateway;
mod shared;

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

pub use self::shared::{SharedPool, Turn};
use crate::certificates::{CertificateError, WorkerCertificates};
use crate::control_plane::{ControlPlane, ControlPlaneError, Options};
use crate::identities::{Identities, NAMESPACE};
use crate::kubectl::CommandError;
use crate::ports::{Port, PortError};
use crate::process::{HttpError, Process, ProcessError, Specification, get};
use crate::tools::{self, ToolError};

/// A pool did not start, or one of its processes did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("control plane")]
    ControlPlane(#[from] ControlPlaneError),
    /// A program could not be built or found.
    #[error("find the operator and the agent")]
    Tool(#[from] ToolError),
    #[error("run a process")]
    Process(#[from] ProcessError),
    #[error("reserve a port")]
    Port(#[from] PortError),
    #[error("make certificates")]
    Certificate(#[from] CertificateError),
    #[error("run a command")]
    Command(#[from] CommandError),
    /// A process gave no answer to a GET.
    #[error("GET {url}")]
    Http {
        url: String,
        /// Reason why there was no answer.
        source: HttpError,
    },
    /// A process answered a GET with another status than 200, or with an invalid body.
    #[error("GET {url} answered {status}: {body}")]
    Answer {
        url: String,
        /// Status of the answer, which is 200 if only the body is invalid.
        status: StatusCode,
        body: String,
    },
}

/// Options of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    agents: u32,
    agent_arguments: Vec<String>,
    operator_environment: Vec<(String, String)>,
    operator_arguments: Vec<String>,
    /// Name that the operator expects in the agents' certificate; with `Some`, certificates for agents and operator are created.
    certificates: Option<String>,
    /// Whether the agents use their certificates.
    tls: bool,
    control_plane: Options,
}

impl Default for PoolOptions {
    /// Default options: two agents, each with one CPU device of 4 GiB.
    fn default() -> Self {
        Self {
            agents: 2,
            agent_arguments: vec!["--cpu-device-memory".to_owned(), "4Gi".to_owned()],
            operator_environment: Vec::new(),
            operator_arguments: Vec::new(),
            certificates: None,
            tls: false,
            control_plane: Options::default(),
        }
    }
}

impl PoolOptions {
    /// Options for tests of sessions: two agents, each with one CPU device of 1 GiB, and an operator that considers a worker or a leader
    /// lost after 5 s.
    #[must_use]
    pub fn watchful() -> Self {
        let agent = ["--no-cuda", "--cpu-device-memory", "1Gi", "--heartbeat-interval", "1s"];
        Self::default()
            .agents(2)
            .agent_arguments(agent)
            .operator_environment("SAHASRA_HEARTBEAT_TIMEOUT", "5s")
            .operator_environment("SAHASRA_LEADER_ELECT_LEASE_DURATION", "5s")
    }

    /// Sets the number of agents, on nodes `node-0`, `node-1`, ...
    #[must_use]
    pub fn agents(mut self, agents: u32) -> Self {
        self.agents = agents;
        self
    }

    /// Replaces the default arguments `--cpu-device-memory 4Gi` of the agents. Node name and addresses are always added.
    #[must_use]
    pub fn agent_arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.agent_arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets an environment variable of the operator, such as one that injects a fault.
    #[must_use]
    pub fn operator_environment(mut self, name: &str, value: &str) -> Self {
        self.operator_environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has the agents use TLS, and the operator authenticate by its certificate: [`Pool::certificates`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self.certificates(WorkerCertificates::NAME)
    }

    /// Creates certificates, and has the operator verify agents that use TLS under this name. The agents themselves use TLS only with
    /// [`PoolOptions::tls`] or the arguments of [`Pool::add_agent_with`].
    #[must_use]
    pub fn certificates(mut self, name: &str) -> Self {
        self.certificates = Some(name.to_owned());
        self
    }

    /// Sets the options of the control plane.
    #[must_use]
    pub fn control_plane(mut self, options: Options) -> Self {
        self.control_plane = options;
        self
    }
}

/// An operator, agent or gateway, and its port.
#[derive(Debug)]
pub struct Server {
    /// The process, which tests can kill, suspend and restart.
    pub process: Process,
    port: Port,
    tls: bool,
}

/// A control plane with an operator and agents.
#[derive(Debug)]
pub struct Pool {
    // Fields are in the order of dropping: clients before the servers that they use.
    pub operator: Server,
    /// The agents, on nodes `node-0`, `node-1`, ...
    pub agents: Vec<Server>,
    pub control_plane: ControlPlane,
    /// Certificates of agents and operator, if the options ask for them.
    pub certificates: Option<WorkerCertificates>,
    identities: Identities,
    options: PoolOptions,
}

impl Pool {
    /// Starts a control plane with the chart's identities and nodes, an operator and one agent on each node, and waits until every process
    /// and every `GpuWorker` is ready.
    ///
    /// # Errors
    /// When a process does not start; its log tail is written to stderr.
    pub async fn start(mut options: PoolOptions) -> Result<Self, PoolError> {
        // Built before the control plane starts, because a build slows it down.
        tools::binaries().await?;
        let control_plane = ControlPlane::start(options.control_plane.clone()).await?;
        let certificates = match &options.certificates {
            Some(name) => {
                let made = WorkerCertificates::create(&control_plane.directory().join("workers"))?;
                options.operator_arguments.extend(made.operator_arguments(name));
                Some(made)
            }
            None => None,
        };
        if let Some(made) = certificates.as_ref().filter(|_| options.tls) {
            options.agent_arguments.extend(made.agent_arguments());
        }
        let (identities, operator, agents) = match start_servers(&control_plane, &options).await {
            Ok(started) => started,
            Err(error) => {
                control_plane.keep();
                return Err(error);
            }
        };
        let pool = Self {
            operator,
            agents,
            control_plane,
            certificates,
            identities,
            options,
        };
        for index in 0..pool.options.agents {
            if let Err(error) = wait_for_worker(&pool.control_plane, index).await {
                pool.report();
                pool.control_plane.keep();
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Starts another operator; one of the operators leads.
    ///
    /// # Errors
    /// When the operator does not start.
    pub async fn start_operator(&self, name: &str) -> Result<Server, PoolError> {
        start_operator(&self.control_plane, &self.identities, &self.options, name).await
    }

    /// Adds a node and an agent on it, and waits until its `GpuWorker` is ready.
    ///
    /// # Errors
    /// When the agent does not start.
    pub async fn add_agent(&mut self) -> Result<&mut Server, PoolError> {
        let (arguments, tls) = (self.options.agent_arguments.clone(), self.options.tls);
        self.add_agent_with(&arguments, tls).await
    }

    /// Adds an agent as [`Pool::add_agent`] does, with its own arguments; `tls` says whether they make the agent use TLS.
    ///
    /// # Errors
    /// When the agent does not start.
    pub async fn add_agent_with(&mut self, arguments: &[String], tls: bool) -> Result<&mut Server, PoolError> {
        let index = u32::try_from(self.agents.len()).unwrap_or(u32::MAX);
        self.control_plane.create_node(&node_name(index), &[]).await?;
        let agent = start_agent(&self.control_plane, &self.identities, arguments, tls, index).await?;
        wait_for_worker(&self.control_plane, index).await?;
        let at = self.agents.len();
        self.agents.push(agent);
        Ok(&mut self.agents[at])
    }

    /// Writes the log tails of the operator and the agents to stderr.
    pub fn report(&self) {
        for server in std::iter::once(&self.operator).chain(&self.agents) {
            server.process.report();
        }
    }
}

impl Server {
    #[must_use]
    pub fn url(&self) -> String {
        url(&self.port, self.tls)
    }

    /// Sends `GET path` and returns the body as text.
    ///
    /// # Errors
    /// When the status is not 200 or there is no answer.
    pub async fn get(&self, path: &str) -> Result<String, PoolError> {
        let url = format!("{}{path}", self.url());
        match get(&url).await {
            Ok((StatusCode::OK, body)) => Ok(body),
            Ok((status, body)) => Err(PoolError::Answer { url, status, body }),
            Err(source) => Err(PoolError::Http { url, source }),
        }
    }

    /// Sends `GET path` and returns the body as JSON, such as that of the operator's `/workers`.
    ///
    /// # Errors
    /// When the answer is not 200 with JSON.
    pub async fn get_json(&self, path: &str) -> Result<Value, PoolError> {
        let body = self.get(path).await?;
        serde_json::from_str(&body).map_err(|_| {
            let url = format!("{}{path}", self.url());
            PoolError::Answer {
                url,
                status: StatusCode::OK,
                body,
            }
        })
    }

    /// Returns a metric of `/metrics`, summed over all labels; `None` if the page does not have the metric.
    ///
    /// # Errors
    /// When the server does not answer with 200.
    pub async fn metric(&self, name: &str) -> Result<Option<f64>, PoolError> {
        Ok(metric(&self.get("/metrics").await?, name))
    }
}

fn url(port: &Port, tls: bool) -> String {
    format!("{}://{}", if tls { "https" } else { "http" }, port.address())
}

/// Returns the sum of the samples called `name` in a page of the Prometheus text format; `None` if there are none.
#[must_use]
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let samples = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.split_whitespace().next()?.parse::<f64>().ok()
    });
    samples.fold(None, |sum, sample| Some(sum.unwrap_or(0.0) + sample))
}

async fn start_servers(control_plane: &ControlPlane, options: &PoolOptions) -> Result<(Identities, Server, Vec<Server>), PoolError> {
    let identities = control_plane.apply_chart_identities().await?;
    for index in 0..options.agents {
        control_plane.create_node(&node_name(index), &[]).await?;
    }
    let operator = start_operator(control_plane, &identities, options, "operator");
    let start = |index| start_agent(control_plane, &identities, &options.agent_arguments, options.tls, index);
    let agents = (0..options.agents).map(start);
    let (operator, agents) = tokio::try_join!(operator, futures::future::try_join_all(agents))?;
    Ok((identities, operator, agents))
}

fn node_name(index: u32) -> String {
    format!("node-{index}")
}

async fn start_operator(
    control_plane: &ControlPlane,
    identities: &Identities,
    options: &PoolOptions,
    name: &str,
) -> Result<Server, PoolError> {
    let port = Port::reserve()?;
    let program = tools::binaries().await?.join("sahasra-operator");
    let mut specification = Specification::new(name, program, &control_plane.log_directory())
        .arguments([
            "--listen",
            &port.address(),
            "--leader-elect-identity",
            name,
            "--namespace",
            NAMESPACE,
        ])
        .arguments(&options.operator_arguments)
        .environment("KUBECONFIG", &identities.operator)
        .ready_at(format!("{}/readyz", port.url()));
    for (variable, value) in &options.operator_environment {
        specification = specification.environment(variable, value);
    }
    Ok(Server {
        process: specification.start().await?,
        port,
        tls: false,
    })
}

async fn start_agent(
    control_plane: &ControlPlane,
    identities: &Identities,
    arguments: &[String],
    tls: bool,
    index: u32,
) -> Result<Server, PoolError> {
    let port = Port::reserve()?;
    let url = url(&port, tls);
    let program = tools::binaries().await?.join("sahasra-worker");
    let specification = Specification::new(&format!("agent-{index}"), program, &control_plane.log_directory())
        .arguments(["agent", "--node-name", &node_name(index), "--listen", &port.address()])
        .arguments(["--advertise-url", &url, "--namespace", NAMESPACE])
        .arguments(arguments)
        .environment("KUBECONFIG", control_plane.agent_kubeconfig(identities, &node_name(index)).await?)
        .ready_at(format!("{url}/readyz"));
    Ok(Server {
        process: specification.start().await?,
        port,
        tls,
    })
}

async fn wait_for_worker(control_plane: &ControlPlane, index: u32) -> Result<(), PoolError> {
    const WITHIN: Duration = Duration::from_secs(120);
    let worker = format!("gpuworkers/{}", node_name(index));
    let timeout = format!("--timeout={}s", WITHIN.as_secs());
    // `kubectl wait` for a condition fails at once if the object does not exist.
    control_plane
        .kubectl(["wait", "--for=create", &worker, &timeout])
        .await?
        .success()?;
    control_plane
        .kubectl(["wait", "--for=condition=Ready", &worker, &timeout])
        .await?
        .success()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::metric;

    #[test]
    fn samples_of_a_metric_are_summed_over_its_labels_and_no_other_is_counted() {
        let page = "# TYPE chunks_done counter\nchunks_done 5\nchunks_done_total 9\n\
                    errors{code=\"a b\"} 1\nerrors{code=\"}\"} 2.5\ngpu_leases_active 1e3\n";
        assert_eq!(metric(page, "chunks_done"), Some(5.0));
        assert_eq!(metric(page, "errors"), Some(3.5));
        assert_eq!(metric(page, "gpu_leases_active"), Some(1000.0));
        assert_eq!(metric(page, "chunks"), None);
    }
}
