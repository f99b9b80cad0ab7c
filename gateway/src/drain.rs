//! Discards what a peer still sends after its request was rejected.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::timeout;

/// Maximum number of bytes read. A client usually sends no more than one file or tensor before it reads the answer.
const MAX_BYTES: usize = 64 << 20;
/// Time limit of reading: on a slow link it is better that the client loses the answer than that it holds the connection.
const LONGEST: Duration = Duration::from_secs(5);

/// Reads and drops what the peer still sends, within both limits. The kernel resets a connection that is closed with unread bytes, and a
/// peer that sends everything before it reads would lose the answer.
pub(crate) async fn drain<E>(pieces: impl Stream<Item = Result<Bytes, E>>) {
    let mut pieces = pin!(pieces);
    let reading = async {
        let mut read = 0;
        while read < MAX_BYTES
            && let Some(Ok(piece)) = pieces.next().await
        {
            read += piece.len();
        }
    };
    let _ = timeout(LONGEST, reading).await;
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use futures::stream;

    use super::*;

    /// Number of 1 MiB pieces that `drain` takes from `pieces`.
    async fn taken<E>(pieces: impl Stream<Item = Result<Bytes, E>>) -> usize {
        let mut taken = 0;
        drain(pieces.inspect(|_| taken += 1)).await;
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_read_to_its_end_to_the_most_or_for_the_longest_time() {
        let piece = || Ok::<_, io::Error>(Bytes::from_static(&[0; 1 << 20]));
        assert_eq!(taken(stream::iter([piece(), piece()])).await, 2);
        assert_eq!(
            taken(stream::iter([piece(), Err(io::ErrorKind::BrokenPipe.into()), piece()])).await,
            2
        );
        assert_eq!(taken(stream::repeat_with(piece)).await, 64);
        let begun = tokio::time::Instant::now();
        assert_eq!(taken(stream::iter([piece()]).chain(stream::pending())).await, 1);
        assert_eq!(begun.elapsed(), LONGEST);
        assert_eq!(taken(stream::empty::<Result<Bytes, Infallible>>()).await, 0);
    }
}
