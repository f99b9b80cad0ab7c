//! Memory of the agent that all bursts take together: half of the budget for programs with their inputs, half for results that no
//! checkpoint covers yet.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use sahasra_wire::grants::{Refusal, RefusalCode};

use super::invalid;

/// Results that a burst may keep whatever others keep: each goes on.
const OWN_RESULTS: u64 = 1 << 20;

/// The budget and what of it is taken.
#[derive(Debug)]
pub(crate) struct BurstMemory {
    limit: u64,
    programs: AtomicU64,
    results: AtomicU64,
}

/// What one burst takes of it. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<BurstMemory>,
    program: u64,
    results: u64,
}

impl BurstMemory {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            programs: AtomicU64::new(0),
            results: AtomicU64::new(0),
        })
    }

    /// Takes memory for a burst's program.
    ///
    /// # Errors
    /// [`RefusalCode::Capacity`]: it may be there later.
    pub fn share(self: &Arc<Self>, program: u64) -> Result<Share, Refusal> {
        let half = self.limit / 2;
        let taken = self.programs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
            taken.checked_add(program).filter(|sum| *sum <= half)
        });
        match taken {
            Ok(_) => Ok(Share {
                memory: Arc::clone(self),
                program,
                results: 0,
            }),
            Err(taken) => Err(Refusal {
                code: RefusalCode::Capacity as i32,
                ..invalid(format!(
                    "the burst's program and inputs take {program} bytes of this agent's memory, other bursts' take {taken}, all may take {half}, half of \
                     the agent's --burst-memory: raise that, or wait until others end"
                ))
            }),
        }
    }
}

impl Share {
    /// So many bytes of results are kept now.
    pub fn keep(&mut self, results: u64) {
        self.memory.results.fetch_add(results, Ordering::SeqCst);
        self.memory
            .results
            .fetch_sub(std::mem::replace(&mut self.results, results), Ordering::SeqCst);
    }

    /// Whether further results may be kept.
    pub fn has_room(&self) -> bool {
        self.results < OWN_RESULTS || self.memory.results.load(Ordering::SeqCst) < self.memory.limit / 2
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.keep(0);
        self.memory.programs.fetch_sub(self.program, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_beyond_the_budget_are_refused_until_others_are_gone() {
        let memory = BurstMemory::new(200);
        let first = memory.share(60).unwrap();
        let refused = memory.share(41).unwrap_err();
        assert_eq!(refused.code(), RefusalCode::Capacity);
        for part in ["41 bytes", "60", "100", "--burst-memory"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
        let _second = memory.share(40).unwrap();
        drop(first);
        memory.share(60).unwrap();
        assert!(memory.share(u64::MAX).is_err());
    }

    #[test]
    fn results_of_all_count_together_and_each_burst_may_keep_a_few() {
        let memory = BurstMemory::new(8 * OWN_RESULTS);
        let mut shares: Vec<Share> = (0..2).map(|_| memory.share(0).unwrap()).collect();
        shares[0].keep(4 * OWN_RESULTS);
        assert!(!shares[0].has_room());
        assert!(shares[1].has_room(), "it has none of its own");
        shares[1].keep(OWN_RESULTS);
        assert!(!shares[1].has_room());
        shares[0].keep(OWN_RESULTS);
        assert!(shares.iter().all(Share::has_room));
        shares[0].keep(3 * OWN_RESULTS);
        assert!(!shares[1].has_room());
        shares.remove(0);
        assert!(shares[0].has_room(), "what is dropped is given back");
    }
}
