//! Which answer reports which failure.

use super::*;

#[test]
fn what_fails_is_told_once_and_spreads() {
    let mut bench = Bench::new();
    bench.compile(1, "sum 1 0", 0);
    bench.compile(2, "fail 1 0", 0);
    bench.compile(3, "reject 1 0", 0);
    bench.upload(1, &[1; 4]);
    for (program, how) in [(2, "ExecutionFailed"), (3, "InvalidArgument")] {
        let culprit = bench.execute(program, &[1], &[2], &[]);
        bench.execute(1, &[2], &[3], &[]);
        bench.execute(program, &[1], &[4], &[]);
        bench.synchronise();
        bench.synchronise();
        bench.download(3);
        bench.synchronise();
        let told = format!("{how} {culprit} execute p{program}");
        assert_eq!(bench.answers(), [told.clone(), "done 99".to_owned(), told, "done 99".to_owned()]);
    }
    bench.download(1);
    assert_eq!(bench.answers(), ["tensor 1 of 4", "1"]);
}

#[test]
fn a_failure_that_no_answer_has_told_is_told_at_the_end_though_an_earlier_one_was() {
    for closes in [true, false] {
        let mut bench = Bench::new();
        bench.compile(1, "fail 1 0", 0);
        bench.upload(1, &[1; 4]);
        let first = bench.execute(1, &[1], &[2], &[]);
        let second = bench.execute(1, &[1], &[3], &[]);
        bench.download(2);
        let told = |sequence| format!("ExecutionFailed {sequence} execute p1");
        assert_eq!(bench.answers(), [told(first)]);
        if closes {
            bench.operation(client_frame::Kind::Close(Close { request: 3 }), b"").unwrap();
            assert_eq!(bench.answers(), [told(second)]);
            continue;
        }
        bench.finish();
        bench.finish();
        bench.execute(1, &[1], &[4], &[]);
        bench.download(4);
        bench.finish();
        let third = bench.execute(1, &[1], &[4], &[]);
        bench.download(4);
        bench.synchronise();
        let (done, again) = ("done 98".to_owned(), told(third));
        assert_eq!(
            bench.answers(),
            [told(second), done.clone(), told(third - 3), done, again.clone(), again]
        );
    }
}

#[test]
fn a_failure_behind_a_synchronisation_is_told_at_the_next() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.compile(1, "fail 1 0", 0);
    bench.upload(1, &[1; 4]);
    let first = bench.execute(1, &[1], &[2], &[]);
    bench.synchronise();
    let second = bench.execute(1, &[1], &[3], &[]);
    let unknown = bench.execute(1, &[77], &[4], &[]);
    assert!(second < unknown);
    bench.synchronise();
    assert!(bench.answers().is_empty());
    while release(&bench.controls) {}
    bench.state.settle();
    let told = |sequence| format!("ExecutionFailed {sequence} execute p1");
    assert_eq!(bench.answers(), [told(first), told(second)]);
}
