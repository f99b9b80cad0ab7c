//! Sessions, tensors and programs.

use std::time::Duration;

use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyBaseException, PyMemoryError},
    prelude::*,
};
use sahasra_client::{Argument, Array, Compression, Error, Format, Options, Pending, Target, Token};

use crate::{
    array::{self, Block},
    failure::{ATTENTION, raise, wait, wait_until},
    gateway::{Gateway, duration},
    process::{self, Own},
};

#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Session(Own<sahasra_client::Session>);

/// A tensor of a session. It is freed in the session when this object is.
#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Tensor(Own<sahasra_client::Tensor>);

#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Program(Own<sahasra_client::Program>);

#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Download(Own<Mutex<Option<Pending<Array>>>>);

/// Argument of a launch: a tensor, or the bytes of a scalar.
#[derive(FromPyObject)]
enum Passed<'py> {
    Tensor(PyRef<'py, Tensor>),
    Scalar(Vec<u8>),
}

fn tensor(tensor: sahasra_client::Tensor) -> Tensor {
    Tensor(Own::new(tensor))
}

/// Raises the failure of an operation, if that is the answer. Does not raise the error that ended the session.
fn unreported_failure(py: Python<'_>, finished: Option<Result<(), Error>>) -> PyResult<()> {
    match finished {
        Some(Err(error @ Error::Failed(_))) => Err(raise(py, &error)),
        _ => Ok(()),
    }
}

/// Waits until the queue has space, and checks for signals in the meantime.
fn room(py: Python<'_>, session: &sahasra_client::Session) -> PyResult<()> {
    while !session.room_within(Duration::ZERO) && !py.detach(|| session.room_within(ATTENTION)) {
        py.check_signals()?;
    }
    Ok(())
}

fn format(py: Python<'_>, name: &str) -> PyResult<Format> {
    Ok(match name {
        "stablehlo" => Format::StableHlo,
        "hlo" => Format::Hlo,
        "ptx" => Format::Ptx,
        other => return Err(raise(py, &Error::Invalid(format!("invalid format of code: {other}")))),
    })
}

/// Fields of `Welcome`: engine, platform, platform version, device, memory limit in bytes, highest StableHLO version.
type Welcomed = (String, String, String, String, u64, String);

/// Fields of `Compiled` in their order, with the results as (element type, dimensions).
type Costs = (bool, u64, Vec<(String, Vec<i64>)>, u64, u64, u64, u64, u64, Option<f64>, u64, u64);

impl Session {
    /// Submits an operation as soon as the queue has space. Releases the GIL, because another thread may have filled the queue meanwhile.
    fn submit<T: Send>(&self, py: Python<'_>, operation: impl FnOnce(&sahasra_client::Session) -> Result<T, Error> + Send) -> PyResult<T> {
        let session = self.0.get(py)?;
        room(py, session)?;
        py.detach(|| operation(session)).map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Session {
    /// Connects through the gateway, or directly to the worker if `endpoint` is given.
    #[staticmethod]
    #[pyo3(signature = (gateway, namespace, name, endpoint=None, token=None, authority=None, connect=30.0, grace=60.0, replace=false, worker=None, compression="adaptive", server_name=None))]
    #[allow(clippy::too_many_arguments, reason = "they are named on Python's side")]
    fn connect(
        py: Python<'_>,
        gateway: Option<&Gateway>,
        namespace: &str,
        name: &str,
        endpoint: Option<&str>,
        token: Option<&str>,
        authority: Option<&str>,
        connect: f64,
        grace: f64,
        replace: bool,
        worker: Option<&str>,
        compression: &str,
        server_name: Option<&str>,
    ) -> PyResult<Self> {
        process::connects(py)?;
        let compression = match compression {
            "adaptive" => Compression::WhereItPays,
            "always" => Compression::Always,
            "never" => Compression::Never,
            other => {
                let message = format!("compression is \"adaptive\", \"always\" or \"never\", not {other:?}");
                return Err(raise(py, &Error::Invalid(message)));
            }
        };
        let target = || {
            let mut target = match (gateway, endpoint) {
                (gateway, Some(endpoint)) => {
                    let token = match token {
                        Some(token) => Token::text(token),
                        None => Token::find(gateway.map_or(endpoint, |gateway| gateway.0.url()))?,
                    };
                    let mut target = Target::direct(endpoint, token, authority, namespace, name)?;
                    if let Some(server_name) = server_name {
                        target = target.named(server_name)?;
                    }
                    match gateway {
                        Some(gateway) => target.explained_by(&gateway.0, namespace, name),
                        None => target,
                    }
                }
                (Some(gateway), None) => Target::through(&gateway.0, namespace, name)?,
                (None, None) => return Err(Error::Invalid("neither a gateway nor an endpoint is specified".to_owned())),
            };
            if let Some(worker) = worker {
                target = target.on(worker);
            }
            Ok(target)
        };
        let options = Options {
            connect: duration(connect),
            grace: duration(grace),
            replace,
            compression,
            ..Options::default()
        };
        let begun = target().and_then(|target| sahasra_client::Session::begin(target, options));
        let (session, connected) = begun.map_err(|error| raise(py, &error))?;
        wait(py, &connected)?;
        Ok(Self(Own::new(session)))
    }

    /// Returns what the executor reported in its greeting, or None before the first connection.
    fn welcome(&self, py: Python<'_>) -> PyResult<Option<Welcomed>> {
        Ok(self.0.get(py)?.welcome().map(|welcome| {
            (
                welcome.engine,
                welcome.platform,
                welcome.platform_version,
                welcome.device,
                welcome.limit_bytes,
                welcome.stablehlo_version,
            )
        }))
    }

    /// Returns the numbers of bytes sent and received.
    fn traffic(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let traffic = self.0.get(py)?.traffic();
        Ok((traffic.sent_bytes, traffic.received_bytes))
    }

    /// Returns the number of bytes of arrays and code that were sent, counted before compression.
    fn uploaded(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.traffic().uploaded_bytes)
    }

    fn resumed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.resumed())
    }

    /// Raises the error that ended the session, if it has ended.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.ended().map_or(Ok(()), |error| Err(raise(py, &error)))
    }

    /// Uploads an array. The bytes at `address` belong to `owner`. Nobody may write to them any more, unless `copy` is true, which copies
    /// them now.
    #[pyo3(signature = (owner, address, bytes, element_type, dimensions, copy=false))]
    #[allow(clippy::too_many_arguments, reason = "they are what an array is")]
    fn put(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        address: usize,
        bytes: usize,
        element_type: &str,
        dimensions: Vec<i64>,
        copy: bool,
    ) -> PyResult<Tensor> {
        let data = if copy {
            // SAFETY: The package passes the address of the array's data. The array is an argument of this call.
            let copied = py.detach(|| unsafe { array::copy(address, bytes) });
            copied.map_err(|error| PyMemoryError::new_err(error.to_string()))?
        } else {
            // SAFETY: The package passes the address of the data of an array that it holds and that is immutable or a copy of its own.
            unsafe { array::borrow(owner, address, bytes) }
        };
        self.submit(py, |session| session.put(data, element_type, &dimensions)).map(tensor)
    }

    fn allocate(&self, py: Python<'_>, element_type: &str, dimensions: Vec<i64>) -> PyResult<Tensor> {
        self.submit(py, |session| session.allocate(element_type, &dimensions)).map(tensor)
    }

    fn compile(&self, py: Python<'_>, name: &str, kind: &str, code: Vec<u8>) -> PyResult<Program> {
        let kind = format(py, kind)?;
        let program = self.submit(py, |session| session.compile(name, kind, code))?;
        Ok(Program(Own::new(program)))
    }

    /// Compiles a program and waits until it is compiled.
    fn compile_and_ask(&self, py: Python<'_>, name: &str, kind: &str, code: Vec<u8>) -> PyResult<(Program, Costs)> {
        let kind = format(py, kind)?;
        let (program, costs) = self.submit(py, |session| session.compile_and_ask(name, kind, code))?;
        let costs = wait(py, &costs)?;
        let outputs = costs
            .outputs
            .into_iter()
            .map(|shape| (shape.element_type, shape.dimensions))
            .collect();
        let costs = (
            costs.cached,
            costs.milliseconds,
            outputs,
            costs.argument_bytes,
            costs.output_bytes,
            costs.aliased_bytes,
            costs.temporary_bytes,
            costs.code_bytes,
            costs.flops,
            costs.limit_bytes,
            costs.used_bytes,
        );
        Ok((Program(Own::new(program)), costs))
    }

    fn execute(
        &self,
        py: Python<'_>,
        program: &Program,
        arguments: Vec<PyRef<'_, Tensor>>,
        outputs: usize,
        donated: Vec<u32>,
    ) -> PyResult<Vec<Tensor>> {
        let program = program.0.get(py)?;
        let arguments: Vec<_> = arguments.iter().map(|tensor| tensor.0.get(py)).collect::<PyResult<_>>()?;
        let results = self.submit(py, |session| session.execute(program, &arguments, outputs, &donated))?;
        Ok(results.into_iter().map(tensor).collect())
    }

    #[allow(clippy::too_many_arguments, reason = "they are a launch's")]
    fn launch(
        &self,
        py: Python<'_>,
        program: &Program,
        entry: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: Vec<Passed<'_>>,
    ) -> PyResult<()> {
        let program = program.0.get(py)?;
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| match argument {
                Passed::Tensor(tensor) => tensor.0.get(py).map(Argument::Tensor),
                Passed::Scalar(bytes) => Ok(Argument::Scalar(bytes)),
            })
            .collect::<PyResult<_>>()?;
        self.submit(py, |session| session.launch(program, entry, grid, block, shared_bytes, &arguments))
    }

    fn synchronise(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, &self.0.get(py)?.synchronise())
    }

    /// Returns the number of tensors, their bytes, the memory limit in bytes, the number of programs, and the number of executions that
    /// have not ended.
    fn load(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let stats = wait(py, &self.0.get(py)?.load())?;
        Ok((
            stats.tensors,
            stats.used_bytes,
            stats.limit_bytes,
            stats.programs,
            stats.active_executions,
        ))
    }

    /// Waits for all operations so far. Raises the first failure that was not reported before. Also raises the error that ended the
    /// session, if it was not reported before and some operations may not have been executed.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.0.get(py)?;
        unreported_failure(py, wait_until(py, &session.finish(), None)?)?;
        session.unreported_end().map_or(Ok(()), |error| Err(raise(py, &error)))
    }

    /// Closes the session and waits until it is closed, for at most `seconds` if given. Returns whether the session worked until now, and
    /// the first failure that was not reported before, as far as known.
    #[pyo3(signature = (seconds=None))]
    fn close(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<(bool, Option<Py<PyBaseException>>)> {
        let session = self.0.get(py)?;
        if session.ended().is_some() {
            return Ok((false, None));
        }
        let (finished, closed) = (session.finish(), session.close());
        let closed = wait_until(py, &closed, seconds.map(duration))?;
        let failure = unreported_failure(py, wait_until(py, &finished, Some(Duration::ZERO))?).err();
        let was_there = matches!(closed, None | Some(Ok(()) | Err(Error::Failed(_))));
        let failure = failure.or_else(|| unreported_failure(py, closed).err());
        Ok((was_there, failure.map(|failure| failure.into_value(py))))
    }
}

#[pymethods]
impl Tensor {
    /// Requests the tensor's data, whose size must be `bytes`.
    fn download(&self, py: Python<'_>, bytes: u64) -> PyResult<Download> {
        let pending = self.0.get(py)?.download_expecting(Some(bytes));
        Ok(Download(Own::new(Mutex::new(Some(pending)))))
    }
}

#[pymethods]
impl Download {
    fn is_there(&self, py: Python<'_>) -> PyResult<bool> {
        let pending = self.0.get(py)?.lock();
        Ok(pending.as_ref().is_none_or(Pending::is_there))
    }

    /// Waits for the data. Can be called once.
    fn wait(&self, py: Python<'_>) -> PyResult<Block> {
        let taken = self.0.get(py)?.lock().take();
        let Some(pending) = taken else {
            return Err(raise(py, &Error::Invalid("a download is taken once".to_owned())));
        };
        wait(py, &pending).map(Block::new)
    }
}
