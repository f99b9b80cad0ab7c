//! Harness of the end-to-end tests: a real Kubernetes API server, and the operator and agents as real processes.
//!
//! [`ControlPlane`] starts etcd, kube-apiserver and kube-controller-manager ([`tools`] builds them once from pinned Go modules), creates
//! certificates and ServiceAccount identities, and reads the API server's audit log ([`audit`]). [`Pool`] adds an operator and agents under
//! the chart's identities. [`Process`] supervises one child process: readiness probe, signals, restart with the same arguments, log. Whatever
//! a test starts ends with the test; its files are kept and shown if the test fails.
//!
//! [`Embedded`] is the embedded control plane over HTTPS ([`ApiServer`]), for the same kubectl.
//!
//! `e2e/README.md` explains how to write a test.

mod api_server;
pub mod audit;
pub mod bursts;
mod certificates;
mod control_plane;
mod directory;
mod embedded;
mod eventually;
mod identities;
mod kubectl;
pub mod manifests;
mod pool;
mod ports;
mod process;
pub mod tools;

pub use api_server::{ApiServer, ServeError};
pub use certificates::{CertificateError, WorkerCertificates};
pub use control_plane::{ControlPlane, ControlPlaneError, EXISTING_CLUSTER_VARIABLE, Options, Shared, condition, true_condition};
pub use embedded::Embedded;
pub use eventually::eventually;
pub use identities::{Identities, NAMESPACE};
pub use kubectl::{CommandError, Output};
pub use pool::{Pool, PoolError, PoolOptions, Server, SharedPool, Turn, metric};
pub use ports::{Port, PortError};
pub use process::{Descendant, HttpError, Process, ProcessError, Specification, get, get_with, is_alive, signal};
pub use rustix::process::Signal;
