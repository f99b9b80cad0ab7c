//! Identifiers of owners, agents and devices. Cheap to clone, because solutions and views repeat the same few very often.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer};

macro_rules! identifiers {
    ($($(#[$documentation:meta])* $type:ident),+ $(,)?) => {$(
        $(#[$documentation])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl<T: AsRef<str>> From<T> for $type {
            fn from(name: T) -> Self {
                Self(name.as_ref().into())
            }
        }

        impl<T: AsRef<str> + ?Sized> PartialEq<T> for $type {
            fn eq(&self, other: &T) -> bool {
                *self.0 == *other.as_ref()
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from(String::deserialize(deserializer)?))
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }
    )+};
}

identifiers! {
    /// Name of a `GpuWorker`.
    WorkerName,
    /// UID of a `GpuWorker`. It tells apart objects that had the same name one after the other.
    WorkerUid,
    /// Name of a device, unique on its worker, such as `gpu0`.
    DeviceName,
    /// Class of a device, such as `g5` or `cpu`.
    ClassName,
    /// UID of the object that owns grants.
    OwnerUid,
    /// Identifier of an agent's process. It changes when the agent restarts, which voids the grants of the process before.
    BootId,
}

/// Identifier of a device, unique in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    pub worker: WorkerName,
    pub device: DeviceName,
}

impl DeviceId {
    pub fn new(worker: impl Into<WorkerName>, device: impl Into<DeviceName>) -> Self {
        Self {
            worker: worker.into(),
            device: device.into(),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.worker, self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_map_is_searched_by_text() {
        let numbers = BTreeMap::from([(WorkerName::from("b"), 2), (WorkerName::from("a"), 1)]);
        assert_eq!((numbers.get("a"), numbers.get("c")), (Some(&1), None));
        assert_eq!(numbers.values().copied().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_device_is_shown_after_its_worker() {
        let id = DeviceId::new("a", "gpu0");
        assert_eq!(id.to_string(), "a/gpu0");
        assert_eq!(format!("{:>3}|{:?}", id.worker, id.device), "  a|\"gpu0\"");
    }
}
