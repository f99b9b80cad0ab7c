//! Namespaces that take turns on a device.

use super::played::{indices, range, returned, settle, theatre};
use crate::executor::protocol::to_executor;
use crate::executors::DeviceKind;

#[tokio::test(start_paused = true)]
async fn what_was_withdrawn_before_an_executor_makes_room_comes_back() {
    let theatre = theatre(DeviceKind::Cpu, 1);
    let (run, mut events) = theatre.run("first", &[range(0, 10)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 0);
    let _other = theatre.run("other", &[range(0, 1)]);
    run.withdraw();
    while executor.hear().await != to_executor::Kind::Withdraw(id) {}
    // It answers after it was told to make room.
    executor.recalled(id).await;
    executor.give_back(id, &[range(1, 9)]);
    settle().await;
    assert_eq!(returned(&mut events), indices(&[range(1, 9)]));
    assert_eq!(run.outstanding(), 1, "chunk 0 runs");
}
