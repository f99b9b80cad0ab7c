//! The harness of Sahasra's end-to-end tests: a real Kubernetes API server, the operator and agents as real processes.
//!
//! [`ControlPlane`] starts etcd, kube-apiserver and kube-controller-manager ([`tools`] builds them once from pinned Go
//! modules), makes certificates and ServiceAccount identities, and reads the API server's audit log back ([`audit`]).
//! [`Pool`] adds an operator and agents under the chart's identities. [`Process`] supervises one child: ready probe, signals, restart with the same arguments, log. Everything a test starts is
//! gone when the test is, and what it wrote is kept and shown when it fails.
//!
//! [`Embedded`] is the embedded control plane over HTTPS, for the same kubectl.
//!
//! `e2e/README.md` shows how a test is written.

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
