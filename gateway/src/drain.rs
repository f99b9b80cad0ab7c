//! What a peer still sends after it was refused.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::timeout;

/// Most that is read: what a client sends before it looks at the answer is a file or a tensor, seldom more.
const MOST_BYTES: usize = 64 << 20;
/// Longest time for which it is read: on a slow line the client loses the answer rather than holding the connection.
const LONGEST: Duration = Duration::from_secs(5);

/// Reads and drops what the peer still sends: to its end, to 64 MiB, or for 5 s. A connection that is closed with bytes unread is reset by the
/// kernel, and a peer that sends everything before it reads loses the answer.
pub async fn drain<E>(pieces: impl Stream<Item = Result<Bytes, E>>) {
    let mut pieces = pin!(pieces);
    let reading = async {
        let mut read = 0;
        while read < MOST_BYTES
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

    /// Pieces of 1 MiB that are taken of `pieces`.
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
