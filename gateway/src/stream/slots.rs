//! Limits of streams: for the gateway, and for each caller.
//!
//! A caller may hold as many as are free: alone half of all, beside another who holds its share a third, and so on. A new caller finds
//! room, however much those before have taken.
//!
//! The share limits new streams only. A stream that is resumed counts for its caller, and is refused only when all slots are taken: after a
//! restart of the gateway the order in which clients come back must not decide which sessions are lost.

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

    /// Takes a slot for a new stream; dropping it frees the slot. Without a caller (a gateway with a single identity) there is no share.
    ///
    /// # Errors
    /// [`Refusal::Busy`] when all slots are taken, [`Refusal::Share`] when the caller holds its share.
    pub fn take(&self, caller: Option<Arc<str>>) -> Result<Slot, Refusal> {
        self.slot(caller, true)
    }

    /// Takes a slot for a stream that its worker resumed, whatever the caller holds.
    ///
    /// # Errors
    /// [`Refusal::Busy`] when all slots are taken.
    pub fn take_resumed(&self, caller: Option<Arc<str>>) -> Result<Slot, Refusal> {
        self.slot(caller, false)
    }

    fn slot(&self, caller: Option<Arc<str>>, is_new: bool) -> Result<Slot, Refusal> {
        let mut held = self.held();
        let free = self.limit.saturating_sub(held.all);
        if free == 0 {
            return Err(Refusal::Busy { what: "streams", after: 5 });
        }
        if let Some(caller) = &caller {
            let own = held.by_caller.get(caller).copied().unwrap_or_default();
            if is_new && own >= free {
                let limit = self.limit;
                return Err(Refusal::Share { own, limit, free });
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
            Err(Refusal::Share {
                own: 128,
                limit: 256,
                free: 64
            })
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
    fn streams_that_are_resumed_come_back_in_any_order() {
        let shares = [("first", 128), ("second", 64), ("third", 32)];
        for order in [[0, 1, 2], [1, 2, 0], [2, 1, 0]] {
            let slots = Slots::new(256);
            let held: Vec<Slot> = (order.into_iter().map(|place| shares[place]))
                .flat_map(|(caller, count)| (0..count).map(move |_| caller))
                .map(|caller| slots.take_resumed(Some(caller.into())).unwrap())
                .collect();
            assert!(matches!(slots.take(Some("first".into())), Err(Refusal::Share { own: 128, .. })));
            assert_eq!((held.len(), all_of(&slots, "fourth").len()), (224, 16), "a new caller finds room");
        }
        let slots = Slots::new(1);
        let _held = slots.take_resumed(None).unwrap();
        assert!(matches!(slots.take_resumed(None), Err(Refusal::Busy { .. })));
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
