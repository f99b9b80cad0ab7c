//! Infrastructure that all processes of Sahasra share: HTTP server, TLS, health and metrics routes, graceful shutdown, logging, values of
//! flags, time, and groups of tasks.
//!
//! Routes are warp filters that return an [`answer`]. [`server::serve`] runs them with an accept loop of its own, because warp 0.4 has no
//! public one. The loop applies the HTTP/2 settings, the limits on slow clients and the graceful shutdown. [`tls`] contains the TLS
//! handshake of the server and of clients. [`health`] and [`metrics`] are the routes of every process. [`api_requests`] counts requests to
//! the API server. [`shutdown`] turns SIGTERM, SIGINT and SIGHUP into a cancellation token for all tasks. [`clock`] and [`tasks`] let the
//! whole-system simulation run, and crash, several operators and agents in one runtime with a paused clock.

pub mod answer;
pub mod api_requests;
pub mod args;
pub mod backoff;
pub mod clock;
pub mod health;
pub mod logging;
pub mod methods;
pub mod metrics;
pub mod server;
pub mod shutdown;
pub mod tasks;
pub mod tls;

pub use sahasra_error_chain::causes;
