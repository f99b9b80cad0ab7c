//! Why a device does not serve a claim.

use std::fmt;

use crate::{DeviceId, Name};

/// Why one device does not serve one claim. Reads on after the device's name: "worker-a/gpu0: 3 GiB free, slice needs 8 GiB".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// The session lives on another device and never leaves it.
    PinnedTo {
        /// That device.
        device: DeviceId,
    },
    /// Another class is asked for.
    ClassMismatch {
        /// The class asked for.
        wanted: Name,
        /// The device's class.
        has: Name,
    },
    /// The device has not the engine that is asked for.
    EngineMissing {
        /// The engine asked for.
        wanted: Name,
    },
    /// The worker's heartbeat stands still.
    NotReady,
    /// The device reported an error that requires a reset.
    Unhealthy,
    /// The device is being emptied.
    Cordoned,
    /// Not even an empty device would do.
    TooSmall {
        /// Bytes needed on this device.
        slice: u64,
        /// Bytes that it can lend at all.
        allocatable: u64,
    },
    /// Its agent refused lately.
    RefusedRecently {
        /// Until when it is not asked again, in milliseconds on the clock of `now`.
        until: u64,
    },
    /// Someone more important has waited too long and goes first here.
    ReservedFor {
        /// That claim's id.
        claim: Name,
    },
    /// What is not lent does not suffice.
    Full {
        /// Bytes not lent.
        free: u64,
        /// Bytes needed on this device.
        needed: u64,
    },
    /// It has room, but all devices together have not room for the minimum.
    TooFew {
        /// Slices that fit on this device.
        fit: u32,
        /// Slices that must start together.
        needed: u32,
    },
}

impl WhyNot {
    /// The reason as one CamelCase word, for a condition or a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::PinnedTo { .. } => "PinnedElsewhere",
            Self::ClassMismatch { .. } => "ClassMismatch",
            Self::EngineMissing { .. } => "EngineMissing",
            Self::NotReady => "NotReady",
            Self::Unhealthy => "Unhealthy",
            Self::Cordoned => "Cordoned",
            Self::TooSmall { .. } => "TooSmall",
            Self::RefusedRecently { .. } => "RefusedRecently",
            Self::ReservedFor { .. } => "Reserved",
            Self::Full { .. } => "Full",
            Self::TooFew { .. } => "TooFew",
        }
    }

    /// The reason in words for a count of devices: "2 full, 1 not ready".
    pub(crate) fn adjective(&self) -> &'static str {
        match self {
            Self::PinnedTo { .. } => "not the session's own",
            Self::ClassMismatch { .. } => "of another class",
            Self::EngineMissing { .. } => "without the engine",
            Self::NotReady => "not ready",
            Self::Unhealthy => "unhealthy",
            Self::Cordoned => "cordoned",
            Self::TooSmall { .. } => "too small",
            Self::RefusedRecently { .. } => "refused lately",
            Self::ReservedFor { .. } => "reserved",
            Self::Full { .. } => "full",
            Self::TooFew { .. } => "with room for too few",
        }
    }

    /// How near the device is to serving, nearest first: which one to name in a summary.
    pub(crate) fn distance(&self) -> u8 {
        match self {
            Self::TooFew { .. } => 0,
            Self::Full { .. } => 1,
            Self::ReservedFor { .. } => 2,
            Self::RefusedRecently { .. } => 3,
            Self::Cordoned => 4,
            Self::NotReady => 5,
            Self::Unhealthy => 6,
            Self::TooSmall { .. } => 7,
            Self::EngineMissing { .. } => 8,
            Self::ClassMismatch { .. } => 9,
            Self::PinnedTo { .. } => 10,
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PinnedTo { device } => write!(formatter, "the session lives on {device}"),
            Self::ClassMismatch { wanted, has } => write!(formatter, "class is {has}, wanted {wanted}"),
            // The one that is brought along.
            Self::EngineMissing { wanted } if &**wanted == "xla" => formatter.write_str("has no engine xla: its worker has no PJRT plugin"),
            Self::EngineMissing { wanted } => write!(formatter, "has no engine {wanted}"),
            Self::NotReady => formatter.write_str("worker is not ready"),
            Self::Unhealthy => formatter.write_str("device is unhealthy"),
            Self::Cordoned => formatter.write_str("worker is cordoned"),
            Self::TooSmall { slice, allocatable } => {
                write!(
                    formatter,
                    "lends {} at most, slice needs {}",
                    Bytes(*allocatable),
                    Against(*slice, *allocatable)
                )
            }
            Self::RefusedRecently { .. } => formatter.write_str("its agent refused a moment ago"),
            Self::ReservedFor { claim } => write!(formatter, "reserved for {claim}, which has waited longer"),
            Self::Full { free, needed } => write!(formatter, "{} free, slice needs {}", Bytes(*free), Against(*needed, *free)),
            Self::TooFew { fit, needed } => write!(formatter, "room for {fit} of the {needed} slices that must start together"),
        }
    }
}

/// The first beside the second: "8 GiB", or "1 MiB more" where both would read the same.
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

/// Bytes as people write them: `512 MiB`, `1.5 GiB`. Rounded down, so that what is free never looks like enough when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (size, unit) in units {
            if self.0 >= size {
                let (whole, tenths) = (self.0 / size, self.0 % size * 10 / size);
                return match tenths {
                    0 => write!(formatter, "{whole} {unit}"),
                    _ => write!(formatter, "{whole}.{tenths} {unit}"),
                };
            }
        }
        write!(formatter, "{} B", self.0)
    }
}
