//! What holds for the sessions of each engine.

use sahasra_names::Engine;

use crate::harness::Executor;

const MEMORY: u64 = 64 << 20;

/// Starts a session of the engine on the CPU; `None`, with a message, where what it needs is not installed.
fn executor(engine: Engine) -> Option<Executor> {
    match engine {
        Engine::Ptx => Some(Executor::ptx(MEMORY)),
        Engine::Xla => Executor::xla(MEMORY, &[]),
    }
}

#[test]
fn a_session_names_its_engine_and_keeps_tensors() {
    for engine in Engine::ALL {
        let Some(executor) = executor(*engine) else { continue };
        let mut client = executor.client();
        assert_eq!(
            (client.welcome.engine.as_str(), client.welcome.platform.as_str()),
            (engine.as_str(), "cpu")
        );
        client.floats(1, &[1.5, -2.0]);
        assert_eq!(client.download_floats(1), [1.5, -2.0]);
        client.close();
        executor.status_page_shows(|status_page| status_page.tensors == 0);
    }
}
