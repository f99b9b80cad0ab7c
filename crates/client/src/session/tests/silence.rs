//! Tests with gateways that send nothing.

use std::sync::atomic::AtomicU64;

use super::*;

#[test]
fn a_stalled_connection_is_replaced_although_no_side_closes_it() {
    let options = Options {
        silence: Duration::from_millis(400),
        ..Options::default()
    };
    goes_through_with(
        options,
        true,
        vec![Connection::Stalls(700), Connection::Stalls(300), Connection::Stands],
    );
}

#[test]
fn a_caller_on_a_stalled_connection_gets_an_error_after_the_grace_period() {
    let worker = worker(true, vec![Connection::Stalls(700)]);
    let options = Options {
        silence: Duration::from_millis(400),
        grace: Duration::from_millis(100),
        ..Options::default()
    };
    let session = connect(target(&worker, true), options).unwrap();
    let tensor = session.put(vec![0; 2000], "u8", &[2000]).unwrap();
    let told = tensor.download().wait_for(Duration::from_secs(60)).expect("an answer");
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    session.close().wait_for(Duration::from_secs(60)).expect("an answer").unwrap_err();
    worker.thread.join().unwrap();
}

#[test]
fn a_gateway_is_pinged_while_operations_are_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pings = Arc::new(AtomicU64::new(0));
    let counted = pings.clone();
    let gateway = thread::spawn(move || {
        let mut stream = tungstenite::accept_hdr(listener.accept().unwrap().0, choose).unwrap();
        let mut decoder = frame::Decoder::default();
        let mut executor = Executor::new(Window { frames: 64, bytes: 4096 });
        let mut greeted = false;
        // After the greeting, the gateway sends only pongs.
        loop {
            match stream.read() {
                Ok(Message::Binary(bytes)) if !greeted => {
                    decoder.buffer().extend_from_slice(&bytes);
                    if let Some((hello, _)) = decoder.next_frame::<ClientFrame>().unwrap() {
                        let mut out = BytesMut::new();
                        frame::encode(&executor.welcome(&hello), 0, &mut out).unwrap();
                        Carrier::send(&mut stream, &out);
                        greeted = true;
                    }
                }
                Ok(Message::Ping(_)) if counted.fetch_add(1, Ordering::Relaxed) == 2 => return,
                Ok(Message::Close(_)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    });
    let mut target = Target::through(&Gateway::new(&url, Token::text(TOKEN), None).unwrap(), "default", "mine").unwrap();
    target.gateway = None;
    let options = Options {
        silence: Duration::from_secs(3),
        grace: Duration::ZERO,
        ..Options::default()
    };
    let session = connect(target, options).unwrap();
    while pings.load(Ordering::Relaxed) < 3 && session.allocate("u8", &[1]).is_ok() {
        thread::sleep(Duration::from_millis(20));
    }
    drop(session);
    gateway.join().unwrap();
    assert_eq!(pings.load(Ordering::Relaxed), 3);
}
