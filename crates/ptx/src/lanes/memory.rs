//! Loads and stores of one element per lane at addresses that are already resolved to host memory.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{LANES, Level, level};

/// Pattern of the lanes' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All lanes at `base`.
    Uniform,
    /// Lane i at `base + i * stride`.
    Contiguous,
    /// Rows of `row` lanes, each uniform or contiguous: row r begins at `rows[r]`.
    Rows,
    /// Lane i at `pointers[i]`.
    Gather,
}

/// Host addresses of an access. Those of lanes outside its mask are meaningless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    pub(crate) base: *mut u8,
    pub(crate) stride: usize,
    pub(crate) shape: Shape,
    /// Number of lanes in each row: 8 or 16.
    pub(crate) row: u8,
    /// Mask of the uniform rows. The other rows are contiguous.
    pub(crate) uniform_rows: u8,
    /// Start of each row.
    pub(crate) rows: [*mut u8; 8],
    /// Address of each lane if the shape is [`Shape::Gather`].
    pub(crate) pointers: *const [*mut u8; LANES],
}

impl Resolved {
    pub(crate) fn new() -> Self {
        Self {
            base: std::ptr::null_mut(),
            stride: 0,
            shape: Shape::Gather,
            row: 16,
            uniform_rows: 0,
            rows: [std::ptr::null_mut(); 8],
            pointers: std::ptr::null(),
        }
    }

    /// Returns the pointers of all lanes.
    ///
    /// # Safety
    /// The shape must be [`Shape::Gather`], and the pointers must be live.
    #[inline(always)]
    unsafe fn gathered(&self) -> &[*mut u8; LANES] {
        // SAFETY: guaranteed by the caller.
        unsafe { &*self.pointers }
    }

    #[inline(always)]
    pub(crate) fn pointer(&self, lane: usize) -> *mut u8 {
        match self.shape {
            Shape::Uniform => self.base,
            Shape::Contiguous => self.base.wrapping_add(lane * self.stride),
            Shape::Rows => {
                let row = lane / usize::from(self.row);
                let along = if (self.uniform_rows >> row) & 1 != 0 {
                    0
                } else {
                    lane % usize::from(self.row)
                };
                self.rows[row].wrapping_add(along * self.stride)
            }
            // SAFETY: gathered accesses carry their pointers.
            Shape::Gather => unsafe { self.gathered()[lane] },
        }
    }
}

/// Loads the element that is `offset` bytes into each lane's access into a register, for the lanes of the mask.
///
/// Safety: the element of every lane of the mask must be at a readable address; the target must be a register of 64 elements.
pub(crate) type LoadFunction = unsafe fn(&Resolved, usize, *mut u8, u64);

/// Stores the elements of a register; see [`LoadFunction`].
pub(crate) type StoreFunction = unsafe fn(&Resolved, usize, *const u8, u64);

/// Element in memory that can be extended to an element of a register.
pub(crate) trait Element<R>: Copy {
    fn extend(self) -> R;
}

macro_rules! element {
    ($($element:ty => $($register:ty),*;)*) => {$($(
        impl Element<$register> for $element {
            #[inline(always)]
            fn extend(self) -> $register { self as $register }
        }
    )*)*};
}
element! {
    u8 => u16, u32, u64;
    i8 => u16, u32, u64;
    u16 => u16, u32, u64;
    i16 => u32, u64;
    u32 => u32, u64;
    i32 => u64;
    u64 => u64;
}

/// Calls `visit` with the index of every set bit, lowest first.
#[inline(always)]
pub(crate) fn for_each_lane(mut mask: u64, mut visit: impl FnMut(usize)) {
    while mask != 0 {
        visit(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

#[inline(always)]
unsafe fn load_body<E: Element<R>, R: Copy>(resolved: &Resolved, offset: usize, d: *mut u8, mask: u64) {
    let d = d.cast::<R>();
    // SAFETY: guaranteed by the contract of `LoadFunction`. Other threads may change the bytes; each is read once.
    unsafe {
        match (resolved.shape, mask) {
            (Shape::Uniform, _) => {
                let value = resolved.base.wrapping_add(offset).cast::<E>().read_unaligned().extend();
                if mask == u64::MAX {
                    for lane in 0..LANES {
                        *d.add(lane) = value;
                    }
                } else {
                    for_each_lane(mask, |lane| *d.add(lane) = value);
                }
            }
            (Shape::Contiguous, u64::MAX) => {
                let base = resolved.base.wrapping_add(offset);
                if resolved.stride == size_of::<E>() {
                    if size_of::<E>() == size_of::<R>() {
                        std::ptr::copy_nonoverlapping(base, d.cast::<u8>(), LANES * size_of::<E>());
                    } else {
                        let elements = base.cast::<[E; LANES]>().read_unaligned();
                        for lane in 0..LANES {
                            *d.add(lane) = elements[lane].extend();
                        }
                    }
                } else {
                    for lane in 0..LANES {
                        *d.add(lane) = base.add(lane * resolved.stride).cast::<E>().read_unaligned().extend();
                    }
                }
            }
            (Shape::Contiguous, _) => {
                for_each_lane(mask, |lane| {
                    *d.add(lane) = resolved
                        .base
                        .wrapping_add((lane * resolved.stride).wrapping_add(offset))
                        .cast::<E>()
                        .read_unaligned()
                        .extend()
                });
            }
            (Shape::Rows, u64::MAX) if resolved.row == 16 => load_rows::<E, R, 16>(resolved, offset, d),
            (Shape::Rows, u64::MAX) => load_rows::<E, R, 8>(resolved, offset, d),
            (Shape::Rows, _) => {
                for_each_lane(mask, |lane| {
                    *d.add(lane) = resolved.pointer(lane).wrapping_add(offset).cast::<E>().read_unaligned().extend()
                });
            }
            (Shape::Gather, u64::MAX) => {
                let pointers = resolved.gathered();
                for lane in 0..LANES {
                    *d.add(lane) = pointers[lane].wrapping_add(offset).cast::<E>().read_unaligned().extend();
                }
            }
            (Shape::Gather, _) => {
                let pointers = resolved.gathered();
                for_each_lane(mask, |lane| {
                    *d.add(lane) = pointers[lane].wrapping_add(offset).cast::<E>().read_unaligned().extend()
                });
            }
        }
    }
}

/// # Safety
/// The contract of [`LoadFunction`] must hold for all lanes, and for rows of `ROW` lanes.
#[inline(always)]
unsafe fn load_rows<E: Element<R>, R: Copy, const ROW: usize>(resolved: &Resolved, offset: usize, d: *mut R) {
    for row in 0..LANES / ROW {
        let d = d.wrapping_add(row * ROW);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let base = resolved.rows[row].wrapping_add(offset);
            if (resolved.uniform_rows >> row) & 1 != 0 {
                let value = base.cast::<E>().read_unaligned().extend();
                for lane in 0..ROW {
                    *d.add(lane) = value;
                }
            } else if resolved.stride == size_of::<E>() && size_of::<E>() == size_of::<R>() {
                std::ptr::copy_nonoverlapping(base, d.cast::<u8>(), ROW * size_of::<E>());
            } else {
                for lane in 0..ROW {
                    *d.add(lane) = base.add(lane * resolved.stride).cast::<E>().read_unaligned().extend();
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store_body<E: Copy>(resolved: &Resolved, offset: usize, s: *const u8, mask: u64) {
    let s = s.cast::<E>();
    // SAFETY: guaranteed by the contract of `StoreFunction`.
    unsafe {
        match (resolved.shape, mask) {
            (Shape::Uniform, _) => {
                // All lanes write to one address, and the last lane wins.
                let lane = 63 - mask.leading_zeros() as usize;
                resolved.base.wrapping_add(offset).cast::<E>().write_unaligned(*s.add(lane));
            }
            (Shape::Contiguous, u64::MAX) => {
                let base = resolved.base.wrapping_add(offset);
                if resolved.stride == size_of::<E>() {
                    std::ptr::copy_nonoverlapping(s.cast::<u8>(), base, LANES * size_of::<E>());
                } else {
                    for lane in 0..LANES {
                        base.add(lane * resolved.stride).cast::<E>().write_unaligned(*s.add(lane));
                    }
                }
            }
            (Shape::Rows, u64::MAX) if resolved.uniform_rows == 0 && resolved.stride == size_of::<E>() => {
                for row in 0..LANES / usize::from(resolved.row) {
                    let at = row * usize::from(resolved.row);
                    let base = resolved.rows[row].wrapping_add(offset);
                    if resolved.row == 16 {
                        std::ptr::copy_nonoverlapping(s.add(at).cast(), base, 16 * size_of::<E>());
                    } else {
                        std::ptr::copy_nonoverlapping(s.add(at).cast(), base, 8 * size_of::<E>());
                    }
                }
            }
            _ => for_each_lane(mask, |lane| {
                resolved
                    .pointer(lane)
                    .wrapping_add(offset)
                    .cast::<E>()
                    .write_unaligned(*s.add(lane))
            }),
        }
    }
}

/// Returns the function that loads elements `E` into registers of `R` on this CPU.
pub(crate) fn load<E: Element<R>, R: Copy>() -> LoadFunction {
    unsafe fn baseline<E: Element<R>, R: Copy>(resolved: &Resolved, offset: usize, d: *mut u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `LoadFunction`.
        unsafe { load_body::<E, R>(resolved, offset, d, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn v3<E: Element<R>, R: Copy>(resolved: &Resolved, offset: usize, d: *mut u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `LoadFunction`.
        unsafe { load_body::<E, R>(resolved, offset, d, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn avx512<E: Element<R>, R: Copy>(resolved: &Resolved, offset: usize, d: *mut u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `LoadFunction`.
        unsafe { load_body::<E, R>(resolved, offset, d, mask) }
    }
    match level() {
        Level::Baseline => baseline::<E, R>,
        #[cfg(target_arch = "x86_64")]
        Level::V3 => v3::<E, R>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<E, R>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<E, R>,
    }
}

/// Returns the function that stores elements `E` on this CPU.
pub(crate) fn store<E: Copy>() -> StoreFunction {
    unsafe fn baseline<E: Copy>(resolved: &Resolved, offset: usize, s: *const u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `StoreFunction`.
        unsafe { store_body::<E>(resolved, offset, s, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn v3<E: Copy>(resolved: &Resolved, offset: usize, s: *const u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `StoreFunction`.
        unsafe { store_body::<E>(resolved, offset, s, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn avx512<E: Copy>(resolved: &Resolved, offset: usize, s: *const u8, mask: u64) {
        // SAFETY: guaranteed by the contract of `StoreFunction`.
        unsafe { store_body::<E>(resolved, offset, s, mask) }
    }
    match level() {
        Level::Baseline => baseline::<E>,
        #[cfg(target_arch = "x86_64")]
        Level::V3 => v3::<E>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<E>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<E>,
    }
}

/// Element that host atomics read and write as a whole.
pub(crate) trait Whole: Copy {
    /// Safety: `pointer` must be aligned and valid.
    unsafe fn read(pointer: *mut u8) -> Self;
    /// Safety: `pointer` must be aligned and valid.
    unsafe fn write(pointer: *mut u8, value: Self);
}

macro_rules! whole {
    ($($element:ty, $bits:ty, $atomic:ty;)*) => {$(
        impl Whole for $element {
            #[inline(always)]
            unsafe fn read(pointer: *mut u8) -> Self {
                // SAFETY: guaranteed by the caller; concurrent kernels access these bytes through atomics too.
                unsafe { <$atomic>::from_ptr(pointer.cast()).load(Ordering::SeqCst) as $element }
            }
            #[inline(always)]
            unsafe fn write(pointer: *mut u8, value: Self) {
                // SAFETY: guaranteed by the caller; concurrent kernels access these bytes through atomics too.
                unsafe { <$atomic>::from_ptr(pointer.cast()).store(value as $bits, Ordering::SeqCst) }
            }
        }
    )*};
}
whole! {
    u8, u8, AtomicU8;
    i8, u8, AtomicU8;
    u16, u16, AtomicU16;
    i16, u16, AtomicU16;
    u32, u32, AtomicU32;
    i32, u32, AtomicU32;
    u64, u64, AtomicU64;
}

/// Loads lane by lane through host atomics (`.volatile`, `.relaxed`, `.acquire`).
///
/// # Safety
/// The contract of [`LoadFunction`] must hold, and every address must be aligned to the element.
pub(crate) unsafe fn load_ordered<E: Element<R> + Whole, R: Copy>(resolved: &Resolved, offset: usize, d: *mut u8, mask: u64) {
    // SAFETY: guaranteed by the caller.
    for_each_lane(mask, |lane| unsafe {
        *d.cast::<R>().add(lane) = E::read(resolved.pointer(lane).wrapping_add(offset)).extend()
    });
}

/// Stores lane by lane through host atomics.
///
/// # Safety
/// The contract of [`StoreFunction`] must hold, and every address must be aligned to the element.
pub(crate) unsafe fn store_ordered<E: Whole>(resolved: &Resolved, offset: usize, s: *const u8, mask: u64) {
    // SAFETY: guaranteed by the caller.
    for_each_lane(mask, |lane| unsafe {
        E::write(resolved.pointer(lane).wrapping_add(offset), *s.cast::<E>().add(lane))
    });
}
