//! Discovery of devices: GPUs as a short-lived child process reports them, and devices of the CPU backend if it is enabled.

use std::path::Path;
use std::time::Duration;

use sahasra_executor_protocol::probe::{GPU_LANES, Gpu, Probe};
use sahasra_names::Backend;

use super::DeviceDescription;
use crate::args::{CpuMode, DeviceArguments};
use crate::child::{ask::ask, spawn};

/// Memory in bytes that an engine needs in addition to contexts, for fragmentation and for what a driver allocates later.
const HEADROOM: u64 = 256 << 20;
/// Timeout of the probe that queries the driver.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// Discovers the devices (`program` is called to probe GPUs), and logs once which were found and which were not.
pub(crate) async fn discover(program: &Path, config: &DeviceArguments) -> Vec<DeviceDescription> {
    let mut devices = Vec::new();
    if !config.no_cuda {
        let probe = probe(program, &[]).await;
        if let Some(reason) = &probe.reason {
            tracing::info!(reason, gpus = probe.gpus.len(), "GPU discovery finished");
        }
        let probe = match probe.gpus.len() {
            0 => probe,
            count => probe_in_sandbox(program, count).await,
        };
        devices.extend(probe.gpus.into_iter().map(|gpu| describe(gpu, config)));
    }
    let cpu = match config.cpu_backend {
        CpuMode::Always => true,
        CpuMode::Fallback => devices.is_empty(),
        CpuMode::Never => false,
    };
    if cpu {
        devices.extend(cpu_devices(config));
    }
    for device in &devices {
        tracing::info!(
            device = device.name.as_str(),
            model = device.model,
            total_bytes = device.total_bytes,
            allocatable_bytes = device.allocatable_bytes,
            "device"
        );
    }
    devices
}

async fn probe(program: &Path, options: &[&str]) -> Probe {
    let mut command = spawn::command(program, "probe");
    command.args(options);
    // The child may hang in a broken driver.
    let probe = ask(command, PROBE_TIMEOUT).await;
    probe.unwrap_or_else(|error| Probe::failed(error.to_string()))
}

/// Probes the GPUs from within the sandbox of executors, and returns those that can be opened there. Runs after the first probe, because
/// that one may still start the driver's own program that creates the device files.
async fn probe_in_sandbox(program: &Path, count: usize) -> Probe {
    let probe = probe(program, &["--sandboxed"]).await;
    if probe.gpus.len() < count {
        let reason = probe.reason.as_deref().unwrap_or_default();
        tracing::error!(
            reason,
            gpus = probe.gpus.len(),
            of = count,
            "failed to open a GPU in the sandbox of executors, skipping it"
        );
    }
    probe
}

fn describe(gpu: Gpu, config: &DeviceArguments) -> DeviceDescription {
    // Free memory was measured while the probe's own context existed. That context is gone later, so one context fewer is reserved.
    let others = u64::from(config.max_executors_per_device.saturating_sub(1));
    let reserved = gpu.context_bytes.saturating_mul(others) + HEADROOM;
    DeviceDescription {
        name: format!("cuda-{}", gpu.ordinal).into(),
        kind: Backend::Cuda,
        ordinal: gpu.ordinal,
        model: gpu.model,
        total_bytes: gpu.total_bytes,
        allocatable_bytes: gpu.free_bytes.saturating_sub(reserved),
        context_bytes: config.gpu_context_memory.unwrap_or(gpu.context_bytes),
        lanes: GPU_LANES,
    }
}

fn cpu_devices(config: &DeviceArguments) -> Vec<DeviceDescription> {
    let count = config.cpu_devices.max(1);
    let bytes = config.cpu_device_memory.unwrap_or_else(|| machine_bytes() / 2 / u64::from(count));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (0..count)
        .map(|ordinal| DeviceDescription {
            name: format!("cpu-{ordinal}").into(),
            kind: Backend::Cpu,
            ordinal,
            model: cpu_model(),
            total_bytes: bytes,
            allocatable_bytes: bytes,
            context_bytes: 0,
            lanes: config.cpu_device_threads.unwrap_or(cores).max(1),
        })
        .collect()
}

/// Returns the memory in bytes of the machine, or of the container if that is less.
fn machine_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    });
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    // Assume little memory if neither is known.
    machine.into_iter().chain(container).min().unwrap_or(1 << 30)
}

fn cpu_model() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    model.unwrap_or_else(|| "CPU".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocatable_memory_leaves_room_for_every_context() {
        let gpu = Gpu {
            ordinal: 1,
            model: "GPU".to_owned(),
            total_bytes: 80 << 30,
            free_bytes: (80 << 30) - (500 << 20),
            context_bytes: 500 << 20,
        };
        for (gpu_context_memory, expected) in [(None, 500 << 20), (Some(2 << 30), 2 << 30)] {
            let config = DeviceArguments {
                gpu_context_memory,
                ..DeviceArguments::default()
            };
            let described = describe(gpu.clone(), &config);
            assert_eq!(&*described.name, "cuda-1");
            assert_eq!(described.allocatable_bytes, (80 << 30) - 4 * (500 << 20) - HEADROOM);
            assert_eq!(described.context_bytes, expected);
        }
    }

    #[test]
    fn cpu_devices_share_half_the_machine() {
        let config = DeviceArguments {
            cpu_devices: 2,
            cpu_device_threads: Some(3),
            ..DeviceArguments::default()
        };
        let devices = cpu_devices(&config);
        assert_eq!(
            devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(),
            ["cpu-0", "cpu-1"]
        );
        assert!(devices.iter().map(|device| device.total_bytes).sum::<u64>() <= machine_bytes() / 2);
        assert!(devices[0].total_bytes > 0);
        assert_eq!(devices[1].lanes, 3);
    }
}
