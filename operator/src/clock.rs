//! Time. Decisions use [`Clock`] only; [`timestamp`] is for humans.

pub use sahasra_service::clock::Clock;

/// The wall-clock time, for timestamps that humans read. No decision depends on it.
pub fn timestamp() -> k8s_openapi::jiff::Timestamp {
    k8s_openapi::jiff::Timestamp::now()
}
