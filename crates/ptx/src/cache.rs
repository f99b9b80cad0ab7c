//! Translations of PTX, kept by the SHA-256 of their text.
//!
//! A text is translated once while it is kept, however many threads ask for it at the same time: the first one
//! translates, the others wait for it. What is kept is bounded in bytes; what was used longest ago goes first. A text
//! that is refused is not kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use crate::error::LoadError;
use crate::module::Module;

type Key = [u8; 32];

/// Translations by content: of [`Module`]s, or of whatever else PTX becomes (a GPU's module, say).
///
/// ```
/// use sahasra_ptx::ModuleCache;
///
/// let cache = ModuleCache::new(64 << 20);
/// let text = ".version 7.0 .target sm_80 .address_size 64 .visible .entry empty() { ret; }";
/// let module = cache.load(text)?;
/// cache.load(text)?;
/// assert!(module.entry("empty").is_some());
/// assert_eq!((cache.statistics().hits, cache.statistics().misses), (1, 1));
/// # Ok::<(), sahasra_ptx::LoadError>(())
/// ```
#[derive(Debug)]
pub struct ModuleCache<T = Module> {
    limit: u64,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    entries: HashMap<Key, Entry<T>>,
    /// Counts up with every use: the entry with the lowest was used longest ago.
    uses: u64,
    statistics: CacheStatistics,
}

#[derive(Debug)]
struct Entry<T> {
    place: Arc<Place<T>>,
    /// 0 while it is being translated.
    bytes: u64,
    last_used: u64,
}

/// Where a translation will be. The lock is held while it is made.
type Place<T> = Mutex<Option<T>>;

/// What a cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Translations that were there already, or were being made.
    pub hits: u64,
    /// Texts that had to be translated, the refused ones included.
    pub misses: u64,
    /// Translations kept.
    pub modules: usize,
    /// Their bytes.
    pub bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-done where a translation panics: the place stays empty and the next one fills it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> ModuleCache<T> {
    /// Keeps at most `limit` bytes of translations. A larger one is made and returned, and not kept.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            state: Mutex::new(State {
                entries: HashMap::new(),
                uses: 0,
                statistics: CacheStatistics::default(),
            }),
        }
    }

    /// The translation of this text: kept, or made now by `translate`, which says how many bytes it takes.
    ///
    /// # Errors
    /// Those of `translate`. Others that waited for it translate themselves.
    pub fn get_or_translate<E>(&self, ptx: &str, translate: impl FnOnce(&str) -> Result<(T, u64), E>) -> Result<T, E> {
        let key: Key = Sha256::digest(ptx).into();
        let place = self.place(key);
        let mut translation = lock(&place);
        if let Some(found) = &*translation {
            lock(&self.state).statistics.hits += 1;
            return Ok(found.clone());
        }
        let made = translate(ptx);
        let mut state = lock(&self.state);
        state.statistics.misses += 1;
        match made {
            Ok((made, bytes)) => {
                *translation = Some(made.clone());
                state.keep(key, &place, bytes, self.limit);
                Ok(made)
            }
            Err(error) => {
                state.forget(key, &place);
                Err(error)
            }
        }
    }

    /// What the cache did and holds.
    pub fn statistics(&self) -> CacheStatistics {
        lock(&self.state).statistics
    }

    /// The place of a text, marked as used now.
    fn place(&self, key: Key) -> Arc<Place<T>> {
        let mut state = lock(&self.state);
        state.uses += 1;
        let last_used = state.uses;
        let entry = state.entries.entry(key).or_insert_with(|| Entry {
            place: Arc::default(),
            bytes: 0,
            last_used,
        });
        entry.last_used = last_used;
        Arc::clone(&entry.place)
    }
}

impl<T> State<T> {
    /// Counts what was translated, and makes room for it.
    fn keep(&mut self, key: Key, place: &Arc<Place<T>>, bytes: u64, limit: u64) {
        if bytes > limit {
            return self.forget(key, place);
        }
        match self.entries.get_mut(&key).filter(|entry| Arc::ptr_eq(&entry.place, place)) {
            Some(entry) => entry.bytes = bytes,
            // Its translation failed for another, who took it out.
            None => return,
        }
        self.statistics.modules += 1;
        self.statistics.bytes += bytes;
        while self.statistics.bytes > limit {
            let kept = self.entries.iter().filter(|(other, entry)| entry.bytes > 0 && **other != key);
            let Some(oldest) = kept.min_by_key(|(_, entry)| entry.last_used).map(|(oldest, _)| *oldest) else {
                return;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.statistics.modules -= 1;
                self.statistics.bytes -= entry.bytes;
            }
        }
    }

    /// Takes out an entry that holds nothing.
    fn forget(&mut self, key: Key, place: &Arc<Place<T>>) {
        if self.entries.get(&key).is_some_and(|entry| Arc::ptr_eq(&entry.place, place)) {
            self.entries.remove(&key);
        }
    }
}

impl ModuleCache {
    /// The module of this text: kept, or loaded now.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(&self, ptx: &str) -> Result<Module, LoadError> {
        self.get_or_translate(ptx, |ptx| {
            let module = Module::load(ptx)?;
            let bytes = module.code_bytes();
            Ok((module, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Translates a text to its length, which counts as that many bytes.
    fn length(cache: &ModuleCache<usize>, text: &str) -> usize {
        cache
            .get_or_translate::<()>(text, |text| Ok((text.len(), text.len() as u64)))
            .expect("translates")
    }

    #[test]
    fn a_text_is_translated_once_whoever_asks() {
        let cache = ModuleCache::new(100);
        let (translations, start) = (AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let found = cache.get_or_translate::<()>("text", |_| {
                        translations.fetch_add(1, Ordering::Relaxed);
                        Ok(("code", 10))
                    });
                    assert_eq!(found, Ok("code"));
                });
            }
        });
        assert_eq!(translations.into_inner(), 1);
        let statistics = cache.statistics();
        assert_eq!(
            (statistics.hits, statistics.misses, statistics.modules, statistics.bytes),
            (7, 1, 1, 10)
        );
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let cache = ModuleCache::new(10);
        for text in ["aaaa", "bbbbb", "aaaa", "ccccc"] {
            assert_eq!(length(&cache, text), text.len());
        }
        // The fourth needed room, and the second was older than the third's use of the first.
        assert_eq!((cache.statistics().modules, cache.statistics().bytes), (2, 9));
        length(&cache, "aaaa");
        length(&cache, "ccccc");
        assert_eq!((cache.statistics().hits, cache.statistics().misses), (3, 3));
        length(&cache, "bbbbb");
        assert_eq!(cache.statistics().misses, 4);
    }

    #[test]
    fn what_is_larger_than_the_cache_is_not_kept() {
        let cache = ModuleCache::new(3);
        length(&cache, "abc");
        length(&cache, "abcd");
        length(&cache, "abcd");
        let statistics = cache.statistics();
        assert_eq!((statistics.misses, statistics.modules, statistics.bytes), (3, 1, 3));
        assert_eq!(lock(&cache.state).entries.len(), 1);
    }

    #[test]
    fn a_refused_text_is_tried_again() {
        let cache = ModuleCache::new(100);
        let refused = cache.get_or_translate("text", |_| Err::<(u32, u64), _>("no"));
        assert_eq!(refused, Err("no"));
        assert_eq!(lock(&cache.state).entries.len(), 0);
        assert_eq!(cache.get_or_translate::<()>("text", |_| Ok((7, 1))), Ok(7));
    }

    #[test]
    fn a_translation_that_panics_leaves_the_text_to_the_next() {
        let cache = ModuleCache::<u32>::new(100);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.get_or_translate::<()>("text", |_| panic!("on purpose"))
        }));
        assert!(panicked.is_err());
        assert_eq!(cache.get_or_translate::<()>("text", |_| Ok((7, 1))), Ok(7));
        assert_eq!(cache.statistics().modules, 1);
    }

    #[test]
    fn modules_are_shared_and_counted_by_their_code() {
        let cache = ModuleCache::new(1 << 20);
        let text = ".version 7.0 .target sm_80 .address_size 64 .visible .entry empty() { ret; }";
        let first = cache.load(text).expect("loads");
        assert_eq!(cache.statistics().bytes, first.code_bytes());
        assert!(first.code_bytes() > 100);
        assert!(first.is_same(&cache.load(text).expect("loads")));
        assert!(cache.load("no PTX").is_err());
        assert_eq!(cache.statistics().modules, 1);
    }
}
