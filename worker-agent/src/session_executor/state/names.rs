//! What the client's names stand for.

use std::collections::HashMap;
use std::rc::Rc;

use super::Failure;

/// What a name stands for.
pub(super) enum Named<T> {
    There(Rc<T>),
    Failed(Rc<Failure>),
    /// What was to change it was refused: it is there, once the client knows of the failure.
    Unchanged(Rc<T>, Rc<Failure>),
}

impl<T> Named<T> {
    fn is_held(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}

/// What the client's names stand for.
pub(super) struct Names<T> {
    named: HashMap<u64, Named<T>>,
    /// How many of them are there.
    pub(super) there: u64,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self {
            named: HashMap::new(),
            there: 0,
        }
    }
}

impl<T> Names<T> {
    /// What a name stands for, or why that is not there.
    pub(super) fn get(&self, name: u64) -> Option<Result<&Rc<T>, &Rc<Failure>>> {
        Some(match self.named.get(&name)? {
            Named::There(thing) => Ok(thing),
            Named::Unchanged(thing, failure) if failure.is_told() => Ok(thing),
            Named::Failed(failure) | Named::Unchanged(_, failure) => Err(failure),
        })
    }

    /// A name stands for this from here on; 0 stands for nothing.
    pub(super) fn set(&mut self, name: u64, named: Named<T>) {
        if name == 0 {
            return;
        }
        self.there += u64::from(named.is_held());
        let earlier = self.named.insert(name, named);
        self.there -= u64::from(earlier.is_some_and(|earlier| earlier.is_held()));
    }

    /// A name stands for nothing any more.
    pub(super) fn remove(&mut self, name: u64) {
        let earlier = self.named.remove(&name);
        self.there -= u64::from(earlier.is_some_and(|earlier| earlier.is_held()));
    }
}
