//! Runs the contract suite against each backend.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sahasra_wire::burst::FailureCode;

use super::*;
use crate::device::cpu::CpuDevice;
use crate::device::cuda::{CudaDevice, probe};

/// Index of a configuration and its loss, as `examples/hyperparameter-search/verify.c --expect` prints them.
pub(super) const HOST_LOSSES: [(u32, f64); 4] = [(0, 0.392780572), (42, 0.328033662), (137, 0.334928203), (999, 0.347536474)];

/// Declares a test for every part of the suite that leaves the device intact.
macro_rules! harmless {
    ($device:expr) => {
        harmless! { $device =>
            super::super::memory_is_zeroed_counted_and_freed as memory_is_zeroed_counted_and_freed,
            super::super::too_much_memory_is_refused as too_much_memory_is_refused,
            super::super::bad_ptx_is_refused as bad_ptx_is_refused,
            super::super::entries_and_arguments_must_fit as entries_and_arguments_must_fit,
            super::super::every_scalar_arrives as every_scalar_arrives,
            super::super::grids_and_blocks_have_three_dimensions as grids_and_blocks_have_three_dimensions,
            super::super::dynamic_shared_memory_has_the_size_asked_for as dynamic_shared_memory_has_the_size_asked_for,
            super::super::module_variables_start_afresh_with_each_instance as module_variables_start_afresh_with_each_instance,
            super::super::a_module_outlives_its_kernels_and_serves_many as a_module_outlives_its_kernels_and_serves_many,
            super::super::large_areas_are_copied_whole as large_areas_are_copied_whole,
            super::super::many_lanes_do_not_disturb_each_other as many_lanes_do_not_disturb_each_other,
            super::super::examples::pi_is_counted_alike_each_time as pi_is_counted_alike_each_time,
            super::super::examples::saxpy_is_exact as saxpy_is_exact,
            super::super::examples::a_training_ends_with_the_loss_of_the_host as a_training_ends_with_the_loss_of_the_host,
        }
    };
    ($device:expr => $($part:path as $name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                if let Some(device) = $device() {
                    $part(&device);
                }
            }
        )*
    };
}

mod cpu {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as the other backend")]
    fn device() -> Option<CpuDevice> {
        Some(CpuDevice::new(1 << 30, 4))
    }

    harmless!(device);

    #[test]
    fn stray_accesses_are_told() {
        a_fault_is_told(&CpuDevice::new(1 << 20, 1), "stray", FailureCode::IllegalAddress);
    }

    #[test]
    fn traps_are_told() {
        a_fault_is_told(&CpuDevice::new(1 << 20, 1), "snap", FailureCode::Trap);
    }

    #[test]
    fn endless_kernels_end_when_cancelled() {
        an_endless_kernel_ends_when_cancelled(&CpuDevice::new(1 << 20, 1));
    }
}

mod cuda {
    use super::*;

    /// The first GPU. Without one, prints the reason past the capture of test output and returns `None`, so that the test does nothing.
    fn device() -> Option<CudaDevice> {
        static REASON: LazyLock<Option<String>> = LazyLock::new(|| {
            let probed = probe();
            let reason = probed.gpus.is_empty().then(|| probed.reason.unwrap_or_default());
            if let Some(reason) = &reason {
                writeln!(std::io::stderr(), "SKIPPED: the CUDA backend is not tested here: {reason}").unwrap();
            }
            reason
        });
        if REASON.is_some() {
            return None;
        }
        Some(CudaDevice::open(0).unwrap())
    }

    harmless!(device);

    /// Runs one of the ignored tests below in a process of its own.
    fn apart(test: &str) -> Option<std::process::Child> {
        device()?;
        let name = format!("device::contract::backends::cuda::{test}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--ignored", "--nocapture"])
            .stdout(Stdio::inherit())
            .spawn()
            .unwrap();
        Some(child)
    }

    #[test]
    fn stray_accesses_are_told_and_poison() {
        let Some(mut child) = apart("stray_in_a_process") else { return };
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn traps_are_told_and_poison() {
        let Some(mut child) = apart("trap_in_a_process") else { return };
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn endless_kernels_end_with_their_process_only() {
        let Some(mut child) = apart("endless_in_a_process") else { return };
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline {
            assert!(child.try_wait().unwrap().is_none(), "it ended though nothing ends it");
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        super::many_lanes_do_not_disturb_each_other(&device().unwrap());
    }

    #[test]
    #[ignore = "run by stray_accesses_are_told_and_poison"]
    fn stray_in_a_process() {
        a_fault_is_told(&CudaDevice::open(0).unwrap(), "stray", FailureCode::IllegalAddress);
    }

    #[test]
    #[ignore = "run by traps_are_told_and_poison"]
    fn trap_in_a_process() {
        a_fault_is_told(&CudaDevice::open(0).unwrap(), "snap", FailureCode::Trap);
    }

    #[test]
    #[ignore = "run by endless_kernels_end_with_their_process_only"]
    fn endless_in_a_process() {
        an_endless_kernel_ends_when_cancelled(&CudaDevice::open(0).unwrap());
    }
}

/// The CUDA backend without a GPU: on the CPU engine, through the CUDA driver library of this workspace.
mod cuda_on_cpu {
    use super::*;

    #[test]
    fn the_cuda_backend_keeps_the_contract_on_our_own_driver() {
        let test = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let library = test.parent().unwrap().join("libsahasra_cuda_driver.so");
        for name in ["libcuda.so.1", "libcuda.so"] {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
        }
        let output = Command::new(&test)
            .args(["device::contract::backends::cuda::", "--nocapture"])
            .env("LD_LIBRARY_PATH", folder.path())
            .env("SAHASRA_CUDA", "cpu:")
            .output()
            .unwrap();
        let texts = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{texts}");
        assert!(!texts.contains("SKIPPED"), "{texts}");
    }
}
