//! The gateway on a port, in front of the embedded control plane over HTTPS, as clients see it.

mod cluster;
mod described;
mod ends;
mod port;
mod rest;
mod stream;
mod worker_tls;
