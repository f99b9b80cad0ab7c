//! The contract of devices on a GPU, or on the CUDA driver library of this workspace.

use std::process::Command;

use crate::session::ON_GPU;

mod corpus;

/// The contract. It needs a GPU, and reports visibly when there is none.
mod contract {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, LazyLock};

    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    use parking_lot::{Mutex, MutexGuard};
    use sahasra_cuda_device::contract::{self, KERNELS, MEMORY_BYTES};
    use sahasra_cuda_device::{Device, FailureKind, ModuleId, Operation, Properties, WatchedDevice};

    use crate::device::cuda::probe;
    use crate::gpu::context::Context;
    use crate::gpu::queue::GpuQueue;
    use crate::gpu::{GpuDevice, Printed};

    /// Index of the kernel of the contract that prints.
    const GREET: u32 = 5;

    /// The first GPU, with a lock: what kernels print has one place in the process. Without one, prints the reason past the capture of test
    /// output and returns `None`, so that the test does nothing.
    pub(super) fn device() -> Option<(GpuDevice, MutexGuard<'static, ()>)> {
        static ALONE: Mutex<()> = Mutex::new(());
        static PRINTED: LazyLock<Option<Printed>> = LazyLock::new(|| {
            let probed = probe();
            if probed.gpus.is_empty() {
                let reason = probed.reason.unwrap_or_default();
                writeln!(std::io::stderr(), "SKIPPED: queues on a GPU are not tested here: {reason}").unwrap();
                return None;
            }
            Some(Printed::keep().unwrap())
        });
        let printed = PRINTED.clone()?;
        let alone = ALONE.lock();
        Some((GpuDevice::open(0, MEMORY_BYTES, 0, printed).unwrap(), alone))
    }

    macro_rules! keeps {
        ($($part:ident,)*) => {
            $(
                #[test]
                fn $part() {
                    if let Some((device, _alone)) = device() {
                        contract::$part(&device);
                    }
                }
            )*
        };
    }

    sahasra_cuda_device::for_each_part!(keeps);

    #[test]
    fn text_of_a_client_is_not_given_to_the_next() {
        let Some((device, _alone)) = device() else { return };
        let greeted = |waits: bool| {
            let queue = device.open().unwrap();
            queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
            let ticket = queue.submit(contract::launch(GREET, &[]));
            if waits {
                queue.wait(ticket).unwrap();
            }
            queue
        };
        for waits in [true, false] {
            drop(greeted(waits));
            let queue = device.open().unwrap();
            assert_eq!(queue.printed(), b"", "{waits}");
        }
        // A further queue of the same client.
        let (queue, _other) = (greeted(true), device.open().unwrap());
        assert!(queue.printed().ends_with(b"hello\n"));
    }

    #[test]
    fn call_stacks_count_as_memory_until_their_context_ends() {
        let Some((device, _alone)) = device() else { return };
        let Properties {
            stack_bytes, attributes, ..
        } = device.properties();
        let attribute = |attribute: Attribute| u64::from(attributes[&(attribute as u32)].unsigned_abs());
        let threads = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            * attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
        let room = threads * 2048;
        let device = GpuDevice::open(0, MEMORY_BYTES + room, 0, device.printed.clone()).unwrap();
        let queue = device.open().unwrap();
        queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
        let before = device.used_bytes();
        let launch = |bytes: u64| {
            let Operation::Launch(mut request) = contract::launch(GREET, &[]) else {
                unreachable!()
            };
            request.stack_bytes = u32::try_from(stack_bytes + bytes).unwrap();
            let outcome = queue.wait(queue.submit(Operation::Launch(request)));
            (outcome.map_err(|failure| failure.kind), device.used_bytes() - before)
        };
        assert_eq!(launch(1024), (Ok(()), threads * 1024));
        assert_eq!(launch(0), (Ok(()), threads * 1024));
        assert_eq!(launch(1536), (Ok(()), threads * 1536));
        assert_eq!(launch(256 << 10), (Err(FailureKind::OutOfMemory), threads * 1536));
        drop(queue);
        assert!(device.lease.wait_until_ended());
        assert_eq!(device.used_bytes(), 0);
    }

    #[test]
    fn a_context_that_gets_no_queue_is_ended() {
        let Some((device, _alone)) = device() else { return };
        let context = Context::open(device.device, 7, &device.pages, &device.lease).unwrap();
        // The driver makes no events in it then.
        context.destroy().unwrap();
        let is_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&is_ended);
        let reaper = Arc::new(move |_| ended.store(true, Ordering::Relaxed));
        let failure = GpuQueue::new(context, None, Printed::default(), reaper).err().unwrap();
        assert_ne!(failure.kind, FailureKind::Protocol, "{failure}");
        assert!(is_ended.load(Ordering::Relaxed));
    }
}

/// Runs tests of this program with these filters on the CUDA driver library of this workspace, each filter in a process of its own.
fn on_our_own_driver(filter: &str, fewest: usize) {
    let test = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let library = test.parent().unwrap().join("libsahasra_cuda_driver.so");
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
    }
    let listed = Command::new(&test).args([filter, "--list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).matches(": test").count();
    assert!(listed >= fewest, "{listed} tests are named {filter}");
    let output = Command::new(&test)
        .args([filter, "--nocapture"])
        .env(ON_GPU, "1")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SAHASRA_CUDA", "cpu:")
        .env("SAHASRA_CUDA_MEMORY", "4Gi")
        .env("SAHASRA_CUDA_THREADS", "2")
        .output()
        .unwrap();
    let texts = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{texts}");
    assert!(!texts.contains("SKIPPED"), "{texts}");
}

#[test]
fn queues_keep_the_contract_on_our_own_driver() {
    on_our_own_driver("gpu::tests::contract::", 15);
}

#[test]
fn the_engine_cuda_does_on_our_own_driver_what_it_does_on_the_cpu() {
    on_our_own_driver("session::engines::cuda::tests::", 10);
}

#[test]
fn kernels_of_the_corpus_run_on_our_own_driver() {
    on_our_own_driver("gpu::tests::corpus::", 1);
}
