//! Cache of translated PTX texts, keyed by the SHA-256 of the text.
//!
//! A text is translated once while its translation is cached, however many threads request it concurrently: the first thread translates,
//! and the others wait for the result. The size of the cache is bounded in bytes; the least recently used translation is evicted first. A
//! text that fails to translate is not cached.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::module::Module;
use sahasra_ptx_syntax::error::LoadError;

type Key = [u8; 32];

/// Cache of translations, keyed by the text: of [`Module`]s, or of any other form that PTX is translated to, such as a module on a GPU.
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
    /// Counter of uses. The entry with the lowest `last_used` is the least recently used one.
    uses: u64,
    statistics: CacheStatistics,
}

#[derive(Debug)]
struct Entry<T> {
    place: Arc<Place<T>>,
    /// Size of the translation in bytes; 0 until the translation is complete.
    bytes: u64,
    last_used: u64,
}

/// Slot of one translation. Its lock is held while the text is translated. A panic meanwhile leaves the slot empty, and the next request
/// fills it.
type Place<T> = Mutex<Option<T>>;

/// Counters and current size of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Requests that found a translation, complete or in progress.
    pub hits: u64,
    /// Texts that had to be translated, including those that failed.
    pub misses: u64,
    /// Number of cached translations.
    pub modules: usize,
    /// Size of the cached translations in bytes.
    pub bytes: u64,
}

impl<T: Clone> ModuleCache<T> {
    /// Returns a cache of at most `limit` bytes of translations. A larger translation is returned to the caller but not cached.
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

    /// Returns the cached translation of this text, or translates it with `translate`, which also returns the size in bytes.
    ///
    /// # Errors
    /// The errors of `translate`. Threads that waited for the failed translation translate the text themselves.
    pub fn get_or_translate<E>(&self, ptx: &str, translate: impl FnOnce(&str) -> Result<(T, u64), E>) -> Result<T, E> {
        let key: Key = Sha256::digest(ptx).into();
        let place = self.place(key);
        let mut translation = place.lock();
        if let Some(found) = &*translation {
            self.state.lock().statistics.hits += 1;
            return Ok(found.clone());
        }
        let made = translate(ptx);
        let mut state = self.state.lock();
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

    /// Returns the counters and the current size.
    pub fn statistics(&self) -> CacheStatistics {
        self.state.lock().statistics
    }

    /// Returns the slot of a text and marks it as used now.
    fn place(&self, key: Key) -> Arc<Place<T>> {
        let mut state = self.state.lock();
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
    /// Accounts for a new translation, and evicts the least recently used ones until the cache is within its limit.
    fn keep(&mut self, key: Key, place: &Arc<Place<T>>, bytes: u64, limit: u64) {
        if bytes > limit {
            return self.forget(key, place);
        }
        match self.entries.get_mut(&key).filter(|entry| Arc::ptr_eq(&entry.place, place)) {
            Some(entry) => entry.bytes = bytes,
            // The translation failed in another thread, which removed the entry.
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

    /// Removes an entry without a translation.
    fn forget(&mut self, key: Key, place: &Arc<Place<T>>) {
        if self.entries.get(&key).is_some_and(|entry| Arc::ptr_eq(&entry.place, place)) {
            self.entries.remove(&key);
        }
    }
}

impl ModuleCache {
    /// Returns the cached module of this text, or loads it.
    ///
    /// # Errors
    /// The errors of [`Module::load`].
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

    /// Translates a text to its length, which is also the size of the translation in bytes.
    fn length(cache: &ModuleCache<usize>, text: &str) -> usize {
        cache
            .get_or_translate::<()>(text, |text| Ok((text.len(), text.len() as u64)))
            .expect("translates")
    }

    #[test]
    fn a_text_is_translated_once_for_all_threads() {
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
    fn the_least_recently_used_translation_is_evicted() {
        let cache = ModuleCache::new(10);
        for text in ["aaaa", "bbbbb", "aaaa", "ccccc"] {
            assert_eq!(length(&cache, text), text.len());
        }
        // The fourth request needed room. It evicted the second text, because the third request used the first text again.
        assert_eq!((cache.statistics().modules, cache.statistics().bytes), (2, 9));
        length(&cache, "aaaa");
        length(&cache, "ccccc");
        assert_eq!((cache.statistics().hits, cache.statistics().misses), (3, 3));
        length(&cache, "bbbbb");
        assert_eq!(cache.statistics().misses, 4);
    }

    #[test]
    fn a_translation_larger_than_the_cache_is_not_kept() {
        let cache = ModuleCache::new(3);
        length(&cache, "abc");
        length(&cache, "abcd");
        length(&cache, "abcd");
        let statistics = cache.statistics();
        assert_eq!((statistics.misses, statistics.modules, statistics.bytes), (3, 1, 3));
        assert_eq!(cache.state.lock().entries.len(), 1);
    }

    #[test]
    fn a_rejected_text_is_translated_again() {
        let cache = ModuleCache::new(100);
        let refused = cache.get_or_translate("text", |_| Err::<(u32, u64), _>("no"));
        assert_eq!(refused, Err("no"));
        assert_eq!(cache.state.lock().entries.len(), 0);
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
