//! Options of compilations, and the messages that a caller gets through them.

use sahasra_cuda_boundary::log;
use sahasra_cuda_device::{LoadFailure, ModuleDescription};

use crate::boundary::{HostPointer, In, Out};
use crate::status::Status;

/// Places for messages, among the options of a compilation (`CUjit_option`).
#[derive(Default)]
pub(crate) struct Logs {
    info: Place,
    error: Place,
}

/// Where a message goes, as addresses of the caller; 0 where the caller gave none.
#[derive(Clone, Copy, Default)]
struct Place {
    buffer: usize,
    /// Size of the buffer in bytes.
    size: usize,
    /// Where the length goes.
    length: usize,
}

const INFO_LOG: u32 = 3;
const INFO_LOG_SIZE: u32 = 4;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
const WALL_TIME: u32 = 2;

impl Logs {
    /// Finds the places among the options. Values are pointers, or numbers in the place of pointers.
    pub(crate) fn read(count: u32, options: In<u32>, values: Out<usize>) -> Result<Self, Status> {
        let mut logs = Self::default();
        if count == 0 {
            return Ok(logs);
        }
        values.require()?;
        for index in 0..count as usize {
            let value = values.element(index);
            match options.at(index)? {
                INFO_LOG => logs.info.buffer = value.get()?,
                ERROR_LOG => logs.error.buffer = value.get()?,
                INFO_LOG_SIZE => logs.info.read_size(value)?,
                ERROR_LOG_SIZE => logs.error.read_size(value)?,
                WALL_TIME => value.cast::<f32>().set(0.0)?,
                _ => {}
            }
        }
        Ok(logs)
    }

    /// Writes a message to the error log.
    pub(crate) fn write(&self, message: &str) {
        self.error.write(message);
    }

    /// Writes what was loaded to the information log, and that there is no error.
    pub(crate) fn finish(&self, description: &ModuleDescription) {
        let (functions, variables) = (description.functions.len(), description.variables.len());
        self.info.write(&format!("sahasra: kernels: {functions}, variables: {variables}"));
        self.error.write("");
    }

    /// Reports a failure in the error log and on stderr.
    pub(crate) fn report(&self, failure: &LoadFailure) -> Status {
        let message = failure.to_string();
        self.write(&message);
        log::line(&format!("module not loaded: {message}"));
        Status::from(failure)
    }
}

impl Place {
    fn read_size(&mut self, value: Out<usize>) -> Result<(), Status> {
        // An unsigned int in the place of a pointer: the upper half may hold anything.
        self.size = value.get()? as u32 as usize;
        self.length = value.address();
        Ok(())
    }

    /// Writes a message with a zero byte at its end, cut to the buffer, and its length.
    fn write(&self, message: &str) {
        let mut length = 0;
        if self.buffer != 0 && self.size > 0 {
            length = message.len().min(self.size - 1);
            // Refuses nothing: the buffer is not null and the size is that of the caller.
            let _ = HostPointer::of_address(self.buffer).with_bytes_mut(length + 1, |bytes| {
                bytes[..length].copy_from_slice(&message.as_bytes()[..length]);
                bytes[length] = 0;
            });
        }
        Out::new(self.length as *mut usize).set_if_wanted(length);
    }
}
