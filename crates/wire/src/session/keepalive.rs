//! Detection of a lost peer on a stream's TCP connection by the kernel. Without detection, the connection of a machine that crashed or a
//! laptop that changed networks stays open, and the stream may be silent for hours anyway.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt;

/// Idle time after which the kernel starts to probe the peer.
const IDLE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which the connection ends: [`TIMEOUT`] after the last sign of life.
const PROBES: u32 = 3;
/// Maximum time for which data may stay unacknowledged or the peer's receive window closed (`TCP_USER_TIMEOUT`). Keepalive does not probe
/// in these states: without this limit, the connection lasts for the 15 retransmissions of the default `tcp_retries2`, about a quarter of
/// an hour.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Lets the kernel end the connection with an error about 60 s after the last sign of life of its peer, whether the connection is idle or
/// not.
///
/// # Errors
/// Those of `setsockopt`, for example for a socket that is not TCP.
pub fn watch(connection: impl AsFd) -> io::Result<()> {
    let connection = connection.as_fd();
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, IDLE)?;
    sockopt::set_tcp_keepintvl(connection, INTERVAL)?;
    sockopt::set_tcp_keepcnt(connection, PROBES)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(connection, TIMEOUT.as_millis() as u32)?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_peer_that_is_gone_is_noticed_within_a_minute_with_and_without_data_on_the_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        watch(&connection).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&connection).unwrap(), 60_000);
        let idle = sockopt::tcp_keepidle(&connection).unwrap() + sockopt::tcp_keepintvl(&connection).unwrap() * PROBES;
        assert_eq!(idle, TIMEOUT);
        assert!(sockopt::socket_keepalive(&connection).unwrap());
        assert_eq!(sockopt::tcp_keepcnt(&connection).unwrap(), PROBES);
        assert!(watch(UnixStream::pair().unwrap().0).is_err(), "there is nothing to find out");
    }
}
