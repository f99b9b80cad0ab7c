//! Objects of the program that graphs keep.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::boundary::{Handle, HostPointer, Out};
use crate::current;
use crate::driver;
use crate::objects::UserObject;
use crate::status::Status;
use crate::table::new_handle;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, without which no object is created.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: c_uint = 1;

/// Refuses numbers of references that C's `int` does not hold.
fn check_count(count: c_uint) -> Result<(), Status> {
    if count == 0 || i32::try_from(count).is_err() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

exports! {
    fn cuUserObjectCreate(
        object: Out<Handle>,
        data: HostPointer,
        destroy: Option<unsafe extern "C" fn(HostPointer)>,
        references: c_uint,
        flags: c_uint,
    ) {
        object.require()?;
        check_count(references)?;
        let destroy = destroy.ok_or(Status::INVALID_VALUE)?;
        if flags != NO_DESTRUCTOR_SYNC {
            return Err(Status::INVALID_VALUE);
        }
        let handle = new_handle();
        let created = UserObject::new(destroy as usize, data, references);
        driver::get()?.objects.insert(handle, Arc::new(created));
        object.set(handle)
    }

    fn cuUserObjectRetain(object: Handle, count: c_uint) {
        check_count(count)?;
        driver::get()?.objects.get(object)?.retain(count);
        Ok(())
    }

    /// The function of the object is called on a thread of the library, after the work of the current context.
    fn cuUserObjectRelease(object: Handle, count: c_uint) {
        check_count(count)?;
        driver::get()?.release_object(object, count, current::context().ok().as_ref())
    }

    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) {
        check_count(count)?;
        let driver = driver::get()?;
        let graph = driver.graphs.get(graph)?;
        let found = driver.objects.get(object)?;
        match flags {
            MOVE => {}
            0 => found.retain(count),
            _ => return Err(Status::INVALID_VALUE),
        }
        *graph.nodes.lock().objects.entry(object).or_default() += count;
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) {
        check_count(count)?;
        let driver = driver::get()?;
        let graph = driver.graphs.get(graph)?;
        {
            let mut nodes = graph.nodes.lock();
            let kept = nodes.objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
            *kept = kept.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
            if *kept == 0 {
                nodes.objects.remove(&object);
            }
        }
        driver.release_object(object, count, current::context().ok().as_ref())
    }
}
