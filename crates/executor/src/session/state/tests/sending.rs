//! Deletion of tensors while their bytes are being sent.

use super::*;

#[test]
fn memory_of_what_is_gone_counts_until_it_is_sent() {
    let mut bench = Bench::new();
    bench.state.sending_timeout = Duration::ZERO;
    bench.upload(1, &[1; 600]);
    bench.upload(2, &[2; 200]);
    bench.download(1);
    bench.download(2);
    // The tensors' bytes stay in use because nobody has sent these answers yet.
    let (unsent, _) = bench.state.take_answers();
    bench.delete(&[1]);
    assert_eq!(bench.state.stored(), (1, 200));
    bench.upload(3, &[3; 300]);
    bench.synchronise();
    assert_eq!(bench.answers().len(), 1);
    bench.operation(client_frame::Kind::Load(Load { request: 1 }), b"").unwrap();
    assert_eq!(bench.answers(), ["1 tensors of 800"]);
    drop(unsent);
    bench.operation(client_frame::Kind::Load(Load { request: 1 }), b"").unwrap();
    assert_eq!(bench.answers(), ["1 tensors of 200"]);
    bench.upload(3, &[3; 300]);
    bench.synchronise();
    assert_eq!(bench.answers(), ["done 99"]);
}

#[test]
fn a_tensor_that_was_asked_for_twice_and_donated_counts_once_until_it_is_sent() {
    let mut bench = Bench::new();
    bench.compile(1, "sum 1 0", 0);
    bench.upload(1, &[1; 400]);
    bench.download(1);
    bench.download(1);
    let (unsent, _) = bench.state.take_answers();
    bench.execute(1, &[1], &[2], &[0]);
    bench.operation(client_frame::Kind::Load(Load { request: 1 }), b"").unwrap();
    assert_eq!(bench.answers(), ["1 tensors of 408"]);
    drop(unsent);
    assert_eq!((bench.state.used(), bench.state.stored()), (8, (1, 8)));
}

#[test]
fn memory_of_what_is_being_sent_is_waited_for() {
    let mut bench = Bench::new();
    bench.upload(1, &[1; 600]);
    bench.download(1);
    bench.delete(&[1]);
    let (answers, _) = bench.state.take_answers();
    let payloads: Vec<Bytes> = answers.into_iter().map(|answer| answer.payload).collect();
    assert_eq!(bench.state.used(), 600);
    bench.state.sending_timeout = Duration::from_secs(600);
    // Acts as a connection that sends the answers at some time.
    let connection = std::thread::spawn(move || drop(payloads));
    bench.upload(2, &[2; 600]);
    connection.join().unwrap();
    bench.synchronise();
    assert_eq!((bench.answers(), bench.state.used()), (vec!["done 99".to_owned()], 600));
}
