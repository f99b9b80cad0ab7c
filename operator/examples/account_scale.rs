//! What the account of a burst costs when its chunks end in the worst order: every second one fails, and each is told by
//! itself. Prints time, chunks a second and bytes of a checkpoint's sets for growing bursts.
//!
//! `cargo run --release -p sahasra-operator --example account_scale -- 10000000`

use std::time::Instant;

use sahasra_operator::burst::account::{Account, Batch, DeviceKey, RetryPolicy};
use sahasra_wire::burst::FailureCode;

fn main() {
    let largest = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    let mut total = 10_000;
    while total <= largest {
        run(total);
        total *= 10;
    }
}

fn run(total: u64) {
    let policy = RetryPolicy {
        max_retries: 3,
        initial_backoff: 1_000,
        max_backoff: 16_000,
    };
    let devices: Vec<DeviceKey> = (0..64)
        .map(|number| DeviceKey {
            worker: format!("worker-{}", number / 8),
            device: format!("gpu{}", number % 8),
        })
        .collect();
    let began = Instant::now();
    let mut account = Account::new(total, policy, 0);
    while account.ready(0) > 0 {
        for device in &devices {
            for batch in account.take(device, 4_096, 0) {
                for index in batch.first..batch.first + batch.count {
                    if index % 2 == 0 {
                        account.succeeded(index, 1);
                    } else {
                        let one = Batch {
                            first: index,
                            count: 1,
                            ..batch
                        };
                        account.failed(device, one, FailureCode::Trap, "trap", 0);
                    }
                }
                account.running_on(device);
                account.counts();
            }
        }
    }
    let elapsed = began.elapsed();
    let began = Instant::now();
    let bytes = account.completed().encode().len() + account.failed_set().encode().len();
    println!(
        "{total} chunks: {elapsed:.2?}, {:.0} chunks/s; sets of {bytes} bytes encoded in {:.2?}",
        total as f64 / elapsed.as_secs_f64(),
        began.elapsed()
    );
}
