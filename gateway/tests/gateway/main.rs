//! Tests of the gateway on a port, in front of the embedded control plane over HTTPS, through its clients' protocols.

mod cluster;
mod described;
mod ends;
mod objects;
mod polls;
mod port;
mod rest;
mod results;
mod shares;
mod stream;
mod upstream;
mod worker_tls;
