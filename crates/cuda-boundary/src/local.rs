//! The libraries of NVIDIA's driver that are installed on this machine, found without the loader: it would find this library under the same
//! name.

use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Variable with the file of the driver's `libcuda.so.1`, or the folder that has this library and others of the driver.
pub const DRIVER: &str = "SAHASRA_CUDA_DRIVER";
/// Export that only libraries of Sahasra have.
const MARK: &CStr = c"sahasra_cuda_library";
/// Cache of the loader, which `ldconfig` writes.
const CACHE: &str = "/etc/ld.so.cache";
/// Folders in which distributions and container runtimes place the driver.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

/// Tells libraries of Sahasra from those of NVIDIA.
#[unsafe(no_mangle)]
extern "C" fn sahasra_cuda_library() {}

/// A library of the local driver. It stays open until the process ends.
pub struct Local(*mut c_void);

// SAFETY: the handle may be used by any thread.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

/// What was searched for a library, without success.
#[derive(Default)]
pub struct Search {
    /// Places, and the files there that could not be used with the reason.
    places: Vec<String>,
}

impl Search {
    /// What was searched for the library with this name; `None` if nothing was.
    pub fn text(&self, library: &str) -> Option<String> {
        let places = self.places.join(", ");
        (!places.is_empty())
            .then(|| format!("no driver of this machine was found either: looked for {library} in {places} ({DRIVER} names it)"))
    }
}

impl Local {
    /// Opens the first library with this name that is not one of Sahasra. `own` is an address in this library.
    ///
    /// # Errors
    /// What was searched, if there is none.
    pub fn open(library: &str, own: *const c_void) -> Result<Self, Search> {
        let own = file_of(own).and_then(|path| identity(&path));
        let mut search = Search::default();
        for place in places(library) {
            let mut told = place.name;
            for path in place.files {
                if !path.exists() || identity(&path).is_some_and(|found| own == Some(found)) {
                    continue;
                }
                match load(&path) {
                    Ok(Some(local)) => return Ok(local),
                    // Another file of Sahasra.
                    Ok(None) => {}
                    Err(reason) => told = format!("{told} (failed to load {}: {reason})", path.display()),
                }
            }
            search.places.push(told);
        }
        Err(search)
    }

    /// Address of an export.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        symbol(self.0, &name)
    }
}

/// A place to search.
struct Place {
    name: String,
    files: Vec<PathBuf>,
}

/// Places with a library, in the order of the search. [`DRIVER`] is the only one if it is set.
fn places(library: &str) -> Vec<Place> {
    if let Some(given) = env::var_os(DRIVER).filter(|given| !given.is_empty()) {
        let name = format!("{DRIVER}={}", given.display());
        let given = PathBuf::from(given);
        let file = match given.file_name() {
            _ if given.is_dir() => given.join(library),
            Some(name) if name.as_bytes().starts_with(stem(library).as_bytes()) => given,
            // The other libraries of the driver are beside the one that is named.
            _ => given.with_file_name(library),
        };
        return vec![Place { name, files: vec![file] }];
    }
    let search_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&search_path).filter(|folder| folder.is_absolute()).collect();
    let mut places = Vec::new();
    if !folders.is_empty() {
        places.push(Place {
            name: "LD_LIBRARY_PATH".to_owned(),
            files: folders.iter().map(|folder| folder.join(library)).collect(),
        });
    }
    places.push(Place {
        name: CACHE.to_owned(),
        files: fs::read(CACHE).map(|cache| cached(&cache, library)).unwrap_or_default(),
    });
    places.extend(FOLDERS.iter().map(|folder| Place {
        name: (*folder).to_owned(),
        files: vec![Path::new(folder).join(library)],
    }));
    places
}

/// Name of a library without its version: `libcuda.so` of `libcuda.so.1`.
fn stem(library: &str) -> &str {
    library.split_once(".so").map_or(library, |(stem, _)| &library[..stem.len() + 3])
}

/// Paths of a library in the loader's cache, in glibc's format (`sysdeps/generic/dl-cache.h`): a header with the number of entries, entries
/// with the places of two texts, the texts.
fn cached(cache: &[u8], library: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // A file in the older format may precede the newer one.
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let number = |at: usize| Some(u32::from_ne_bytes(cache.get(at..at + 4)?.try_into().ok()?) as usize);
    let text = |at: usize| CStr::from_bytes_until_nul(cache.get(number(at)?..)?).ok();
    let count = number(MAGIC.len()).unwrap_or(0);
    let entries = (0..count).map_while(|index| {
        let at = HEADER + index * ENTRY;
        Some((text(at + 4)?, text(at + 8)?))
    });
    entries
        .filter(|(name, _)| name.to_bytes() == library.as_bytes())
        .map(|(_, path)| PathBuf::from(OsStr::from_bytes(path.to_bytes())))
        .collect()
}

/// Loads a library. `None` if it is one of Sahasra.
fn load(path: &Path) -> Result<Option<Local>, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path has a zero byte".to_owned())?;
    // SAFETY: the name ends with a zero byte. The initialisers are those of the driver, which the program asks for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the text is valid until the thread's next call of this interface.
        let reason = unsafe { libc::dlerror() };
        return Err(if reason.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
        });
    }
    Ok(symbol(handle, MARK).is_none().then_some(Local(handle)))
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the library is open and the name ends with a zero byte.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    (!address.is_null()).then_some(address)
}

/// The file from which an address of this process was loaded.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut information = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function writes the information, whose fields may be zero.
    let information = unsafe {
        if libc::dladdr(address, information.as_mut_ptr()) == 0 {
            return None;
        }
        information.assume_init()
    };
    if information.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader wrote a pointer to the name of a loaded file.
    let name = unsafe { CStr::from_ptr(information.dli_fname) };
    Some(PathBuf::from(std::ffi::OsString::from_vec(name.to_bytes().to_vec())))
}

/// Device and number of a file, the same for every link to it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these entries.
    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend((entries.len() as u32).to_ne_bytes());
        cache.resize(48, 0);
        let (mut texts, start) = (Vec::new(), 48 + entries.len() * 24);
        for (name, path) in entries {
            cache.extend(3u32.to_ne_bytes());
            for text in [name, path] {
                cache.extend(((start + texts.len()) as u32).to_ne_bytes());
                texts.extend(text.bytes().chain([0]));
            }
            cache.extend([0; 12]);
        }
        cache.extend(texts);
        cache
    }

    #[test]
    fn libraries_are_found_in_the_loaders_cache() {
        let entries = [
            ("libc.so.6", "/lib/libc.so.6"),
            ("libcuda.so.1", "/a/libcuda.so.1"),
            ("libcuda.so.1", "/b/libcuda.so.1"),
        ];
        let whole = cache(&entries);
        assert_eq!(
            cached(&whole, "libcuda.so.1"),
            [Path::new("/a/libcuda.so.1"), Path::new("/b/libcuda.so.1")]
        );
        assert!(cached(&whole, "libcuda.so").is_empty());
        let with_older = [b"ld.so-1.7.0".as_slice(), &[0; 5], &whole].concat();
        assert_eq!(cached(&with_older, "libc.so.6"), [Path::new("/lib/libc.so.6")]);
        // A damaged cache ends the search.
        for length in 0..whole.len() {
            cached(&whole[..length], "libcuda.so.1");
        }
        if let Ok(real) = fs::read(CACHE) {
            let found = cached(&real, "libc.so.6");
            assert!(found.is_empty() || found.iter().any(|path| path.exists()), "{found:?}");
        }
    }

    #[test]
    fn a_library_has_a_name_without_its_version() {
        assert_eq!(stem("libcuda.so.1"), "libcuda.so");
        assert_eq!(stem("libnvidia-ml.so.1"), "libnvidia-ml.so");
    }
}
