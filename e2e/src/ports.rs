//! Loopback ports, reserved so that no other process takes them while a test needs them.
//!
//! A port found by binding to port 0 and closing the socket may be taken before its server starts, because the kernel uses the same range for
//! every outgoing connection. Ports of this module are below that range. Each is reserved, for as long as the [`Port`] lives, by an abstract
//! Unix socket in the network namespace, so that test binaries that run at once use different ports.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// First port: below Linux's default `ip_local_port_range` (32768 to 60999) and above most registered ports of services.
const FIRST: u16 = 20_000;
/// Port after the last one.
const END: u16 = 30_000;

/// A TCP port on 127.0.0.1 that no other [`Port`] in this network namespace has.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

/// No port could be reserved.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Every port of the range is reserved or in use.
    #[error("no free loopback port between {FIRST} and {END}")]
    Exhausted,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Errors
    /// [`PortError::Exhausted`] when the whole range is taken.
    pub fn reserve() -> Result<Self, PortError> {
        // Each process starts its search at a different port, so that it rarely meets reserved ones.
        let width = u32::from(END - FIRST);
        let start = std::process::id().wrapping_mul(97) % width;
        for step in 0..width {
            let offset = u16::try_from((start + step) % width).unwrap_or(0);
            if let Some(port) = Self::try_reserve(FIRST + offset) {
                return Ok(port);
            }
        }
        Err(PortError::Exhausted)
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("sahasra-e2e-port-{number}")).ok()?;
        let reservation = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self {
            number,
            _reservation: reservation,
        })
    }

    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Address of the port, `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }

    /// URL of the port, `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::Port;

    #[test]
    fn reserved_ports_differ_and_are_free_to_bind() {
        let ports: Vec<Port> = (0..20).map(|_| Port::reserve().expect("a port")).collect();
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 20);
        for port in &ports {
            std::net::TcpListener::bind(port.address()).expect("nobody listens there");
        }
    }

    #[test]
    fn a_dropped_reservation_can_be_made_again() {
        // A concurrent test may take the port first once in a while.
        let is_free_again = |_| {
            let number = Port::reserve().expect("a port").number();
            Port::try_reserve(number).is_some()
        };
        assert!((0..100).any(is_free_again));
    }
}
