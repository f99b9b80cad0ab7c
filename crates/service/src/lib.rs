//! How every process of Sahasra serves HTTP, is told to stop, logs, tells the time and ties its tasks together.
//!
//! Routes are warp filters; [`server::serve`] runs them under an accept loop of our own (warp 0.4 has no public one), where
//! HTTP/2 settings, limits on slow clients and graceful shutdown live; [`tls`] is its handshake where there are certificates, and a
//! client's side of it.
//! [`health`] and [`metrics`] are the routes that every process has; [`api_requests`] counts what goes to the API server; [`shutdown`] turns SIGTERM and SIGINT into a
//! token that all tasks watch. [`clock`] and [`part`] are what lets several operators and agents live, and crash, in one
//! runtime under a clock that stands still: the whole-system simulation.

pub mod api_requests;
mod causes;
pub mod clock;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod part;
pub mod server;
pub mod shutdown;
pub mod tls;

pub use causes::causes;
