//! Limits of streams: for the gateway, and for each caller.
//!
//! A caller may hold as many as are free: alone half of all, beside another who holds its share a third, and so on. A new caller finds
//! room, however much those before have taken.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::refusal::Refusal;

/// The slots of a gateway. Cheap to clone: clones are handles of the same.
#[derive(Clone, Debug)]
pub struct Slots {
    limit: usize,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

impl Slots {
    /// Slots for `limit` streams.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Arc::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of them, until it is dropped. Without a caller, where there is one identity alone, all of them may be had.
    ///
    /// # Errors
    /// When all are taken, or the caller holds its share.
    pub fn take(&self, caller: Option<Arc<str>>) -> Result<Slot, Refusal> {
        let mut held = self.held();
        let free = self.limit.saturating_sub(held.all);
        if free == 0 {
            return Err(Refusal::Busy { what: "streams", after: 5 });
        }
        if let Some(caller) = &caller {
            let own = held.by_caller.get(caller).copied().unwrap_or_default();
            if own >= free {
                let limit = self.limit;
                return Err(Refusal::Share { own, limit });
            }
            held.by_caller.insert(caller.clone(), own + 1);
        }
        held.all += 1;
        drop(held);
        Ok(Slot {
            slots: self.clone(),
            caller,
        })
    }
}

/// Room for one stream.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    caller: Option<Arc<str>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.slots.held();
        held.all -= 1;
        if let Some(caller) = &self.caller
            && let Some(own) = held.by_caller.get_mut(caller)
        {
            *own -= 1;
            if *own == 0 {
                held.by_caller.remove(caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as one gets.
    fn all_of(slots: &Slots, caller: &str) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(Some(caller.into())).ok()).collect()
    }

    #[test]
    fn a_new_caller_finds_room() {
        let slots = Slots::new(256);
        let first = all_of(&slots, "first");
        assert_eq!(first.len(), 128);
        let second = all_of(&slots, "second");
        assert_eq!(second.len(), 64);
        assert!(matches!(
            slots.take(Some("first".into())),
            Err(Refusal::Share { own: 128, limit: 256 })
        ));
        let third = all_of(&slots, "third");
        assert_eq!(third.len(), 32);
        drop((first, second));
        assert_eq!(
            all_of(&slots, "third").len(),
            96,
            "with the 32 from before: half of what the others leave"
        );
        drop(third);
        let held = slots.held();
        assert_eq!((held.all, held.by_caller.len()), (0, 0));
    }

    #[test]
    fn one_identity_has_all() {
        let slots = Slots::new(3);
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take(None).ok()).collect();
        assert_eq!(held.len(), 3);
        assert!(matches!(slots.take(None), Err(Refusal::Busy { .. })));
        drop(held);
        assert_eq!(all_of(&Slots::new(1), "alone").len(), 1);
    }
}
