//! The engines: what opens each one.

pub(super) mod cuda;
mod ptx;
mod xla;

use std::sync::Arc;

use sahasra_error_chain::causes;
use sahasra_executor_protocol::program_cache::ProgramFolder;
use sahasra_executor_protocol::session::status_page::StatusPage;
use sahasra_names::{self as names, Backend};

use self::cuda::CudaState;
use self::ptx::PtxEngine;
use self::xla::XlaEngine;
use super::Options;
use super::engine::Engine;
use super::engine_thread::drive;
use super::hub::Hub;
use super::state::{Callbacks, State};
use crate::device::cpu::CpuDevice;
use crate::device::cuda::CudaDevice;

/// Opens the engine, passes the outcome to `report`, and runs the engine. Returns only if the engine cannot be opened.
pub(super) fn open(status_page: StatusPage, options: &Options, report: impl FnOnce(Result<Arc<Hub>, String>)) {
    let limit_bytes = options.assigned.memory_bytes;
    match (options.engine, options.assigned.backend) {
        (names::Engine::Ptx, Backend::Cpu) => {
            let device = CpuDevice::new(limit_bytes, options.assigned.threads as usize);
            run(status_page, PtxEngine::new(device, Backend::Cpu), limit_bytes, report);
        }
        (names::Engine::Ptx, Backend::Cuda) => {
            let engine = CudaDevice::open(options.assigned.ordinal).and_then(|device| PtxEngine::new(device, Backend::Cuda));
            run(status_page, engine, limit_bytes, report);
        }
        (names::Engine::Cuda, backend) => {
            let device = match backend {
                Backend::Cpu => cuda::cpu(limit_bytes, options.assigned.threads),
                Backend::Cuda => match cuda::gpu(options.assigned.ordinal, limit_bytes, options.context_bytes) {
                    Ok(device) => device,
                    Err(reason) => return report(Err(reason)),
                },
            };
            let description = cuda::description(device.properties(), backend);
            let hub = Hub::new(status_page, description, limit_bytes).offering(options.offer());
            drive(hub, report, |hub| CudaState::new(device, hub));
        }
        (names::Engine::Xla, backend) => {
            let Some(plugin) = &options.plugin else {
                return report(Err("engine xla requires --plugin".to_owned()));
            };
            let gpu = backend.is_gpu().then_some(options.assigned.ordinal);
            let cache = options.program_cache_dir.clone().map(|path| ProgramFolder {
                path,
                limit_bytes: options.program_cache_limit_bytes,
            });
            run(status_page, XlaEngine::open(plugin, gpu, limit_bytes, cache), limit_bytes, report);
        }
    }
}

fn run<E: Engine, F: std::error::Error + 'static>(
    status_page: StatusPage,
    engine: Result<E, F>,
    limit_bytes: u64,
    report: impl FnOnce(Result<Arc<Hub>, String>),
) {
    let engine = match engine {
        Ok(engine) => engine,
        Err(error) => return report(Err(causes(&error))),
    };
    let hub = Hub::new(status_page, engine.description(), limit_bytes);
    drive(hub, report, |hub| {
        let (begins, ends, downloads) = (Arc::clone(&hub), Arc::clone(&hub), hub);
        let callbacks = Callbacks {
            execution_begins: Arc::new(move || begins.execution_begins()),
            execution_ends: Arc::new(move || ends.execution_ends()),
            download_ends: Arc::new(move || downloads.download_ends()),
        };
        State::new(engine, limit_bytes, callbacks)
    })
}
