//! Accounting of the chunks of a lost process. The status page says which chunks were in flight. The others cost no attempt, unless
//! process after process ends with nothing in flight: then an attempt is charged, so that the retries end.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use sahasra_executor_protocol::burst::status_page::{Activity, Slot, StatusPage};
use sahasra_ledger::SHUTDOWN_MESSAGE;
use sahasra_wire::burst::FailureCode;

use super::entry::{Cause, Entry};
use super::outstanding::Stage;
use super::run::Event;

/// Number of consecutive processes that may end with nothing in flight before their chunks are charged an attempt.
const FREE_LOSSES: u32 = 2;

/// A process that is gone.
pub(super) struct Loss<'a> {
    pub(super) status_page: &'a StatusPage,
    /// Current time by the status page's clock.
    pub(super) now: Duration,
    pub(super) cause: Option<&'a Cause>,
    pub(super) how: &'a str,
    /// The process had opened its device.
    pub(super) ready: bool,
    /// Number of consecutive processes, this one included, that ended no chunk.
    pub(super) fruitless: u32,
    pub(super) timeouts: &'a HashMap<u64, Duration>,
    pub(super) grace: Duration,
}

pub(super) fn describe(status: Option<ExitStatus>, cause: Option<&Cause>, unavailable: Option<&str>, poisoned: bool) -> String {
    match (cause, unavailable) {
        (Some(Cause::Killed { .. }), _) => {
            return "its slice was revoked while it ran, and its executor was killed".to_owned();
        }
        (Some(Cause::Hung), _) => return "executor hung and was killed".to_owned(),
        (Some(Cause::NotReady), _) => return "executor did not become ready".to_owned(),
        (Some(Cause::Nonsense(what)), _) => return format!("executor sent {what} and was killed"),
        (Some(Cause::ShutDown), _) => return SHUTDOWN_MESSAGE.to_owned(),
        (None, Some(reason)) => return format!("failed to open the device: {reason}"),
        (None, None) if poisoned => return "executor's context was poisoned by a kernel".to_owned(),
        (None, None) => {}
    }
    match status.and_then(|status| status.signal()) {
        Some(signal) => format!("executor was killed by signal {signal}"),
        None => format!(
            "executor exited with status {}",
            status.and_then(|status| status.code()).unwrap_or(-1)
        ),
    }
}

/// Settles every chunk of every run, or keeps it as a suspect.
pub(super) fn account(runs: &mut BTreeMap<u64, Entry>, loss: Loss<'_>) {
    let poisoned = loss.status_page.is_poisoned();
    let innocent = matches!(loss.cause, Some(Cause::Killed { .. } | Cause::ShutDown));
    let mut charged = false;
    let overran = |slot: &Slot| {
        let Activity::Running { run, .. } = slot.activity else {
            return false;
        };
        let elapsed = loss.now.saturating_sub(slot.since);
        let timeout = loss.timeouts.get(&run).copied().unwrap_or_default();
        slot.timed_out || (loss.cause == Some(&Cause::Hung) && elapsed > timeout + loss.grace)
    };
    // If the run or the chunk for which the process was ended is known, other running chunks are not charged.
    let overrun = loss.status_page.slots().any(|slot| overran(&slot));
    for slot in loss.status_page.slots() {
        match slot.activity {
            Activity::Preparing { run } if !innocent => {
                if let Some(entry) = runs.get_mut(&run) {
                    charged = true;
                    let message = format!("{} while it prepared the program", loss.how);
                    entry.fail_all(FailureCode::ExecutorLost, &message);
                }
            }
            Activity::Preparing { .. } => {}
            Activity::Running { run, index } => {
                let beside = match loss.cause {
                    Some(Cause::Killed { run: killed, .. }) => *killed != run && !slot.timed_out,
                    _ => overrun && !overran(&slot),
                };
                if beside {
                    continue;
                }
                let Some(entry) = runs.get_mut(&run) else { continue };
                let chunk = entry.shared.chunks.get(entry.shared.device, index);
                let Some((range, stage)) = chunk.filter(|(_, stage)| Stage::HANDED_OVER.contains(stage)) else {
                    continue;
                };
                charged = true;
                let (code, message) = if overran(&slot) {
                    let timeout = loss.timeouts.get(&run).copied().unwrap_or_default();
                    let message = format!("ran longer than {} ms and could not be stopped in its process", timeout.as_millis());
                    (FailureCode::ChunkTimeout, message)
                } else if poisoned && stage != Stage::Alone {
                    entry.shared.advance(range, &[stage], Stage::Queued);
                    entry.suspects.push(range);
                    continue;
                } else {
                    let code = match loss.cause {
                        Some(Cause::Killed { run: killed, code }) if *killed == run => *code,
                        Some(Cause::ShutDown) => FailureCode::ShuttingDown,
                        _ => FailureCode::ExecutorLost,
                    };
                    (code, loss.how.to_owned())
                };
                entry.shared.settle(&[stage], Event::Failed { range, code, message });
            }
        }
    }
    for entry in runs.values_mut() {
        let endless = !charged && !innocent && !poisoned && loss.fruitless > FREE_LOSSES;
        if (!loss.ready && !innocent) || endless {
            entry.fail_all(FailureCode::ExecutorLost, loss.how);
        } else {
            entry.return_all_but_suspects();
        }
        entry.revoked = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::outstanding::OutstandingChunks;
    use super::super::program::ProgramSpec;
    use super::super::run::{Events, Run, Shared};
    use super::*;
    use sahasra_executor_protocol::clock::monotonic_now;
    use sahasra_ranges::AttemptRange;
    use sahasra_wire::burst::Program;
    use sha2::{Digest, Sha256};
    use tokio::sync::mpsc;

    const RUN: u64 = 7;

    /// Returns a run with ten chunks handed over.
    fn handed_over() -> (BTreeMap<u64, Entry>, Run, Events) {
        let program = Program {
            digest: Sha256::digest(b"").to_vec().into(),
            grid: vec![1; 3],
            block: vec![1; 3],
            chunk_timeout_milliseconds: 1000,
            ..Program::default()
        };
        let (commands, _commands) = mpsc::unbounded_channel();
        let chunks = Arc::new(OutstandingChunks::new(100));
        let shared = Arc::new(Shared::new(RUN, 0, ProgramSpec::new(program).unwrap(), chunks, 1 << 20, commands));
        let (run, events) = Run::open(Arc::clone(&shared));
        let range = AttemptRange {
            first: 0,
            count: 10,
            attempt: 2,
        };
        run.submit(vec![range]).unwrap();
        shared.advance(range, &[Stage::Queued], Stage::Running).unwrap();
        (BTreeMap::from([(RUN, Entry::new(shared))]), run, events)
    }

    fn loss<'a>(status_page: &'a StatusPage, cause: Option<&'a Cause>, timeouts: &'a HashMap<u64, Duration>) -> Loss<'a> {
        Loss {
            status_page,
            now: monotonic_now(),
            cause,
            how: "executor was killed by signal 9",
            ready: true,
            fruitless: 1,
            timeouts,
            grace: Duration::from_secs(1),
        }
    }

    /// Returns the code of each index; `None` for a returned chunk.
    fn outcomes(events: &mut Events) -> BTreeMap<u64, Option<FailureCode>> {
        let mut outcomes = BTreeMap::new();
        while let Some(event) = events.try_next() {
            let (range, code) = match event {
                Event::Failed { range, code, .. } => (range, Some(code)),
                Event::Returned { range } => (range, None),
                other => panic!("{other:?}"),
            };
            assert_eq!(range.attempt, 2);
            for index in range.first..range.first + range.count {
                assert_eq!(outcomes.insert(index, code), None, "{index} came twice");
            }
        }
        outcomes
    }

    #[test]
    fn only_what_was_in_flight_is_charged() {
        let (mut runs, _run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN, index: 4 });
        status_page.begin(1, Activity::Running { run: RUN, index: 5 });
        // A chunk of a run that was closed meanwhile, and a chunk that came back already.
        status_page.begin(2, Activity::Running { run: 99, index: 1 });
        status_page.begin(3, Activity::Running { run: RUN, index: 77 });
        account(&mut runs, loss(&status_page, None, &HashMap::new()));
        let outcomes = outcomes(&mut events);
        assert_eq!(outcomes.len(), 10);
        assert_eq!(outcomes[&4], Some(FailureCode::ExecutorLost));
        assert_eq!(outcomes[&5], Some(FailureCode::ExecutorLost));
        assert_eq!(outcomes.values().filter(|code| code.is_none()).count(), 8);
    }

    #[test]
    fn a_chunk_that_ran_too_long_is_charged_and_those_beside_it_are_not() {
        let (mut runs, _run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN, index: 4 });
        status_page.begin(1, Activity::Running { run: RUN, index: 5 });
        status_page.time_out(1);
        account(&mut runs, loss(&status_page, None, &HashMap::new()));
        let outcomes = outcomes(&mut events);
        assert_eq!(outcomes[&5], Some(FailureCode::ChunkTimeout));
        assert_eq!(outcomes.values().filter(|code| code.is_none()).count(), 9);
    }

    #[test]
    fn suspects_of_a_poisoned_context_are_kept_once() {
        let (mut runs, run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN, index: 4 });
        status_page.begin(1, Activity::Running { run: RUN, index: 5 });
        status_page.poison();
        account(&mut runs, loss(&status_page, None, &HashMap::new()));
        assert_eq!(outcomes(&mut events).values().filter(|code| code.is_none()).count(), 8);
        assert_eq!(run.outstanding(), 2, "the suspects run again without costing an attempt");
        let entry = runs.get_mut(&RUN).unwrap();
        assert_eq!(entry.suspects.iter().map(|range| range.first).collect::<Vec<_>>(), [4, 5]);

        // The suspects run alone, and the context is poisoned again without an indication of the cause.
        for suspect in entry.suspects.drain(..) {
            entry.shared.advance(suspect, &[Stage::Queued], Stage::Alone).unwrap();
        }
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN, index: 4 });
        status_page.poison();
        account(&mut runs, loss(&status_page, None, &HashMap::new()));
        let outcomes = outcomes(&mut events);
        assert_eq!(outcomes, BTreeMap::from([(4, Some(FailureCode::ExecutorLost)), (5, None)]));
        assert_eq!(run.outstanding(), 0);
    }

    #[test]
    fn a_crash_while_preparing_is_charged_to_the_program() {
        let (mut runs, _run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Preparing { run: RUN });
        account(&mut runs, loss(&status_page, None, &HashMap::new()));
        assert!(outcomes(&mut events).values().all(|code| *code == Some(FailureCode::ExecutorLost)));
        // The program is not charged when the process was ended for another reason.
        let (mut runs, _run, mut events) = handed_over();
        let cause = Cause::Killed {
            run: 1,
            code: FailureCode::GrantExpired,
        };
        account(&mut runs, loss(&status_page, Some(&cause), &HashMap::new()));
        assert!(outcomes(&mut events).values().all(Option::is_none));
    }

    #[test]
    fn what_ran_beside_a_run_whose_slice_was_taken_back_costs_no_attempt() {
        let (mut runs, _run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN + 1, index: 0 });
        status_page.begin(1, Activity::Running { run: RUN, index: 4 });
        let cause = Cause::Killed {
            run: RUN + 1,
            code: FailureCode::GrantExpired,
        };
        account(&mut runs, loss(&status_page, Some(&cause), &HashMap::new()));
        assert!(outcomes(&mut events).values().all(Option::is_none));
    }

    #[test]
    fn processes_that_keep_ending_with_nothing_in_flight_are_charged_in_the_end() {
        let (status_page, _file) = StatusPage::create().unwrap();
        let timeouts = HashMap::new();
        for fruitless in 1..=FREE_LOSSES + 1 {
            let (mut runs, _run, mut events) = handed_over();
            let lost = Loss {
                fruitless,
                ..loss(&status_page, None, &timeouts)
            };
            account(&mut runs, lost);
            let charged = outcomes(&mut events).values().all(Option::is_some);
            assert_eq!(charged, fruitless > FREE_LOSSES);
        }
    }

    #[test]
    fn a_hung_chunk_is_told_from_those_that_ran_beside_it() {
        let (mut runs, _run, mut events) = handed_over();
        let (status_page, _file) = StatusPage::create().unwrap();
        status_page.begin(0, Activity::Running { run: RUN, index: 4 });
        let timeouts = HashMap::from([(RUN, Duration::ZERO)]);
        let lost = Loss {
            grace: Duration::ZERO,
            ..loss(&status_page, Some(&Cause::Hung), &timeouts)
        };
        account(&mut runs, lost);
        assert_eq!(outcomes(&mut events)[&4], Some(FailureCode::ChunkTimeout));
        let (mut runs, _run, mut events) = handed_over();
        let timeouts = HashMap::from([(RUN, Duration::from_secs(60))]);
        account(&mut runs, loss(&status_page, Some(&Cause::Hung), &timeouts));
        assert_eq!(outcomes(&mut events)[&4], Some(FailureCode::ExecutorLost));
    }

    #[test]
    fn a_chunk_may_run_for_a_day_and_no_longer() {
        const DAY: Duration = Duration::from_hours(24);
        let timeouts = HashMap::from([(RUN, DAY)]);
        for (beyond, code) in [(0, FailureCode::ExecutorLost), (1, FailureCode::ChunkTimeout)] {
            let (mut runs, _run, mut events) = handed_over();
            let (status_page, _file) = StatusPage::create().unwrap();
            let began = Duration::from_secs(1);
            status_page.begin_at(0, Activity::Running { run: RUN, index: 4 }, began);
            let lost = Loss {
                now: began + DAY + Duration::from_nanos(beyond),
                grace: Duration::ZERO,
                ..loss(&status_page, Some(&Cause::Hung), &timeouts)
            };
            account(&mut runs, lost);
            assert_eq!(outcomes(&mut events)[&4], Some(code));
        }
    }
}
