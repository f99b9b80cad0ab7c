//! The state of the process: how often the library was initialised, and its device.

use parking_lot::Mutex;
use sahasra_cuda_boundary::{log, process};
use sahasra_cuda_environment::Description;

use crate::boundary::Handle;
use crate::driver;
use crate::status::Status;

/// Handle of the only device.
pub(crate) const DEVICE: Handle = Handle(0x5a10);
/// Flag of `nvmlInitWithFlags`: a machine without a device is no error.
pub(crate) const NO_GPUS: u32 = 1;

/// State between the first `nvmlInit` and the last `nvmlShutdown`.
struct State {
    /// Number of `nvmlInit` without `nvmlShutdown`.
    users: u32,
    device: Option<Description>,
}

static STATE: Mutex<State> = Mutex::new(State { users: 0, device: None });

/// Initialises the library. Each time that succeeds takes one [`shut_down`]. Children that are forked meanwhile or later are refused.
pub(crate) fn initialise(flags: u32) -> Result<(), Status> {
    process::check::<Status>()?;
    if !process::refuse_children() {
        return Err(Status::OPERATING_SYSTEM);
    }
    let mut state = STATE.lock();
    if state.device.is_none() {
        match sahasra_cuda_environment::describe() {
            Ok(device) => state.device = Some(device),
            Err(reason) => {
                log::once(match crate::symbols::EXPORTS.searched() {
                    Some(searched) => format!("{reason}; {searched}"),
                    None => reason,
                });
                if flags & NO_GPUS == 0 {
                    return Err(Status::DRIVER_NOT_LOADED);
                }
            }
        }
    }
    state.users += 1;
    Ok(())
}

/// Ends what one [`initialise`] began.
pub(crate) fn shut_down() -> Result<(), Status> {
    process::check::<Status>()?;
    let mut state = STATE.lock();
    state.users = state.users.checked_sub(1).ok_or(Status::UNINITIALIZED)?;
    if state.users == 0 {
        state.device = None;
    }
    Ok(())
}

/// Runs a function on the description of the device, if there is one; [`Status::UNINITIALIZED`] before `nvmlInit`.
pub(crate) fn with_device<T>(function: impl FnOnce(Option<&Description>) -> Result<T, Status>) -> Result<T, Status> {
    process::check::<Status>()?;
    let state = STATE.lock();
    if state.users == 0 {
        return Err(Status::UNINITIALIZED);
    }
    function(state.device.as_ref())
}

/// Bytes of device memory that are in use, as of now.
pub(crate) fn used_bytes() -> u64 {
    sahasra_cuda_environment::describe().map_or(0, |device| device.used_bytes)
}

/// Refuses calls before `nvmlInit`.
pub(crate) fn check() -> Result<(), Status> {
    with_device(|_| Ok(()))
}

/// Description of the device of a handle; [`Status::INVALID_ARGUMENT`] for other handles. If this process has opened the device, its driver
/// library knows what it is.
pub(crate) fn description(handle: Handle) -> Result<Description, Status> {
    let mut description = with_device(|device| device.filter(|_| handle == DEVICE).cloned().ok_or(Status::INVALID_ARGUMENT))?;
    driver::identify(&mut description);
    Ok(description)
}

/// Answer to a question about what the device does not have.
pub(crate) fn absent() -> Status {
    sahasra_cuda_boundary::call(|| {
        check()?;
        Err(Status::NOT_SUPPORTED)
    })
}
