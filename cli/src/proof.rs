//! The proof that everything is back: what the agents' ledgers say at the end.

use std::time::Duration;

use crate::{
    exit::Exit,
    output::{Table, amount},
    pool::{DeviceLedger, Pool, is_empty},
};

/// A released slice is free at once, a deleted owner's within a quarter second, a killed executor's within a second or so.
/// This is for a machine under load.
const RETURNED_WITHIN: Duration = Duration::from_secs(20);

/// Waits until nothing is lent; gives the text to be shown and how the program is to end.
pub async fn of(pool: &Pool) -> (String, Exit) {
    match pool.all_returned(RETURNED_WITHIN).await {
        Ok(ledger) if is_empty(&ledger) => (format!("Every lease is back:\n{}", table(&ledger)), Exit::Success),
        Ok(ledger) => (
            format!("NOT every lease is back after {} s:\n{}", RETURNED_WITHIN.as_secs(), table(&ledger)),
            Exit::StillLent,
        ),
        Err(reason) => (format!("whether every lease is back is not known: {reason}"), Exit::StillLent),
    }
}

/// What each device may lend and has lent.
pub fn table(ledger: &[DeviceLedger]) -> String {
    let mut table = Table::new(&["WORKER", "DEVICE", "CLASS", "VRAM", "LENT", "SLICES LENT"]);
    for device in ledger {
        let cells = [
            device.device.clone(),
            device.class.clone(),
            amount(device.allocatable_bytes),
            amount(device.leased_bytes),
            device.slices.to_string(),
        ];
        table.row(cells.into_iter(), &device.worker);
    }
    table.to_string()
}
