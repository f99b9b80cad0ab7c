//! Memory pools: they count what is allocated from them, and never keep what is freed.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out};
use crate::driver;
use crate::parameters::{DEVICE_LOCATION, PINNED, PoolProperties};
use crate::ranges::Pool;
use crate::status::Status;
use crate::table::new_handle;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_uint = 3;

exports! {
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>) {
        pool.require()?;
        let driver = driver::get()?;
        let properties = properties.get()?;
        if properties.allocation_type != PINNED {
            return Err(Status::INVALID_VALUE);
        }
        if properties.location_type != DEVICE_LOCATION || properties.handle_types != 0 {
            return refuse("a memory pool of the host or for other processes");
        }
        driver.check_device(properties.location)?;
        let handle = new_handle();
        driver.pools.insert(handle, Arc::new(Pool::of(properties.most_bytes as u64)));
        pool.set(handle)
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let driver = driver::get()?;
        if pool == driver.default_pool {
            return Err(Status::INVALID_VALUE);
        }
        driver.pools.remove(pool)?;
        let mut current = driver.current_pool.lock();
        if *current == pool {
            *current = driver.default_pool;
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) {
        driver::get()?.pools.get(pool).map(|_| ())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        let pool = driver::get()?.pools.get(pool)?;
        match attribute {
            1..=3 => value.cast::<c_int>().set(pool.reuse[attribute as usize - 1].load(Ordering::Relaxed).into()),
            4 => value.set(pool.release_threshold.load(Ordering::Relaxed)),
            5 | 7 => value.set(pool.used.load(Ordering::Relaxed)),
            6 | 8 => value.set(pool.most_used.load(Ordering::Relaxed)),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        let pool = driver::get()?.pools.get(pool)?;
        match attribute {
            1..=3 => {
                let value = value.cast::<c_int>().get()?;
                pool.reuse[attribute as usize - 1].store(value != 0, Ordering::Relaxed);
            }
            4 => pool.release_threshold.store(value.get()?, Ordering::Relaxed),
            6 | 8 if value.get()? == 0 => pool.most_used.store(pool.used.load(Ordering::Relaxed), Ordering::Relaxed),
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: Handle, _access: In<u64>, _count: usize) {
        driver::get()?.pools.get(pool).map(|_| ())
    }

    fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: Handle, _location: In<u64>) {
        driver::get()?.pools.get(pool)?;
        flags.set(READ_WRITE)
    }
}
