//! What the client's names stand for.

use std::collections::HashMap;
use std::rc::Rc;

use super::Failure;

/// What a name stands for.
pub(super) enum Named<T> {
    There(Rc<T>),
    Failed(Rc<Failure>),
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
    /// What a name stands for.
    pub(super) fn get(&self, name: u64) -> Option<&Named<T>> {
        self.named.get(&name)
    }

    /// A name stands for this from here on; 0 stands for nothing.
    pub(super) fn set(&mut self, name: u64, named: Named<T>) {
        if name == 0 {
            return;
        }
        self.there += u64::from(matches!(named, Named::There(_)));
        if let Some(Named::There(_)) = self.named.insert(name, named) {
            self.there -= 1;
        }
    }

    /// A name stands for nothing any more.
    pub(super) fn remove(&mut self, name: u64) {
        if let Some(Named::There(_)) = self.named.remove(&name) {
            self.there -= 1;
        }
    }
}
