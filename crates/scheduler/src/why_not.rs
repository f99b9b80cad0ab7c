//! Reasons why a device does not serve a claim.

use std::{fmt, time::Duration};

use sahasra_names::{Bytes, ClassName, Engine, OwnerUid};

use crate::Unusable;

/// Reason why one device does not serve one claim. The text continues the device's name: "worker-a/gpu0: 3Gi free, slice needs 8Gi".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// The claim requires another class.
    ClassMismatch { wanted: ClassName, has: ClassName },
    /// The device does not have the engine that the claim requires.
    EngineUnsupported { wanted: Engine },
    /// The device takes no new slices.
    Unusable(Unusable),
    /// Even the empty device would be too small.
    TooSmall {
        /// Bytes that the claim needs on this device.
        slice: u64,
        /// Allocatable bytes of the device.
        allocatable: u64,
    },
    /// The device's agent recently rejected this claim.
    RejectedRecently {
        /// Time before which the device is not proposed again, on the clock of `now`.
        until: Duration,
    },
    /// The device is reserved for a more important claim that has waited longer than [`crate::RESERVE_AFTER`].
    ReservedFor { claim: OwnerUid },
    /// The free bytes do not suffice.
    InsufficientVram {
        /// Free bytes of the device.
        free: u64,
        /// Bytes that the claim needs on this device.
        needed: u64,
    },
    /// The device has room for some slices, but all devices together do not have room for the minimum.
    TooFewSlices {
        /// Number of slices that fit on this device.
        fit: u32,
        /// Number of slices that must be granted together: those that the claim lacks of its minimum.
        needed: u32,
    },
}

impl WhyNot {
    /// How close the device is to serving the claim, closest first, and an adjective for a count of such devices: "2 full, 1 not ready". A
    /// summary names the device with the lowest number.
    pub(crate) fn rank(&self) -> (u8, &'static str) {
        match self {
            Self::TooFewSlices { .. } => (0, "with too few free slices"),
            Self::InsufficientVram { .. } => (1, "full"),
            Self::ReservedFor { .. } => (2, "reserved"),
            Self::RejectedRecently { .. } => (3, "rejected recently"),
            Self::Unusable(Unusable::Cordoned) => (4, "cordoned"),
            Self::Unusable(Unusable::NotReady) => (5, "not ready"),
            Self::Unusable(Unusable::Unhealthy) => (6, "unhealthy"),
            Self::TooSmall { .. } => (7, "too small"),
            Self::EngineUnsupported { .. } => (8, "without the engine"),
            Self::ClassMismatch { .. } => (9, "of another class"),
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClassMismatch { wanted, has } => write!(formatter, "class is {has}, wanted {wanted}"),
            Self::EngineUnsupported { wanted } => match wanted.requirement() {
                Some(missing) => write!(formatter, "has no engine {wanted}: its worker has no {missing}"),
                None => write!(formatter, "has no engine {wanted}"),
            },
            Self::Unusable(Unusable::NotReady) => formatter.write_str("worker is not ready"),
            Self::Unusable(Unusable::Unhealthy) => formatter.write_str("device is unhealthy"),
            Self::Unusable(Unusable::Cordoned) => formatter.write_str("worker is cordoned"),
            Self::TooSmall { slice, allocatable } => {
                write!(
                    formatter,
                    "{} allocatable, slice needs {}",
                    Bytes(*allocatable),
                    Against(*slice, *allocatable)
                )
            }
            Self::RejectedRecently { .. } => formatter.write_str("its agent rejected a recent request"),
            Self::ReservedFor { claim } => write!(formatter, "reserved for {claim}, which has waited longer"),
            Self::InsufficientVram { free, needed } => write!(formatter, "{} free, slice needs {}", Bytes(*free), Against(*needed, *free)),
            Self::TooFewSlices { fit, needed } => write!(formatter, "room for {fit} of the {needed} slices that must start together"),
        }
    }
}

/// Formats the first number of bytes for comparison with the second: "8Gi", or "1Mi more" if both would read the same.
struct Against(u64, u64);

impl fmt::Display for Against {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, given) = (Bytes(self.0), Bytes(self.1));
        if needed.to_string() == given.to_string() {
            write!(formatter, "{} more", Bytes(self.0.saturating_sub(self.1)))
        } else {
            write!(formatter, "{needed}")
        }
    }
}
