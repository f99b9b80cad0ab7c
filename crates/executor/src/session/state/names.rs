//! Names that a client gives to tensors and programs.

use std::collections::HashMap;
use std::rc::Rc;

use super::Failure;

/// Meaning of a name.
pub(super) enum Named<T> {
    There(Rc<T>),
    Failed(Rc<Failure>),
    /// An operation that would have changed the object was rejected. The object can be used again after the failure was reported to the
    /// client.
    Unchanged(Rc<T>, Rc<Failure>),
}

impl<T> Named<T> {
    fn is_held(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}

/// All names of one kind of object.
pub(super) struct Names<T> {
    named: HashMap<u64, Named<T>>,
    /// Number of names that refer to an object.
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
    /// The object with this name, the failure because of which it cannot be used, or `None` if the name is unknown.
    pub(super) fn get(&self, name: u64) -> Option<Result<&Rc<T>, &Rc<Failure>>> {
        Some(match self.named.get(&name)? {
            Named::There(thing) => Ok(thing),
            Named::Unchanged(thing, failure) if failure.is_reported() => Ok(thing),
            Named::Failed(failure) | Named::Unchanged(_, failure) => Err(failure),
        })
    }

    /// Sets the meaning of a name, except of name 0, which refers to nothing.
    pub(super) fn set(&mut self, name: u64, named: Named<T>) {
        if name == 0 {
            return;
        }
        self.there += u64::from(named.is_held());
        let earlier = self.named.insert(name, named);
        self.there -= u64::from(earlier.is_some_and(|earlier| earlier.is_held()));
    }

    pub(super) fn remove(&mut self, name: u64) {
        let earlier = self.named.remove(&name);
        self.there -= u64::from(earlier.is_some_and(|earlier| earlier.is_held()));
    }
}
