//! The embedded control plane: an in-memory implementation of the Kubernetes API for Sahasra's kinds and the built-in kinds that they need.
//! Clients use [`kube::Client`] within the process, or HTTPS with its [`Credentials`], for example with kubectl.
//!
//! ```text
//! kube::Client ─┐
//!               ├─► service ─► handle ─► decode ─► patch ─► write ─► store ─► watch ─► watchers
//! HTTPS ────────┘                        (schema)           (schema, rules)  │
//!                                                                  collect ◄─┘
//! ```
//!
//! A [`ControlPlane`] is created from [`Options`]: a clock, a seed and the number of changes to keep. The control plane acts only on
//! requests, has no thread and uses no other source of time or randomness. The same requests in the same order give the same responses and
//! watch events, also under a paused clock. Simulations disturb clients with [`ControlPlane::compact`], [`ControlPlane::close_watches`] and
//! [`ControlPlane::expire_watches`].
//!
//! # Differences from a real API server
//!
//! The decision record *The embedded control plane is our own* lists the supported features. The supported features differ as follows:
//!
//! - **Time.** Garbage collection and the deletion of a namespace's content happen within the write that makes them necessary, not
//!   some time later. An Event that has not been written for an hour is deleted by the next request, whatever its target: without a request
//!   nothing is deleted.
//! - **CEL rules** are evaluated by `kube-cel` 0.8, which rejects unsupported features: `sortBy`, `cel.bind`, two-variable comprehensions,
//!   schemas deeper than 64 levels, the authorizer. Costs are not counted, so no rule exceeds a cost budget. `oldSelf` of an
//!   `optionalOldSelf` rule is the value or null, not an optional. Messages of rules that fail to evaluate differ. Sahasra's definitions
//!   use none of these; a test in `crds` checks that their rules compile.
//! - **Schemas**: `allOf`, `anyOf`, `oneOf`, `not`, `uniqueItems`, `multipleOf` and formats other than `date-time` and `byte` are ignored.
//!   Sahasra's definitions contain none of them. Schema errors are ordered by field; on a real server the order is random.
//! - **Strict decoding** reports unknown fields, but not duplicate fields, because JSON is parsed into a map first.
//! - **Built-in kinds** are validated where Sahasra or its users write them: metadata, data keys and sizes, immutability, leases. Nodes,
//!   Namespaces and Events are only checked for field types.
//! - **Reviews**: `SelfSubjectAccessReview` always allows the action, and `SelfSubjectReview` always returns the same user name. Discovery
//!   does not list these kinds.
//! - **Resource versions** begin at 1 and are contiguous. A list of all namespaces is ordered by namespace, then name.

mod built_in;
mod collect;
mod control_plane;
mod credentials;
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
mod service;
mod store;
mod table;
mod view;
mod watch;
mod write;

pub use control_plane::{Clock, ControlPlane, Options};
pub use credentials::{Certificate, Credentials, CredentialsError};
pub use service::{ApiService, ResponseBody, has_token};
