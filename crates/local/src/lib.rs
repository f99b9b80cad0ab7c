//! The embedded control plane: an in-memory Kubernetes API for Sahasra's kinds and what they need beside them, behind
//! [`kube::Client`] and, for kubectl, over HTTPS ([`Server`]).
//!
//! ```text
//! kube::Client ─┐
//!               ├─► service ─► handle ─► decode ─► patch ─► write ─► store ─► watch ─► watchers
//! HTTPS ────────┘                        (schema)           (schema, rules)  │
//!                                                                  collect ◄─┘
//! ```
//!
//! A [`ControlPlane`] is made from [`Options`]: a clock, a seed and how many changes are remembered. It does nothing by
//! itself, has no thread and uses no other source of time or randomness: the same requests in the same order give the same
//! answers, watch events included, also under a paused clock. [`ControlPlane::compact`], [`ControlPlane::close_watches`] and
//! [`ControlPlane::expire_watches`] are what a simulation does to its clients.
//!
//! # What is not as on a real API server
//!
//! The decision record *The embedded control plane is our own* lists what is served. Of what is, these differ:
//!
//! - **Time.** Garbage collection and the deletion of a namespace's content happen within the write that makes them
//!   necessary (see [`Options::collect_on_demand`]), not some time later. An Event that has not been written for an hour
//!   ([`Options::event_lifetime`]) is deleted by the next request, whatever that asks for: nothing happens without one.
//! - **CEL rules** are evaluated by `kube-cel` 0.8, which refuses what it cannot evaluate: `sortBy`, `cel.bind`, two-variable
//!   comprehensions, schemas deeper than 64 levels, the authorizer. Costs are not counted: no rule runs out of budget here.
//!   `oldSelf` of an `optionalOldSelf` rule is the value or null, not an optional. Messages of rules that fail to evaluate
//!   differ. Our definitions use none of these: `e2e/tests/rules.rs` evaluates their rules.
//! - **Schemas**: `allOf`, `anyOf`, `oneOf`, `not`, `uniqueItems`, `multipleOf` and formats other than `date-time` and `byte`
//!   are not looked at. Ours have none. Of lists in the schema, mistakes come in the order of the fields, on a real server in a
//!   random one.
//! - **Strict decoding** tells unknown fields, not fields given twice: JSON is read into a map first.
//! - **Built-in kinds** are validated where Sahasra or its users write them: metadata, data keys and sizes, immutability,
//!   leases. Nodes, Namespaces and Events are checked for types alone.
//! - **Reviews**: `SelfSubjectAccessReview` is answered, always with yes, and `SelfSubjectReview`, always with the same name; they are
//!   not listed among the kinds that are served.
//! - **Versions** begin at 1 and are contiguous; a list of all namespaces is ordered by namespace, then name.

mod built_in;
mod collect;
mod control_plane;
mod decode;
mod discovery;
mod events;
mod handle;
mod identity;
mod list;
mod managed;
mod metadata;
mod names;
mod object;
mod openapi;
mod patch;
mod protobuf;
mod refusal;
mod request;
mod resource;
mod review;
mod schema;
mod selector;
mod server;
mod service;
mod store;
mod table;
mod view;
mod watch;
mod write;

pub use control_plane::{Clock, ControlPlane, Options};
pub use server::{Credentials, Guarded, ServeError, Server};
pub use service::{ApiService, ResponseBody};
