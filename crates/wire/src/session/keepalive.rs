//! Detection of a lost peer on a stream's TCP connection by the kernel. Without detection, the connection of a machine that crashed or a
//! laptop that changed networks stays open, and the stream may be silent for hours anyway.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt;

/// Timing by which the kernel detects a lost peer.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Idle time after which the kernel starts to probe the peer.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection ends.
    pub probes: u32,
}

impl Keepalive {
    /// Timing between a client and its peer: about 60 s after the last sign of life.
    pub const CLIENT: Self = Self {
        idle: Duration::from_secs(30),
        interval: Duration::from_secs(10),
        probes: 3,
    };
    /// Timing within a cluster: about 30 s after the last sign of life.
    pub const CLUSTER: Self = Self {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        probes: 3,
    };

    /// Time from the last sign of life to the end of the connection.
    pub fn timeout(self) -> Duration {
        self.idle + self.interval * self.probes
    }

    /// Lets the kernel end the connection with an error after [`Keepalive::timeout`], whether the connection is idle or not.
    ///
    /// # Errors
    /// Those of `setsockopt`, for example for a socket that is not TCP.
    pub fn watch(self, connection: impl AsFd) -> io::Result<()> {
        let connection = connection.as_fd();
        sockopt::set_socket_keepalive(connection, true)?;
        sockopt::set_tcp_keepidle(connection, self.idle)?;
        sockopt::set_tcp_keepintvl(connection, self.interval)?;
        sockopt::set_tcp_keepcnt(connection, self.probes)?;
        // Keepalive does not probe while data is unacknowledged or the peer's receive window is closed: without this limit, the connection
        // would last for the 15 retransmissions of the default `tcp_retries2`, about a quarter of an hour.
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(connection, self.timeout().as_millis() as u32)?;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_lost_peer_is_detected_within_a_minute_with_and_without_data_in_flight() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (keepalive, seconds) in [(Keepalive::CLIENT, 60), (Keepalive::CLUSTER, 30)] {
            keepalive.watch(&connection).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&connection).unwrap(), seconds * 1000);
            let probes = sockopt::tcp_keepintvl(&connection).unwrap() * sockopt::tcp_keepcnt(&connection).unwrap();
            let timeout = sockopt::tcp_keepidle(&connection).unwrap() + probes;
            assert_eq!(timeout, Duration::from_secs(seconds.into()));
            assert!(sockopt::socket_keepalive(&connection).unwrap());
        }
        assert!(
            Keepalive::CLIENT.watch(UnixStream::pair().unwrap().0).is_err(),
            "there is nothing to find out"
        );
    }
}
