//! Functions with a form of their own in version 13.

pub(crate) mod forms;
pub(crate) mod graphs;
pub(crate) mod textures;
