//! Limits on concurrent streams, for the gateway and for each caller.
//!
//! A caller gets a new stream while it holds fewer slots than are free: one caller can hold half of all slots, two callers a third each, and
//! so on. So a new caller always finds a free slot, however many slots earlier callers hold.
//!
//! The share limits new streams only. A resumed stream counts for its caller, and is rejected only when all slots are taken: after a
//! restart of the gateway the order in which clients reconnect must not decide which sessions are lost. A session has at most one such
//! stream at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{refusal::Refusal, route::Object};

/// The slots of a gateway. Clones are cheap handles to the same slots.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    limit: usize,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_caller: HashMap<Arc<str>, usize>,
    /// Sessions with a resumed stream that was exempt from its caller's share.
    resumed: HashSet<Object>,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Arc::default(),
        }
    }

    /// Takes a slot for a stream; dropping the slot frees it. The share does not apply without a caller, in a gateway with a single identity.
    /// Nor does it apply to a stream of a session that its worker has `resumed`, while the session has no other such stream.
    /// Fails with [`Refusal::Busy`] when all slots are taken, and with [`Refusal::Share`] when the caller holds its share.
    pub(super) fn take(&self, caller: Option<Arc<str>>, resumed: Option<&Object>) -> Result<Slot, Refusal> {
        let mut held = self.held.lock();
        let resumed = resumed.filter(|session| !held.resumed.contains(session)).cloned();
        let free = self.limit.saturating_sub(held.all);
        if free == 0 {
            return Err(Refusal::Busy { what: "streams", after: 5 });
        }
        if let Some(caller) = &caller {
            let own = held.by_caller.get(caller).copied().unwrap_or_default();
            if resumed.is_none() && own >= free {
                let limit = self.limit;
                return Err(Refusal::Share { own, limit, free });
            }
            held.by_caller.insert(caller.clone(), own + 1);
        }
        held.all += 1;
        held.resumed.extend(resumed.clone());
        drop(held);
        Ok(Slot {
            slots: self.clone(),
            caller,
            resumed,
        })
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    caller: Option<Arc<str>>,
    /// The session, if the stream was exempt from its caller's share.
    resumed: Option<Object>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.slots.held.lock();
        held.all -= 1;
        if let Some(session) = &self.resumed {
            held.resumed.remove(session);
        }
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
    use clap::Parser;

    use super::*;
    use crate::{args::Args, route::Kind};

    fn session(name: &str) -> Object {
        Object {
            kind: Kind::Session,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }
    }

    /// Takes slots until the caller gets no more.
    fn all_of(slots: &Slots, caller: &str) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(Some(caller.into()), None).ok()).collect()
    }

    #[test]
    fn a_new_caller_gets_a_slot() {
        let slots = Slots::new(256);
        let first = all_of(&slots, "first");
        assert_eq!(first.len(), 128);
        let second = all_of(&slots, "second");
        assert_eq!(second.len(), 64);
        assert!(matches!(
            slots.take(Some("first".into()), None),
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
        let held = slots.held.lock();
        assert_eq!((held.all, held.by_caller.len()), (0, 0));
    }

    #[test]
    fn streams_are_resumed_in_any_order() {
        let shares = [("first", 128), ("second", 64), ("third", 32)];
        for order in [[0, 1, 2], [1, 2, 0], [2, 1, 0]] {
            let slots = Slots::new(256);
            let held: Vec<Slot> = (order.into_iter().map(|place| shares[place]))
                .flat_map(|(caller, count)| (0..count).map(move |_| caller))
                .enumerate()
                .map(|(place, caller)| {
                    let session = session(&format!("session-{place}"));
                    slots.take(Some(caller.into()), Some(&session)).unwrap()
                })
                .collect();
            assert!(matches!(
                slots.take(Some("first".into()), None),
                Err(Refusal::Share { own: 128, .. })
            ));
            assert_eq!((held.len(), all_of(&slots, "fourth").len()), (224, 16), "a new caller finds room");
        }
        let slots = Slots::new(1);
        let _held = slots.take(None, Some(&session("one"))).unwrap();
        assert!(matches!(slots.take(None, Some(&session("other"))), Err(Refusal::Busy { .. })));
    }

    #[test]
    fn a_repeatedly_resumed_session_does_not_exceed_its_callers_share() {
        let slots = Slots::new(8);
        let again = || slots.take(Some("first".into()), Some(&session("same")));
        let mut held: Vec<Slot> = std::iter::from_fn(|| again().ok()).collect();
        assert_eq!(held.len(), 4);
        assert_eq!(all_of(&slots, "second").len(), 2, "a new caller finds room");
        // The dropped slot is that of the stream that was exempt from the share, so the next resumed stream is exempt again.
        let others = all_of(&slots, "second");
        drop(held.remove(0));
        assert!(again().is_ok());
        drop((held, others));
        assert!(slots.held.lock().resumed.is_empty());
    }

    #[test]
    fn a_single_identity_gets_all_slots() {
        let slots = Slots::new(3);
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take(None, None).ok()).collect();
        assert_eq!(held.len(), 3);
        assert!(matches!(slots.take(None, None), Err(Refusal::Busy { .. })));
        drop(held);
        assert_eq!(all_of(&Slots::new(1), "alone").len(), 1);
    }

    #[test]
    fn the_default_limit_is_256_streams() {
        let args = Args::try_parse_from(["sahasra-gateway"]).unwrap();
        let slots = Slots::new(args.max_streams);
        let mut held: Vec<Slot> = (0..256).map(|_| slots.take(None, None).unwrap()).collect();
        assert!(matches!(slots.take(None, None), Err(Refusal::Busy { what: "streams", .. })));
        held.pop();
        assert!(slots.take(None, None).is_ok());
    }
}
