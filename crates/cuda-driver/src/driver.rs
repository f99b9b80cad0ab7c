//! The state of the process: the device, and every object by its handle.

mod arrays;
mod contexts;
mod graphs;
mod host;
mod libraries;
mod memory;
mod modules;
mod virtual_memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use sahasra_cuda_boundary::{log, process};
use sahasra_cuda_device::Device;

use crate::array::Array;
use crate::boundary::Handle;
use crate::capture::Captures;
use crate::context::Context;
use crate::executable::Executable;
use crate::graph::Graph;
use crate::host::HostRange;
use crate::image::Link;
use crate::module::{Function, Kernel, Library, Module};
use crate::objects::UserObject;
use crate::ranges::Ranges;
use crate::status::Status;
use crate::stream::{Event, Stream};
use crate::table::Table;
use crate::texture::{SurfaceObject, TextureObject};
use crate::virtual_memory::{GRANULARITY, VirtualMemory};

pub(crate) use host::{DEVICE_MAP, READ_ONLY};

use contexts::Primary;
use graphs::GraphMemory;

/// Version of the driver API.
pub(crate) const VERSION: i32 = sahasra_cuda_environment::CUDA_VERSION;

/// The state of an initialised process.
pub(crate) struct Driver {
    pub(crate) device: Box<dyn Device>,
    pub(crate) primary: Mutex<Primary>,
    pub(crate) contexts: Table<Context>,
    /// Modules, those of libraries among them.
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) captures: Captures,
    /// Graphs, those of nodes among them.
    pub(crate) graphs: Table<Graph>,
    /// The graph of each node.
    pub(crate) nodes: Table<Graph>,
    pub(crate) executables: Table<Executable>,
    pub(crate) objects: Table<UserObject>,
    graph_memory: Mutex<GraphMemory>,
    pub(crate) links: Table<Mutex<Link>>,
    pub(crate) pools: Table<crate::ranges::Pool>,
    pub(crate) default_pool: Handle,
    pub(crate) current_pool: Mutex<Handle>,
    /// Device memory by address.
    pub(crate) ranges: Ranges,
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
    pub(crate) arrays: Table<Array>,
    /// Texture objects by the addresses of their descriptors.
    pub(crate) textures: Table<TextureObject>,
    /// Surface objects by the addresses of their descriptors.
    pub(crate) surfaces: Table<SurfaceObject>,
    /// Host memory that programs allocated or registered, or share with the device, by address.
    pub(crate) host: RwLock<BTreeMap<usize, HostRange>>,
    /// Bytes of device memory that are in use.
    used: AtomicU64,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The state of the process; [`Status::NOT_INITIALIZED`] before `cuInit`, and in a forked child.
pub(crate) fn get() -> Result<&'static Driver, Status> {
    process::check::<Status>()?;
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(Status::DEINITIALIZED);
    }
    DRIVER.get().ok_or(Status::NOT_INITIALIZED)
}

/// Whether the process is exiting and its device was given back.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs when the process exits.
extern "C" fn close() {
    // A panic must not unwind into C.
    let _ = std::panic::catch_unwind(|| {
        if let Ok(driver) = get() {
            IS_CLOSED.store(true, Ordering::Relaxed);
            if sahasra_cuda_environment::wants_summary()
                && let Some(summary) = driver.device.summary()
            {
                log::line(&summary);
            }
            driver.device.close();
        }
    });
}

/// Initialises the process. A second call does nothing; a failed one can be made again. Children that are forked meanwhile or later are refused.
pub(crate) fn initialise() -> Result<(), Status> {
    static INITIALISING: Mutex<()> = Mutex::new(());
    process::check::<Status>()?;
    if !process::refuse_children() {
        return Err(Status::OPERATING_SYSTEM);
    }
    let _one_at_a_time = INITIALISING.lock();
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let device = sahasra_cuda_environment::device().map_err(|reason| {
        log::once(match crate::symbols::EXPORTS.searched() {
            Some(searched) => format!("{reason}; {searched}"),
            None => reason,
        });
        Status::NO_DEVICE
    })?;
    let addresses = device.properties().addresses.clone();
    // The upper quarter is for programs that manage their addresses.
    let reserved = addresses.end - (addresses.end - addresses.start) / 4;
    let page = device.properties().page_bytes;
    let reserved = reserved - reserved % page.max(GRANULARITY);
    let ranges = Ranges::new(addresses.start..reserved, page);
    let virtual_memory = VirtualMemory::new(reserved..addresses.end);
    let pools = Table::refusing(Status::INVALID_VALUE);
    let default_pool = crate::table::new_handle();
    pools.insert(default_pool, Arc::new(crate::ranges::Pool::of(0)));
    DRIVER.get_or_init(|| Driver {
        device,
        primary: Mutex::default(),
        contexts: Table::default(),
        modules: Table::default(),
        functions: Table::default(),
        libraries: Table::default(),
        kernels: Table::default(),
        streams: Table::default(),
        events: Table::default(),
        captures: Captures::default(),
        graphs: Table::refusing(Status::INVALID_VALUE),
        nodes: Table::refusing(Status::INVALID_VALUE),
        executables: Table::refusing(Status::INVALID_VALUE),
        objects: Table::refusing(Status::INVALID_VALUE),
        graph_memory: Mutex::default(),
        links: Table::default(),
        pools,
        default_pool,
        current_pool: Mutex::new(default_pool),
        ranges,
        virtual_memory: Mutex::new(virtual_memory),
        arrays: Table::default(),
        textures: Table::default(),
        surfaces: Table::default(),
        host: RwLock::default(),
        used: AtomicU64::new(0),
    });
    // SAFETY: the function may be called at any time. If it cannot be registered, the device is given back when its grace period is over.
    unsafe { libc::atexit(close) };
    Ok(())
}

impl Driver {
    /// Bytes of device memory.
    pub(crate) fn total(&self) -> u64 {
        self.device.properties().memory_bytes
    }

    /// Bytes of device memory that are not in use.
    pub(crate) fn free(&self) -> u64 {
        self.total().saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Counts bytes as used.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Status> {
        let total = self.total();
        let charged = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|used| *used <= total)
        });
        charged.map(|_| ()).map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Counts bytes as free.
    pub(crate) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Refuses all devices but the only one.
    pub(crate) fn check_device(&self, ordinal: i32) -> Result<(), Status> {
        if ordinal == 0 { Ok(()) } else { Err(Status::INVALID_DEVICE) }
    }
}
