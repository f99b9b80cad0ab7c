//! Leak check at the end of a command: the agents' ledgers must be empty.

use std::time::Duration;

use sahasra_names::Bytes;

use crate::{
    exit::Exit,
    output::Table,
    pool::{DeviceLedger, Pool, is_empty},
};

/// Timeout of the leak check, for a machine under load. A released slice is free at once, that of a deleted owner within a quarter of a
/// second, and that of a killed executor within about a second.
const RETURNED_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn of(pool: &Pool) -> (String, Exit) {
    match pool.all_returned(RETURNED_WITHIN).await {
        Ok(ledger) if is_empty(&ledger) => (format!("All slices are released:\n{}", table(&ledger)), Exit::Success),
        Ok(ledger) => (
            format!(
                "NOT all slices are released after {} s:\n{}",
                RETURNED_WITHIN.as_secs(),
                table(&ledger)
            ),
            Exit::StillLent,
        ),
        Err(reason) => (
            format!("failed to check whether all slices are released: {reason}"),
            Exit::StillLent,
        ),
    }
}

pub(crate) fn table(ledger: &[DeviceLedger]) -> String {
    let mut table = Table::new(&["WORKER", "DEVICE", "CLASS", "VRAM", "ALLOCATED", "SLICES"]);
    for device in ledger {
        table.row([
            device.worker.clone(),
            device.device.clone(),
            device.class.clone(),
            Bytes(device.allocatable_bytes).to_string(),
            Bytes(device.leased_bytes).to_string(),
            device.slices.to_string(),
        ]);
    }
    table.to_string()
}
