//! Streams of sessions through the gateway to a worker that is a socket of the test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, header};
use sahasra_gateway::{
    Limits,
    stream::{MESSAGE_BYTES, Pace},
    token::SUBPROTOCOL as TOKEN_SUBPROTOCOL,
};
use sahasra_wire::session::RESUME_HEADER;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    cluster::{TOKEN, WITHIN, eventually},
    ends::{STREAM, close_of, connect_with, ended, exactly, message, open, placed, refused, request, some},
};

/// Bytes that depend on their position.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|place| (place % 251) as u8 ^ (place >> 16) as u8)
        .collect()
}

#[tokio::test]
async fn bytes_are_relayed_in_both_directions_in_order_regardless_of_message_boundaries() {
    const TOTAL: usize = 24 << 20;
    let (cluster, agent) = placed(&[], Limits::default()).await;
    let (client, mut worker) = open(&cluster, &agent).await;
    let echo = tokio::spawn(async move {
        let (mut from, mut to) = worker.split();
        tokio::io::copy(&mut from, &mut to).await.expect("echoed");
    });
    let (mut sink, mut source) = client.split();
    let send = async {
        let (mut at, mut turn) = (0, 0);
        // A byte, an empty message, 64 KiB, 1 MiB, and an odd number of bytes.
        let sizes = [1, 0, 64 << 10, 1 << 20, 100_003, 3 << 20];
        while at < TOTAL {
            let size = sizes[turn % sizes.len()].min(TOTAL - at);
            sink.send(Message::Binary(pattern(at, size).into())).await.expect("sent");
            (at, turn) = (at + size, turn + 1);
        }
    };
    let receive = async {
        let mut at = 0;
        while at < TOTAL {
            match source.next().await.expect("more").expect("a message") {
                Message::Binary(piece) => {
                    assert_eq!(piece, pattern(at, piece.len()), "at {at}");
                    at += piece.len();
                }
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(WITHIN, async { tokio::join!(send, receive) })
        .await
        .expect("all of it");
    assert_eq!(cluster.metric("sahasra_gateway_streams").await, 1.0);
    sink.send(Message::Close(None)).await.expect("closed");
    let echoed = tokio::time::timeout(WITHIN, echo).await;
    echoed.expect("the worker sees the end").expect("it echoes");
    eventually("it is over", async || {
        (cluster.metric("sahasra_gateway_streams ").await == 0.0).then_some(())
    })
    .await;
    assert_eq!(cluster.metric("sahasra_gateway_stream_bytes_total").await, 2.0 * TOTAL as f64);
}

#[tokio::test]
async fn a_message_of_the_maximum_size_is_relayed() {
    let (cluster, agent) = placed(&[], Limits::default()).await;
    let (mut client, mut worker) = open(&cluster, &agent).await;
    let largest = pattern(0, MESSAGE_BYTES);
    assert_eq!(largest.len(), 16 << 20);
    let send = async {
        client.send(Message::Binary(largest.clone().into())).await.expect("sent");
        client.flush().await.expect("flushed");
    };
    let receive = async {
        let mut received = vec![0; MESSAGE_BYTES];
        worker.read_exact(&mut received).await.expect("all of it");
        received
    };
    let both = tokio::time::timeout(WITHIN, async { tokio::join!(send, receive) });
    let ((), received) = both.await.expect("in time");
    assert!(received == largest);
}

#[tokio::test]
async fn bytes_after_the_workers_answer_are_relayed_and_the_token_may_be_a_subprotocol() {
    let (cluster, agent) = placed(&[], Limits::default()).await;
    let mut request = request(&cluster);
    request.headers_mut().remove(header::AUTHORIZATION);
    let offered = format!("sahasra-session.v1, {TOKEN_SUBPROTOCOL}{}", URL_SAFE_NO_PAD.encode(TOKEN));
    request
        .headers_mut()
        .insert(header::SEC_WEBSOCKET_PROTOCOL, offered.parse().expect("a value"));
    let (client, _worker) = tokio::join!(connect_with(&cluster, request), agent.accept("hello"));
    assert_eq!(message(&mut client.expect("a WebSocket")).await, Message::Binary("hello".into()));
}

/// Waits until a count has not changed for a while, and returns it.
async fn settled(figure: &AtomicU64) -> u64 {
    let mut last = figure.load(Ordering::Relaxed);
    let since = tokio::time::Instant::now();
    loop {
        assert!(since.elapsed() < WITHIN, "it never stands still: {last}");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = figure.load(Ordering::Relaxed);
        if now == last && now > 0 {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn a_side_that_does_not_read_stops_the_other_without_buffering() {
    // The data exceeds the kernel's socket buffers, and a gateway without a bound would buffer all of it.
    const TOTAL: u64 = 256 << 20;
    const PIECE: usize = 1 << 20;
    const PILE: u64 = 48 << 20;
    let (cluster, agent) = placed(&[], Limits::default()).await;
    let (mut client, mut worker) = open(&cluster, &agent).await;
    let sent = Arc::new(AtomicU64::new(0));
    let counting = sent.clone();
    let sending = tokio::spawn(async move {
        let piece = Bytes::from(vec![7; PIECE]);
        for _ in 0..TOTAL / PIECE as u64 {
            client.send(Message::Binary(piece.clone())).await.expect("sent");
            counting.fetch_add(PIECE as u64, Ordering::Relaxed);
        }
        client
    });
    let taken = settled(&sent).await;
    assert!(taken < PILE, "{taken} bytes were taken for a worker that reads nothing");
    let mut buffer = vec![0; PIECE];
    let mut read = 0;
    while read < TOTAL {
        read += some(&mut worker, &mut buffer).await;
    }
    assert_eq!(read, TOTAL);
    let mut client = tokio::time::timeout(WITHIN, sending).await.expect("it ends").expect("all is sent");

    let written = Arc::new(AtomicU64::new(0));
    let counting = written.clone();
    let writing = tokio::spawn(async move {
        let piece = vec![9; PIECE];
        for _ in 0..TOTAL / PIECE as u64 {
            worker.write_all(&piece).await.expect("written");
            counting.fetch_add(PIECE as u64, Ordering::Relaxed);
        }
        worker
    });
    let taken = settled(&written).await;
    assert!(taken < PILE, "{taken} bytes were taken for a client that reads nothing");
    let mut read = 0;
    while read < TOTAL {
        match message(&mut client).await {
            Message::Binary(piece) => read += piece.len() as u64,
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read, TOTAL);
    drop(
        tokio::time::timeout(WITHIN, writing)
            .await
            .expect("it ends")
            .expect("all is written"),
    );
}

#[tokio::test]
async fn a_stream_is_rejected_before_it_opens_with_the_remedy() {
    let (cluster, agent) = placed(&["--max-streams", "1"], Limits::default()).await;
    let changed = |change: &dyn Fn(&mut Request<()>)| {
        let mut request = request(&cluster);
        change(&mut request);
        request
    };
    let wrong_token = changed(&|request| {
        drop(
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, "Bearer wrong".parse().expect("a value")),
        )
    });
    assert_eq!(refused(&cluster, wrong_token).await.0, 401);
    let no_token = changed(&|request| drop(request.headers_mut().remove(header::AUTHORIZATION)));
    assert_eq!(refused(&cluster, no_token).await.0, 401);
    let other = changed(&|request| {
        drop(
            request
                .headers_mut()
                .insert(header::SEC_WEBSOCKET_PROTOCOL, "chat".parse().expect("a value")),
        )
    });
    assert_eq!(refused(&cluster, other).await.0, 400);
    let unknown = changed(&|request| *request.uri_mut() = request.uri().to_string().replace("mine", "other").parse().expect("a URL"));
    assert_eq!(refused(&cluster, unknown).await.0, 404);
    assert!(cluster.get(STREAM).await.refusal(426).contains("sahasra-session.v1"));

    // Statuses that the client can act on are passed on; all others become 502.
    for (agents, code) in [(401, 401), (403, 403), (404, 404), (503, 503), (426, 502), (200, 502), (500, 502)] {
        let refusing = async {
            let (mut connection, _) = agent.asked().await;
            let answer = format!("HTTP/1.1 {agents} x\r\nContent-Length: 9\r\n\r\nno, thus\n");
            connection.write_all(answer.as_bytes()).await.expect("sent");
        };
        let ((status, message), ()) = tokio::join!(refused(&cluster, request(&cluster)), refusing);
        assert_eq!(status, code, "the agent answered {agents}");
        assert!(message.contains("no, thus"), "{message}");
    }
    let leaving = async { drop(agent.asked().await) };
    let ((status, _), ()) = tokio::join!(refused(&cluster, request(&cluster)), leaving);
    assert_eq!(status, 502);

    // The only slot is taken, so another stream is rejected until the first is closed.
    let (mut client, worker) = open(&cluster, &agent).await;
    assert_eq!(refused(&cluster, request(&cluster)).await.0, 503);
    client.close(None).await.expect("closed");
    drop(worker);
    eventually("it is over", async || {
        (cluster.metric("sahasra_gateway_streams ").await == 0.0).then_some(())
    })
    .await;
    drop(open(&cluster, &agent).await);

    let reported = json!({"endpoint": "http://127.0.0.1:1"});
    cluster.report("GpuSession", "mine", reported).await;
    eventually("there is room", async || {
        (refused(&cluster, request(&cluster)).await.0 == 502).then_some(())
    })
    .await;
    cluster.report("GpuSession", "mine", json!({"endpoint": null})).await;
    assert_eq!(refused(&cluster, request(&cluster)).await.0, 409);
    assert_eq!(cluster.metric("sahasra_gateway_streams ").await, 0.0);
}

#[tokio::test]
async fn the_worker_decides_about_a_resumed_stream_without_the_api_server() {
    let (cluster, agent) = placed(&[], Limits::default()).await;
    let resuming = || {
        let mut request = request(&cluster);
        request.headers_mut().insert(RESUME_HEADER, "00ff".parse().expect("a value"));
        request
    };
    let objects = cluster.objects("GpuSession");
    // The gateway does not know the session's worker yet, so it reads the session.
    let answering = async {
        let (mut connection, head) = agent.asked().await;
        assert!(head.contains("sahasra-resume: 00ff\r\n"), "{head}");
        let answer = "HTTP/1.1 410 x\r\nContent-Length: 5\r\n\r\ngone\n";
        connection.write_all(answer.as_bytes()).await.expect("sent");
    };
    let ((status, _), ()) = tokio::join!(refused(&cluster, resuming()), answering);
    assert_eq!(status, 410);
    drop(open(&cluster, &agent).await);
    objects.delete("mine", &kube::api::DeleteParams::default()).await.expect("deleted");
    assert_eq!(refused(&cluster, request(&cluster)).await.0, 404);
    let (client, worker) = tokio::join!(connect_with(&cluster, resuming()), agent.accept(""));
    drop((client.expect("a WebSocket"), worker));
    // If the worker does not recognise the secret, or has ended, the API server decides.
    let refusing = async { drop(agent.asked().await) };
    let ((status, _), ()) = tokio::join!(refused(&cluster, resuming()), refusing);
    assert_eq!(status, 404);
    drop(agent);
    assert_eq!(refused(&cluster, resuming()).await.0, 404);
}

#[tokio::test]
async fn a_worker_that_has_ended_is_distinguished_from_an_unreachable_one() {
    let (cluster, agent) = placed(&[], Limits::default()).await;
    drop(open(&cluster, &agent).await);
    drop(agent);
    let headers = Request::get(format!("http://{}{STREAM}", cluster.address));
    let request = request(&cluster);
    let headers = request
        .headers()
        .iter()
        .fold(headers, |head, (name, value)| head.header(name, value));
    let answer = cluster.send(STREAM, headers, Bytes::new()).await;
    assert_eq!(answer.json()["reason"], "WorkerUnreachable");
    assert!(answer.refusal(502).contains("refused the connection"), "{answer:?}");
}

#[tokio::test]
async fn the_client_receives_the_reason_for_the_end_of_a_stream() {
    let pace = Pace {
        ping: Duration::from_millis(50),
        silence: Duration::from_millis(1500),
    };
    let limits = Limits { pace, ..Limits::default() };
    let (cluster, agent) = placed(&[], limits).await;

    let (mut client, mut worker) = open(&cluster, &agent).await;
    worker.write_all(b"last words").await.expect("written");
    worker.shutdown().await.expect("ended");
    assert_eq!(message(&mut client).await, Message::Binary("last words".into()));
    assert_eq!(close_of(&mut client).await, (1000, "the worker closed the stream".to_owned()));
    ended(&mut worker).await;

    let (mut client, worker) = open(&cluster, &agent).await;
    // A reset, as sent by a machine that does not know the connection.
    worker.set_zero_linger().expect("set");
    drop(worker);
    let (code, reason) = close_of(&mut client).await;
    assert!(code == 1011 && reason.starts_with("worker connection lost"), "{code}: {reason}");

    let (mut client, mut worker) = open(&cluster, &agent).await;
    client.send(Message::Text("hello".into())).await.expect("sent");
    assert_eq!(close_of(&mut client).await, (1003, "only binary messages are supported".to_owned()));
    ended(&mut worker).await;

    let (mut client, mut worker) = open(&cluster, &agent).await;
    // The message is rejected by its head, and a client that sends all of it before it reads still gets the close frame.
    client
        .send(Message::Binary(vec![0; MESSAGE_BYTES + 1].into()))
        .await
        .expect("all of it is read");
    let (code, reason) = close_of(&mut client).await;
    assert!(code == 1009 && reason.contains("send several"), "{code}: {reason}");
    ended(&mut worker).await;

    // A client that answers no ping: it is never polled, so its library cannot answer.
    let (mut client, mut worker) = open(&cluster, &agent).await;
    ended(&mut worker).await;
    assert_eq!(close_of(&mut client).await.0, 1001);

    // A client that answers pings is kept, however long it is idle: here for several times the limit of silence.
    let (mut client, mut worker) = open(&cluster, &agent).await;
    let mut pings = 0;
    while pings < 80 {
        if let Message::Ping(_) = message(&mut client).await {
            pings += 1;
        }
    }
    client.send(Message::Binary("still here".into())).await.expect("sent");
    assert_eq!(&exactly::<10>(&mut worker).await, b"still here");
    client.close(None).await.expect("closed");
    ended(&mut worker).await;

    // A client that disconnects without a close frame.
    let (client, mut worker) = open(&cluster, &agent).await;
    drop(client);
    ended(&mut worker).await;

    let (mut client, mut worker) = open(&cluster, &agent).await;
    cluster.stop.cancel();
    let (code, reason) = close_of(&mut client).await;
    assert!(code == 1012 && reason.contains("connect again"), "{code}: {reason}");
    ended(&mut worker).await;
}

#[tokio::test]
async fn streams_opened_and_closed_by_the_hundred_leave_nothing() {
    let (cluster, agent) = placed(&["--max-streams", "4"], Limits::default()).await;
    for turn in 0..300 {
        let (mut client, mut worker) = eventually("there is room", async || {
            let connecting = connect_with(&cluster, request(&cluster));
            let (client, worker) = tokio::join!(connecting, agent.accept(""));
            Some((client.ok()?, worker))
        })
        .await;
        client.send(Message::Binary(vec![turn as u8; 100].into())).await.expect("sent");
        assert_eq!(exactly::<100>(&mut worker).await, [turn as u8; 100]);
        match turn % 3 {
            0 => drop(client),
            1 => client.close(None).await.expect("closed"),
            _ => {
                worker.shutdown().await.expect("ended");
                assert_eq!(close_of(&mut client).await.0, 1000);
            }
        }
        eventually("it is over", async || {
            (cluster.metric("sahasra_gateway_streams ").await == 0.0).then_some(())
        })
        .await;
    }
    assert_eq!(cluster.metric("sahasra_gateway_streams_closed_total").await, 300.0);
    assert_eq!(cluster.metric("sahasra_gateway_requests_total{code=\"101\"").await, 300.0);
}

#[tokio::test]
async fn a_caller_gets_no_more_than_its_share_of_streams() {
    let (cluster, agent) = placed(&["--max-streams", "8"], Limits::default()).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(open(&cluster, &agent).await);
    }
    // The caller holds as many slots as are free, so the free ones are for other callers.
    let (code, message) = refused(&cluster, request(&cluster)).await;
    assert_eq!(code, 429, "{message}");
    assert_eq!(
        message,
        "you hold 4 of this gateway's 8 streams, and only 4 are free for other callers: close one, or retry in 5 s"
    );
    drop(held.pop());
    eventually("there is room again", async || {
        (cluster.metric("sahasra_gateway_streams ").await == 3.0).then_some(())
    })
    .await;
    drop(open(&cluster, &agent).await);
}

#[tokio::test]
async fn an_invalid_token_takes_no_slot() {
    let (cluster, agent) = placed(&["--max-streams", "1"], Limits::default()).await;
    let wrong = || {
        let mut request = request(&cluster);
        let token = "Bearer wrong".parse().expect("a value");
        request.headers_mut().insert(header::AUTHORIZATION, token);
        request
    };
    // All at once: none of these requests may take the only slot.
    let codes = futures::future::join_all((0..16).map(|_| refused(&cluster, wrong()))).await;
    assert!(codes.iter().all(|(code, _)| *code == 401), "{codes:?}");
    drop(open(&cluster, &agent).await);
}
