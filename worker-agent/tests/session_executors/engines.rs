//! What holds for the sessions of each engine.

use bytes::Bytes;
use sahasra_names::Engine;
use sahasra_wire::Message;
use sahasra_wire::cuda::{Batch, Extent, Map, Operation, Read, Region, Write, operation};
use sahasra_wire::session::{client_frame::Kind as Sent, server_frame::Kind};

use crate::client::Client;
use crate::harness::Executor;

const MEMORY: u64 = 64 << 20;

/// Starts a session of the engine on the CPU; `None`, with a message, where what it needs is not installed.
fn executor(engine: Engine) -> Option<Executor> {
    match engine {
        Engine::Ptx => Some(Executor::ptx(MEMORY)),
        Engine::Xla => Executor::xla(MEMORY, &[]),
        Engine::Cuda => Some(Executor::start(&["--engine", "cuda", "--threads", "2"], MEMORY)),
    }
}

/// Welcome and memory of a session of engine cuda, whose client's memory is freed when it leaves.
#[test]
fn a_session_of_engine_cuda_on_a_gpu_is_that_of_its_driver() {
    let executor = Executor::on_gpu(MEMORY);
    let mut client = executor.client();
    let welcome = &client.welcome;
    assert_eq!((welcome.engine.as_str(), welcome.platform.as_str()), ("cuda", "cuda"));
    let device = welcome.cuda.as_ref().expect("a device");
    assert_eq!((device.page_bytes, device.takes_machine_code), (2 << 20, true));
    // Compute capability, as the driver says.
    assert_eq!((device.attributes[&75], device.attributes[&76]), (8, 0));
    assert!(device.end_address - device.first_address >= 1 << 40);
    assert_eq!(round_trip(&mut client, b"sixteen bytes..."), b"sixteen bytes...");
    executor.status_page_shows(|status_page| status_page.tensors == 1 && status_page.stored_bytes == 2 << 20);
    client.close();
    executor.status_page_shows(|status_page| status_page.tensors == 0 && status_page.stored_bytes == 0);
}

/// Writes bytes to memory of a context, and reads them back.
fn round_trip(client: &mut Client, bytes: &'static [u8]) -> Vec<u8> {
    let address = client.welcome.cuda.as_ref().expect("a device").first_address;
    let map = Operation {
        kind: Some(operation::Kind::Map(Map { address, bytes: 512 })),
    };
    client.send(Sent::CudaBatch(Batch { context: 1 }), map.encode_length_delimited_to_vec().into());
    let region = Region {
        address,
        ..Region::default()
    };
    let extent = Extent {
        width: bytes.len() as u64,
        height: 1,
        depth: 1,
    };
    let write = Write {
        context: 1,
        to: region,
        extent,
        slot: None,
        place: None,
    };
    client.send(Sent::CudaWrite(write), Bytes::from_static(bytes));
    let read = Read {
        context: 1,
        from: region,
        extent,
        request: client.request(),
        slot: None,
        place: None,
    };
    client.send(Sent::CudaRead(read), Bytes::new());
    assert!(matches!(client.answer(), Kind::Tensor(tensor) if tensor.bytes == bytes.len() as u64));
    client.next().expect("a part").1.to_vec()
}

#[test]
fn a_session_names_its_engine_and_keeps_what_its_client_sends() {
    for engine in Engine::ALL {
        let Some(executor) = executor(*engine) else { continue };
        let mut client = executor.client();
        assert_eq!(
            (client.welcome.engine.as_str(), client.welcome.platform.as_str()),
            (engine.as_str(), "cpu")
        );
        if *engine == Engine::Cuda {
            assert_eq!(round_trip(&mut client, b"sixteen bytes..."), b"sixteen bytes...");
        } else {
            client.floats(1, &[1.5, -2.0]);
            assert_eq!(client.download_floats(1), [1.5, -2.0]);
        }
        executor.status_page_shows(|status_page| status_page.tensors == 1);
        client.close();
        executor.status_page_shows(|status_page| status_page.tensors == 0);
    }
}
