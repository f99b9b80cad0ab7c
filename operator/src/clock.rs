//! Time: [`Clock`] is all that decisions see; [`timestamp`] is for people.

pub use sahasra_service::clock::Clock;

/// The wall clock, for what people read. Nothing is decided by it.
pub fn timestamp() -> k8s_openapi::jiff::Timestamp {
    k8s_openapi::jiff::Timestamp::now()
}
