//! Client of a session stream that sends exactly the frames of a test.

use bytes::{Bytes, BytesMut};
use sahasra_wire::path;
use sahasra_wire::session::{
    ClientFrame, Download, Failed, Hello, PROTOCOL, Part, RESUME_HEADER, Refused, ServerFrame, Synchronise, Upload, VERSION, Welcome,
    client_frame::Kind, frame, hex_value, server_frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::WITHIN;

/// A connection to a session's stream; see the [module](self).
#[derive(Debug)]
pub(crate) struct RawClient {
    stream: TcpStream,
    decoder: frame::Decoder,
    sent: u64,
    received: u64,
}

impl RawClient {
    /// Connects to a session's stream at its worker; the error is the status of the rejection.
    pub(crate) async fn open(endpoint: &str, namespace: &str, name: &str, token: &str) -> Result<Self, u16> {
        Self::open_with(endpoint, namespace, name, token, &[]).await
    }

    /// Connects as [`RawClient::open`] does, with a secret in the request unless it is empty.
    pub(crate) async fn open_with(endpoint: &str, namespace: &str, name: &str, token: &str, secret: &[u8]) -> Result<Self, u16> {
        let address = endpoint.strip_prefix("http://").expect("without TLS");
        let mut stream = TcpStream::connect(address).await.expect("it connects");
        let mut request = format!(
            "GET {} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n",
            path::stream(namespace, name)
        );
        if !secret.is_empty() {
            request += &format!("{RESUME_HEADER}: {}\r\n", hex_value(secret));
        }
        stream.write_all((request + "\r\n").as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = tokio::time::timeout(WITHIN, stream.read_u8()).await.expect("it answers");
            head.push(byte.expect("an answer"));
        }
        let head = String::from_utf8(head).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        if status != 101 {
            return Err(status);
        }
        Ok(Self {
            stream,
            decoder: frame::Decoder::default(),
            sent: 0,
            received: 0,
        })
    }

    /// Connects without a secret, replacing the previous client of the session.
    pub(crate) async fn welcomed(endpoint: &str, namespace: &str, name: &str, token: &str) -> (Self, Welcome) {
        let mut raw_client = Self::open(endpoint, namespace, name, token).await.expect("it may connect");
        let welcome = raw_client.greet(&[]).await.expect("it is welcome");
        (raw_client, welcome)
    }

    /// Sends `Hello` with the secret of a broken connection, or without one.
    pub(crate) async fn greet(&mut self, secret: &[u8]) -> Result<Welcome, Refused> {
        let hello = Hello {
            lowest_version: VERSION,
            highest_version: VERSION,
            window_frames: 64,
            window_bytes: 1 << 20,
            resume: secret.to_vec().into(),
            ..Hello::default()
        };
        self.write(0, Kind::Hello(hello), &[]).await;
        match self.read().await.0 {
            server_frame::Kind::Welcome(welcome) => Ok(welcome),
            server_frame::Kind::Refused(refused) => Err(refused),
            other => unexpected(&other),
        }
    }

    async fn write(&mut self, sequence: u64, kind: Kind, payload: &[u8]) {
        let frame = ClientFrame {
            sequence,
            received: self.received,
            kind: Some(kind),
            ..ClientFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&frame, payload.len(), &mut bytes).expect("small");
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).await.expect("sent");
    }

    /// Sends the next operation.
    pub(crate) async fn send(&mut self, kind: Kind, payload: &[u8]) {
        self.sent += 1;
        self.write(self.sent, kind, payload).await;
    }

    async fn read(&mut self) -> (server_frame::Kind, Bytes) {
        loop {
            if let Some((frame, payload)) = self.decoder.next_frame::<ServerFrame>().expect("frames make sense") {
                self.received = self.received.max(frame.sequence);
                match frame.kind {
                    Some(kind) => return (kind, payload),
                    None => continue,
                }
            }
            let read = tokio::time::timeout(WITHIN, self.stream.read_buf(self.decoder.buffer()));
            let read = read.await.expect("it answers").expect("it stands");
            assert!(read > 0, "the stream ended");
        }
    }

    /// Uploads a tensor of bytes.
    pub(crate) async fn put(&mut self, tensor: u64, bytes: &[u8]) {
        let upload = Upload {
            tensor,
            element_type: "u8".to_owned(),
            dimensions: vec![bytes.len() as i64],
            bytes: bytes.len() as u64,
        };
        self.send(Kind::Upload(upload), &[]).await;
        let part = Part {
            decoded_bytes: bytes.len() as u64,
            ..Part::default()
        };
        self.send(Kind::Part(part), bytes).await;
    }

    pub(crate) async fn download(&mut self, tensor: u64) -> Result<Vec<u8>, Failed> {
        self.send(Kind::Download(Download { tensor, request: 7 }), &[]).await;
        let mut missing = match self.read().await.0 {
            server_frame::Kind::Tensor(tensor) => tensor.bytes as usize,
            server_frame::Kind::Failed(failed) => return Err(failed),
            other => unexpected(&other),
        };
        let mut all = Vec::new();
        while missing > 0 {
            let (_, payload) = self.read().await;
            missing -= payload.len();
            all.extend_from_slice(&payload);
        }
        Ok(all)
    }

    /// Waits for all operations so far; the error is that of the first that failed.
    pub(crate) async fn synchronise(&mut self) -> Result<(), Failed> {
        self.send(Kind::Synchronise(Synchronise::new(8)), &[]).await;
        match self.read().await.0 {
            server_frame::Kind::Done(_) => Ok(()),
            server_frame::Kind::Failed(failed) => Err(failed),
            other => unexpected(&other),
        }
    }
}

/// Fails on an answer of another kind than expected.
fn unexpected(kind: &server_frame::Kind) -> ! {
    panic!("{kind:?}")
}
