//! How the kernel finds out that the peer of a stream's TCP connection is gone: nobody closes it where a machine died or a laptop changed
//! networks, and nothing may be said on it for hours.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt;

/// An idle connection is probed after so long.
const IDLE: Duration = Duration::from_secs(30);
/// Time between two probes.
const INTERVAL: Duration = Duration::from_secs(10);
/// So many probes without an answer end it, [`TIMEOUT`] after the last sign of life.
const PROBES: u32 = 3;
/// How long data may stay unacknowledged, or a closed window closed. Keepalive does not probe meanwhile: without this limit (`TCP_USER_TIMEOUT`) the
/// connection stands for the 15 retransmissions of the default `tcp_retries2`, about a quarter of an hour.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Ends the connection with an error about 60 s after the last sign of life of its peer, idle or not.
///
/// # Errors
/// The system's, as for a socket that is not TCP.
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
