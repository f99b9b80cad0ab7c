use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sahasra_cuda_device::LaunchRequest;
use sahasra_executor_protocol::session::status_page::StatusPage;
use sahasra_wire::session::{self, Synchronise};

mod sequences;

use sahasra_wire::cuda::MAX_CONTEXTS;

use super::*;

/// Variable that lets these tests run on the first GPU instead of the PTX engine.
pub(crate) const ON_GPU: &str = "SAHASRA_TEST_GPU";
const MEMORY: u64 = 16 << 20;
/// Memory for what kernels allocate, on the CPU.
const HEAP: u64 = 64 << 20;
/// Distance of the memory of different contexts in bytes: more than a page of a GPU.
const APART: u64 = 1 << 30;
const TIMEOUT: Duration = Duration::from_secs(60);
const KERNELS: &str = "
    .version 7.0 .target sm_70 .address_size 64
    .visible .global .u32 step = 3;
    .visible .entry add(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %rd<2>;
        ld.param.u64 %rd1, [out];
        ld.global.u32 %r1, [%rd1];
        ld.global.u32 %r2, [step];
        add.u32 %r3, %r1, %r2;
        st.global.u32 [%rd1], %r3;
        ret;
    }
    .visible .entry snap() { trap; }
    .visible .entry spin() {
        .reg .b64 %rd<4>; .reg .pred %p1;
        mov.u64 %rd1, %globaltimer;
        L: mov.u64 %rd2, %globaltimer;
        sub.u64 %rd3, %rd2, %rd1;
        // A second or so, because a GPU cannot end a kernel: the PTX engine counts instructions, a GPU nanoseconds.
        setp.lt.u64 %p1, %rd3, 300000000;
        @%p1 bra L;
        ret;
    }";

struct Bench {
    state: CudaState,
    sequence: u64,
    first: u64,
    /// Bytes that contexts can map: on the CPU with those for what kernels allocate.
    capacity: u64,
    /// Whether the GPU cannot be used any more.
    is_lost: Arc<AtomicBool>,
}

impl Bench {
    fn new() -> Self {
        let (device, backend, capacity): (Box<dyn WatchedDevice>, _, _) = match std::env::var_os(ON_GPU) {
            Some(_) => (
                Box::new(GpuDevice::open(0, MEMORY, 0, gpu::Printed::default()).unwrap()),
                Backend::Cuda,
                MEMORY,
            ),
            None => (cpu(MEMORY, 2), Backend::Cpu, MEMORY + HEAP),
        };
        let description = description(device.properties(), backend);
        let (page, _) = StatusPage::create().unwrap();
        let first = device.properties().addresses.start;
        let hub = Arc::new(Hub::new(page, description, MEMORY));
        let is_lost = Arc::<AtomicBool>::default();
        let lost = Arc::clone(&is_lost);
        // Instead of ending the process.
        device.when_lost(Box::new(move |reason| {
            eprintln!("the GPU is lost: {reason}");
            lost.store(true, Ordering::Relaxed);
        }));
        Self {
            state: CudaState::new(device, hub),
            sequence: 0,
            first,
            capacity,
            is_lost,
        }
    }

    /// Waits until nothing is stored: a GPU ends what runs first.
    fn freed(&self) {
        let end = Instant::now() + TIMEOUT;
        while self.state.stored() != (0, 0) {
            assert!(Instant::now() < end, "{:?} stored", self.state.stored());
            std::thread::yield_now();
        }
    }

    fn operation(&mut self, kind: client_frame::Kind, payload: impl Into<Bytes>) -> Result<(), Malformed> {
        self.sequence += 1;
        self.state.operation(self.sequence, kind, Payload::from(payload.into()))
    }

    fn batch(&mut self, context: u64, operations: impl IntoIterator<Item = Operation>) {
        let mut payload = BytesMut::new();
        for operation in operations {
            wire::encode(operation, &mut payload);
        }
        let batch = sahasra_wire::cuda::Batch { context };
        self.operation(client_frame::Kind::CudaBatch(batch), payload).unwrap();
    }

    fn load(&mut self, context: u64) {
        let load = Load {
            context,
            module: 1,
            text_bytes: vec![KERNELS.len() as u64],
            request: 100,
        };
        self.operation(client_frame::Kind::CudaLoad(load), KERNELS).unwrap();
    }

    fn wait(&mut self, context: u64, operations: u64) {
        let wait = Wait {
            context,
            operations,
            request: 200 + operations,
        };
        self.operation(client_frame::Kind::CudaWait(wait), "").unwrap();
    }

    fn read(&mut self, context: u64, address: u64, bytes: u64) {
        let read = Read {
            context,
            from: Region::linear(address).into(),
            extent: Extent::linear(bytes).into(),
            request: 300,
            slot: None,
            place: None,
        };
        self.operation(client_frame::Kind::CudaRead(read), "").unwrap();
    }

    /// The next answers, at least one, as the engine's thread would take them.
    fn answers(&mut self) -> Vec<SessionAnswer> {
        let end = Instant::now() + TIMEOUT;
        while !self.state.has_answers() {
            assert!(Instant::now() < end, "no answer");
            match self.state.can_settle() {
                true => self.state.settle(),
                false => std::thread::yield_now(),
            }
        }
        self.state.take_answers().0
    }

    fn failure(&mut self) -> (FailureCode, String) {
        let answers = self.answers();
        match &answers[..] {
            [
                SessionAnswer {
                    kind: Kind::Failed(failed),
                    ..
                },
            ] => (failed.code(), failed.message.clone()),
            other => panic!("{other:?}"),
        }
    }
}

fn launch(function: u32, parameters: &[u8]) -> Operation {
    Operation::Launch(Box::new(LaunchRequest {
        module: ModuleId(1),
        function,
        grid: [1, 1, 1],
        block: [1, 1, 1],
        dynamic_shared_bytes: 0,
        stack_bytes: 1024,
        cooperative: false,
        parameters: Bytes::copy_from_slice(parameters),
    }))
}

#[test]
fn operations_of_a_context_run_in_order_and_a_read_sees_all_of_them() {
    let mut bench = Bench::new();
    bench.load(1);
    let loaded = bench.answers();
    let Kind::CudaLoaded(loaded) = &loaded[0].kind else {
        panic!("{loaded:?}")
    };
    assert_eq!((loaded.functions.len(), loaded.variables[0].bytes), (3, 4));
    let address = bench.first;
    let map = Operation::Map { address, bytes: 512 };
    let fill = Operation::Fill {
        to: Region::linear(address),
        extent: Extent::linear(4),
        value: 10,
        element_bytes: 4,
    };
    let adds = (0..20).map(|_| launch(0, &address.to_le_bytes()));
    bench.batch(1, [map, fill].into_iter().chain(adds));
    bench.read(1, address, 4);
    let answers = bench.answers();
    let parts: Vec<u8> = answers.iter().flat_map(|answer| answer.payload.to_vec()).collect();
    assert_eq!(parts, 70u32.to_le_bytes());
    assert_eq!(bench.state.stored().0, 1);
    // The variable counts too, and on a GPU the whole page and the code.
    assert!((516..3 << 20).contains(&bench.state.stored().1), "{:?}", bench.state.stored());
}

#[test]
fn a_wait_is_answered_when_its_operation_has_run_though_later_ones_have_not() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    bench.batch(1, [Operation::Mark(7), launch(2, &[]), Operation::Mark(8)]);
    bench.wait(1, 3);
    bench.wait(1, 1);
    let answers = bench.answers();
    let [
        SessionAnswer {
            kind: Kind::CudaWaited(waited),
            ..
        },
    ] = &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!((waited.request, waited.executed), (201, 1));
    assert!(
        matches!(waited.marks[..], [sahasra_wire::cuda::Mark { mark: 7, .. }]),
        "{:?}",
        waited.marks
    );
    // Another context, and a question that waits for nothing, are answered while the kernel runs.
    bench.wait(2, 0);
    assert!(matches!(&bench.answers()[0].kind, Kind::CudaWaited(waited) if waited.request == 200 && waited.executed == 0));
    bench.wait(1, 0);
    assert!(matches!(&bench.answers()[0].kind, Kind::CudaWaited(waited) if waited.executed == 1));
    bench
        .operation(client_frame::Kind::CudaDiscard(Discard { context: 1 }), "")
        .unwrap();
    assert_eq!(bench.failure().0, FailureCode::Internal, "the first wait ends with the context");
    bench.freed();
}

#[test]
fn a_fault_is_reported_by_every_later_request_of_its_context_only() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    bench.batch(1, [launch(1, &[])]);
    for _ in 0..2 {
        bench.wait(1, 1);
        let (code, message) = bench.failure();
        assert_eq!(code, FailureCode::Trap);
        assert!(message.contains("snap"), "{message}");
    }
    bench.read(1, bench.first, 4);
    assert_eq!(bench.failure().0, FailureCode::Trap);
    // A GPU's driver may make no context any more. Then the session ends.
    bench.load(2);
    let loaded = matches!(bench.answers()[0].kind, Kind::CudaLoaded(_));
    assert!(loaded || bench.is_lost.load(Ordering::Relaxed));
}

#[test]
fn contexts_share_the_memory_of_the_session() {
    let mut bench = Bench::new();
    let address = bench.first;
    bench.batch(
        1,
        [Operation::Map {
            address,
            bytes: MEMORY / 2,
        }],
    );
    // On a GPU, each context has a thread of its own.
    bench.wait(1, 1);
    bench.answers();
    let bytes = bench.capacity - MEMORY / 2 + 256;
    let beyond = address + APART;
    bench.batch(2, [Operation::Map { address: beyond, bytes }]);
    bench.wait(2, 1);
    assert_eq!(bench.failure().0, FailureCode::OutOfMemory);
    // Reported once, and nothing was lost.
    bench.wait(2, 1);
    let answers = bench.answers();
    assert!(matches!(answers[0].kind, Kind::CudaWaited(_)), "{answers:?}");
    bench
        .operation(client_frame::Kind::CudaDiscard(Discard { context: 1 }), "")
        .unwrap();
    bench.batch(
        2,
        [Operation::Map {
            address: address + 2 * APART,
            bytes: MEMORY,
        }],
    );
    bench.wait(2, 2);
    let answers = bench.answers();
    assert!(matches!(answers[0].kind, Kind::CudaWaited(_)), "{answers:?}");
}

#[test]
fn a_client_that_leaves_while_a_kernel_runs_and_the_queue_is_full_frees_everything() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    let map = Operation::Map {
        address: bench.first,
        bytes: 4096,
    };
    bench.batch(1, [map, launch(2, &[])]);
    // More than a queue holds: the rest waits here instead of blocking the thread.
    bench.batch(1, (0..10_000).map(Operation::Mark));
    assert!(bench.state.waiting().is_compiling, "later operations wait");
    bench.state.reset();
    bench.freed();
    assert!(!bench.state.waiting().is_compiling);
    bench.wait(1, 0);
    assert!(matches!(&bench.answers()[0].kind, Kind::CudaWaited(waited) if waited.executed == 0));
}

#[test]
fn a_batch_larger_than_a_queue_is_executed_in_order() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    let address = bench.first;
    bench.batch(1, [Operation::Map { address, bytes: 512 }]);
    bench.batch(1, (0..6000).map(|_| launch(0, &address.to_le_bytes())));
    let end = Instant::now() + TIMEOUT;
    while bench.state.waiting().is_compiling {
        assert!(Instant::now() < end);
        bench.state.settle();
    }
    bench.read(1, address, 4);
    let answers = bench.answers();
    assert_eq!(answers[1].payload, (6000u32 * 3).to_le_bytes()[..]);
}

#[test]
fn what_no_client_may_send_is_malformed() {
    let read = |bytes| Read {
        context: 1,
        from: Region::linear(0).into(),
        extent: Extent::linear(bytes).into(),
        request: 1,
        slot: None,
        place: None,
    };
    let load = |text_bytes| Load {
        context: 1,
        module: 1,
        text_bytes,
        request: 1,
    };
    let batch = sahasra_wire::cuda::Batch { context: 1 };
    let wait = Wait {
        context: 1,
        operations: 1,
        request: 1,
    };
    for (kind, payload) in [
        (client_frame::Kind::CudaBatch(batch), &b"\xff"[..]),
        (client_frame::Kind::CudaBatch(batch), b"\x02\x78\x01"),
        (client_frame::Kind::CudaRead(read(4)), b"text"),
        (client_frame::Kind::CudaLoad(load(vec![3])), b"text"),
        (client_frame::Kind::CudaLoad(load(vec![u64::MAX, 4])), b"text"),
        (client_frame::Kind::CudaLoad(load(vec![1])), b"\xff"),
        (client_frame::Kind::CudaWait(wait), b""),
        (client_frame::Kind::CudaBatch(batch), &[0; MAX_BATCH_BYTES + 1]),
    ] {
        let kind_text = format!("{kind:?}");
        let malformed = Bench::new().operation(kind, Bytes::from_static(payload));
        assert!(malformed.is_err(), "{kind_text} {payload:?}");
    }
    let mut bench = Bench::new();
    bench.operation(client_frame::Kind::CudaRead(read(1 << 60)), "").unwrap();
    assert_eq!(bench.failure().0, FailureCode::IllegalAddress);
}

#[test]
fn operations_of_other_engines_are_refused_by_name() {
    let mut bench = Bench::new();
    let download = session::Download { tensor: 1, request: 9 };
    bench.operation(client_frame::Kind::Download(download), "").unwrap();
    let (code, message) = bench.failure();
    assert_eq!(code, FailureCode::Unsupported);
    assert!(message.contains("a download requires a session of engine ptx or xla"), "{message}");
    let upload = session::Upload::default();
    let mut bench = Bench::new();
    bench.operation(client_frame::Kind::Upload(upload), "").unwrap();
    bench.operation(client_frame::Kind::Synchronise(Synchronise::new(3)), "").unwrap();
    assert!(bench.failure().1.contains("an upload"));
    bench.operation(client_frame::Kind::Synchronise(Synchronise::new(4)), "").unwrap();
    assert!(matches!(bench.answers()[0].kind, Kind::Done(_)));
}

#[test]
fn a_context_beyond_the_limit_is_refused() {
    let mut bench = Bench::new();
    for context in 0..=MAX_CONTEXTS as u64 {
        bench.batch(context, [Operation::Mark(1)]);
    }
    bench.wait(MAX_CONTEXTS as u64, 1);
    let (code, message) = bench.failure();
    assert_eq!(code, FailureCode::OutOfMemory);
    assert!(message.contains("too many contexts"), "{message}");
    // Others go, and the number stays refused: its operations have not been executed.
    for context in 0..2 {
        bench.operation(client_frame::Kind::CudaDiscard(Discard { context }), "").unwrap();
    }
    bench.batch(MAX_CONTEXTS as u64, [Operation::Mark(1)]);
    bench.wait(MAX_CONTEXTS as u64, 2);
    assert_eq!(bench.failure().0, FailureCode::OutOfMemory);
    // A number that is used after its end is a new context.
    for (context, operations) in [(MAX_CONTEXTS as u64, 1), (0, 1)] {
        bench.operation(client_frame::Kind::CudaDiscard(Discard { context }), "").unwrap();
        bench.batch(context, [Operation::Mark(1)]);
        bench.wait(context, operations);
        let answers = bench.answers();
        assert!(matches!(answers[0].kind, Kind::CudaWaited(_)), "{answers:?}");
    }
}

#[test]
fn a_client_that_does_not_heed_the_limit_of_contexts_loses_its_session() {
    let mut bench = Bench::new();
    let contexts = (MAX_CONTEXTS + MAX_REFUSED) as u64;
    for context in 0..contexts {
        bench.batch(context, []);
    }
    let wait = |context| {
        client_frame::Kind::CudaWait(Wait {
            context,
            operations: 0,
            request: 1,
        })
    };
    bench.operation(wait(contexts - 1), "").unwrap();
    assert_eq!(bench.failure().0, FailureCode::OutOfMemory);
    assert!(bench.operation(wait(contexts), "").is_err());
}

#[test]
fn writes_behind_a_kernel_that_never_ends_do_not_block_the_thread() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    bench.batch(1, [launch(2, &[])]);
    let bytes = Bytes::from(vec![0; 100 << 20]);
    for _ in 0..4 {
        let write = Write {
            context: 1,
            to: Region::linear(bench.first).into(),
            extent: Extent::linear(bytes.len() as u64).into(),
            slot: None,
            place: None,
        };
        if !bench.state.waiting().is_compiling {
            bench.operation(client_frame::Kind::CudaWrite(write), bytes.clone()).unwrap();
        }
    }
    assert!(bench.state.waiting().is_compiling, "later operations wait");
    bench
        .operation(client_frame::Kind::CudaDiscard(Discard { context: 1 }), "")
        .unwrap();
    bench.wait(2, 0);
    assert!(matches!(bench.answers()[0].kind, Kind::CudaWaited(_)));
}
