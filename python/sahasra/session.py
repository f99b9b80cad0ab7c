"""Sessions: slices of one device of the cluster."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from . import _native
from .arguments import seconds_of, vram_of
from .client import SahasraClient
from .elements import element_type
from .errors import CompileError, ExecutionError, ForkedProcessError, IncompatibleProgramError, InvalidArgumentError, OutOfDeviceMemoryError, SahasraError
from .estimate import Estimate, estimated
from .made import Made
from .progress import Report, Watch, reporter
from .tensor import RemoteTensor

if TYPE_CHECKING:
    from .jit import RemoteFunction, Traced
    from .kernel import RemoteKernel


class Traffic(NamedTuple):
    """Bytes transferred between this process and a session."""

    #: From this process to the session.
    sent_bytes: int
    #: From the session to this process.
    received_bytes: int


@dataclass(frozen=True)
class Execution:
    """One execution of a function."""

    #: How the function ran: ``jax_export_local`` means exported by the JAX of this process and executed by the session's plugin.
    runtime_mode: str
    #: Leaves of the results that are remote tensors, in order.
    output_tensors: list[RemoteTensor]
    #: The results, in the structure that the function gives them.
    output: Any


def _sample(inputs: Any) -> tuple[Any, ...]:
    """Returns the arguments given as ``sample_inputs``. An array, which would be unpacked into its rows, a dict and a string are no such."""
    if not isinstance(inputs, (tuple, list)):
        raise InvalidArgumentError(f"sample_inputs must be a tuple of the arguments: write (x,). This is a {type(inputs).__name__}")
    return tuple(inputs)


class RemoteJaxSession:
    """A slice of one device, with tensors that stay on the device and functions that run there. Created by :meth:`create`.

    A session is a context manager. At the end of the block all requested operations have been executed, or the reason why not is raised: the first
    failure that was not raised before, or the error that ended the session (:class:`WorkerLostError`, :class:`LeaseExpiredError`,
    :class:`SessionClosedError`) if operations were requested since the last value was read or :meth:`synchronise` was called, and no call has raised
    the error yet. Then all its memory is freed and the device is released. If the block raises an exception, running operations are ended and that
    exception is propagated. The session is also closed at the end of the program, and when the last reference to it and its tensors is dropped:
    a failure that was not raised before is then reported on stderr.
    """

    def __init__(
        self,
        native: _native.Session,
        name: str,
        namespace: str,
        device: str,
        progress: bool | Report | None = None,
    ) -> None:
        welcome = native.welcome()
        if welcome is None:
            raise SahasraError("the session is not connected")
        self._native = native
        # Deletes the session that `create` made: on request, when the last reference is dropped, or when the program ends.
        self._made: Made | None = None
        self._end: weakref.finalize[[_native.Session, list[SahasraError]], RemoteJaxSession] | None = None
        #: Name and namespace of the ``GpuSession``.
        self.name = name
        self.namespace = namespace
        #: Device of the session, as ``worker/device``.
        self.device = device
        self._watch = Watch(native, device, reporter(progress))
        # Failure of an earlier operation that `execute_jitted` found and did not raise, if any. The finalizer has the same list.
        self._earlier: list[SahasraError] = []
        # Whether `close` was called.
        self._is_closed = False
        # Functions of `operators.run`, by their keys.
        self._operators: dict[Any, Traced] = {}
        #: Engine of the session, platform and version of the engine, model of the device, device memory limit in bytes, highest
        #: StableHLO version that the session accepts (empty if it reports none).
        self.engine, self.platform, self.platform_version, self.model, self.limit_bytes, self.stablehlo_version = welcome

    @classmethod
    def create(
        cls,
        client: SahasraClient,
        gpu_class: str | None = None,
        vram: str = "1Gi",
        *,
        engine: str = "xla",
        name: str | None = None,
        namespace: str | None = None,
        idle_timeout_seconds: int = 1800,
        ttl_seconds: int = 28800,
        wait_seconds: float = 60.0,
        grace_seconds: float = 60.0,
        direct: bool = False,
        authority: str | None = None,
        server_name: str | None = None,
        progress: bool | Report | None = None,
        compression: Literal["adaptive", "always", "never"] = "adaptive",
    ) -> RemoteJaxSession:
        """Requests ``vram`` on a device of class ``gpu_class`` (any class if None), waits until there is room, and connects.

        ``vram`` is a whole number with the unit ``Ki``, ``Mi``, ``Gi`` or ``Ti``, such as ``"512Mi"``; other units are rejected. ``engine`` is
        an engine of sessions, such as ``"xla"`` for JAX functions or ``"ptx"`` for kernels. The session ends by itself after ``idle_timeout_seconds``
        without a request, and in any case after ``ttl_seconds``. After a connection breaks, the session's tensors are kept for ``grace_seconds``.

        ``direct`` connects directly to the worker, from inside the cluster. For workers that use TLS, ``authority`` is the PEM certificate of the
        authority that verifies their certificate. ``server_name`` is the name in the certificate, if it is not the host of the session's endpoint:
        one certificate may serve all workers. Without ``direct`` both are rejected.

        Arrays are compressed without loss in transit. ``compression`` is ``"adaptive"`` to compress where measurements during the transfer show that
        the connection is slow enough to benefit; ``"always"`` to compress every array that becomes smaller, for connections on which bytes cost more
        than time; ``"never"`` to compress in neither direction.

        A compilation or an upload of more than half a second is shown on a line of stderr, in a terminal and in a notebook. ``progress`` is True to
        show it everywhere, False to show nothing, or a callable that receives a :class:`Progress` a few times a second, in a thread of its own.

        Raises :class:`CapacityError` when no device has room within ``wait_seconds``; the message gives the reason for each device. Raises
        :class:`InvalidArgumentError` for invalid arguments and when the API server rejects the session, :class:`AuthenticationError` or
        :class:`PermissionDeniedError` when it rejects the caller, :class:`ConnectionLostError` when there is no answer, :class:`ConfigurationError`
        when the certificate of a worker is not accepted.
        """
        if not isinstance(client, SahasraClient):
            raise InvalidArgumentError(f'argument `client` must be a SahasraClient, such as SahasraClient("http://127.0.0.1:8000"), not {client!r}')
        if gpu_class is not None and not isinstance(gpu_class, str):
            raise InvalidArgumentError(f'argument `gpu_class` must be the name of a class, such as "g5", or None for any, not {gpu_class!r}')
        if not (progress is None or isinstance(progress, (bool, np.bool_)) or callable(progress)):
            raise InvalidArgumentError(f"argument `progress` must be True, False, None or a function, such as print, not {progress!r}")
        if compression not in ("adaptive", "always", "never"):
            raise InvalidArgumentError(f'argument `compression` must be "adaptive", "always" or "never", not {compression!r}')
        if not direct:
            for argument, value in (("authority", authority), ("server_name", server_name)):
                if value is not None:
                    raise InvalidArgumentError(
                        f"argument `{argument}` is for the certificate of a worker: pass direct=True, or for that of the gateway pass it to SahasraClient"
                    )
        if authority is not None:
            _native.check_authority(authority)
        vram = vram_of(vram)
        wait_seconds, grace_seconds = seconds_of("wait_seconds", wait_seconds), seconds_of("grace_seconds", grace_seconds)
        namespace = client.namespace if namespace is None else namespace
        spec: dict[str, Any] = {"vram": vram, "engine": engine, "idleTimeoutSeconds": min(idle_timeout_seconds, ttl_seconds), "ttlSeconds": ttl_seconds}
        if gpu_class is not None:
            spec["class"] = gpu_class
        made = json.loads(client._gateway.create_session(namespace, name, json.dumps(spec)))
        name = made["metadata"]["name"]
        assert name is not None
        try:
            placed = json.loads(client._gateway.session_placed(namespace, name, wait_seconds))
            status = placed["status"]
            endpoint = status.get("endpoint") if direct else None
            if direct and endpoint is None:
                raise SahasraError(f"{namespace}/{name} has no endpoint yet")
            device = f"{status.get('worker', '?')}/{status.get('device', '?')}"
            native = _native.Session.connect(
                client._gateway,
                namespace,
                name,
                endpoint=endpoint,
                token=client._token,
                authority=authority,
                connect=wait_seconds,
                grace=grace_seconds,
                worker=device,
                compression=compression,
                server_name=server_name,
            )
            session = cls(native, name, namespace, device, progress)
            session._made = Made(client._gateway, namespace, name, made["metadata"]["uid"], os.getpid())
            session._end = weakref.finalize(session, session._made.give_back, native, session._earlier)
            return session
        except BaseException:
            # The caller has no reference with which to close the session.
            client._gateway.delete_session(namespace, name)
            raise

    def __enter__(self) -> RemoteJaxSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # The exception of the block takes precedence.
            with contextlib.suppress(SahasraError):
                self.close()
            return
        if not self._is_closed:
            try:
                with contextlib.suppress(ForkedProcessError):
                    self._native.finish()
            except BaseException:
                earlier = self._taken()
                with contextlib.suppress(SahasraError):
                    self.close()
                if earlier is not None:
                    raise earlier
                raise
        self.close()

    def close(self) -> None:
        """Frees all memory of the session and releases the device within about a second. Operations that are still running then are ended.

        It may be called several times. In a process forked from the one that created the session it does nothing.

        Raises the first failure of an operation that was not reported before, after the device was released. The error that ended the session is not
        raised, because the session is over in any case. Raises :class:`ConnectionLostError` when the gateway does not answer.
        """
        self._is_closed = True
        if self._made is None or self._end is None:
            with contextlib.suppress(ForkedProcessError):
                _, failure = self._native.close()
                if failure is not None:
                    raise failure
        elif self._end.alive:
            # If a signal interrupts this call, the finalizer tries again at the end of the program.
            try:
                self._made.end(self._native)
            except SahasraError:
                self._end.detach()
                raise
            self._end.detach()
        earlier = self._taken()
        if earlier is not None:
            raise earlier

    def _taken(self) -> SahasraError | None:
        """Returns the failure that `execute_jitted` found and did not raise, which is raised now."""
        return self._earlier.pop() if self._earlier else None

    def synchronise(self) -> None:
        """Waits for all operations requested so far.

        Raises the first failure since the previous call, which names its operation, and the error that ended the session, if it has ended:
        :class:`SessionClosedError`, :class:`LeaseExpiredError`, :class:`WorkerLostError`, :class:`ConnectionLostError`.
        """
        earlier = self._taken()
        if earlier is None:
            self._native.synchronise()
            return
        with contextlib.suppress(SahasraError):
            self._native.synchronise()
        raise earlier

    def put(self, tree: Any) -> Any:
        """Returns the pytree with its arrays and numbers as :class:`RemoteTensor` objects, of the same shapes and of the types that JAX gives them.

        Does not wait for the uploads. If the device memory does not suffice for a tensor (:class:`OutOfDeviceMemoryError`), the next
        :meth:`synchronise` and every read of a dependent value raise the error. Tensors of this session are returned unchanged. Raises ``TypeError``
        for leaves that are not arrays, and :class:`InvalidArgumentError` for tensors that were deleted, donated or belong to another session; both
        name the leaf's path in the tree.
        """
        import jax

        from .export import aval_of
        from .jit import put_leaf

        leaves, structure = jax.tree_util.tree_flatten(tree)
        made: list[RemoteTensor] = []
        try:
            for leaf in leaves:
                made.append(put_leaf(self, leaf, aval_of(leaf, remedy="leave it out of the tree")))
        except (TypeError, OverflowError, InvalidArgumentError) as error:
            path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(tree)[0][len(made)][0])
            raise type(error)(f"leaf {path}: {error}" if path else str(error)) from None
        return jax.tree_util.tree_unflatten(structure, made)

    def get(self, tree: Any) -> Any:
        """Returns the pytree with its remote tensors as NumPy arrays of the same shapes and types. Other leaves are returned unchanged.

        Keys of random numbers, which NumPy does not have, are returned as JAX keys. All downloads are requested before the first one is awaited.
        Raises the failures of the operations on which the values depend.
        """
        import jax

        leaves, structure = jax.tree_util.tree_flatten(tree)
        asked = [leaf._handle().download(leaf.nbytes) if isinstance(leaf, RemoteTensor) else None for leaf in leaves]
        arrays = []
        for leaf, download in zip(leaves, asked):
            if download is None:
                arrays.append(leaf)
            else:
                shape, dtype = leaf._physical()
                array = np.asarray(download.wait()).view(dtype).reshape(shape)
                arrays.append(array if dtype == leaf.dtype else leaf._as_keys(array))
        return jax.tree_util.tree_unflatten(structure, arrays)

    def zeros(self, shape: int | Sequence[int], dtype: Any = np.float32) -> RemoteTensor:
        """Returns zeros of this shape and type, allocated in the session.

        Raises :class:`InvalidArgumentError` for an invalid shape and for a type that sessions do not support. Lack of device memory is reported as by
        :meth:`put`.
        """
        try:
            dimensions = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        except TypeError:
            raise InvalidArgumentError(f"shape={shape!r}: expected a whole number or several of them") from None
        kind = np.dtype(dtype).newbyteorder("=") if not np.dtype(dtype).isnative else np.dtype(dtype)
        return RemoteTensor(self, self._native.allocate(element_type(kind), dimensions), (dimensions, kind, False))

    def jit(
        self,
        function: Callable[..., Any] | None = None,
        *,
        static_argnums: int | Iterable[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
        donate_argnums: int | Iterable[int] | None = None,
        donate_argnames: str | Iterable[str] | None = None,
    ) -> Any:
        """``jax.jit`` for functions that run in the session: ``f = session.jit(f)``, ``@session.jit``, ``@session.jit(static_argnums=1)``.

        The JAX of this process traces the function once for each combination of shapes, types and static values of its arguments. The results are
        :class:`RemoteTensor` objects of the shapes and types that ``jax.jit`` gives. Transformations such as ``grad`` and ``vmap`` belong inside the
        function. Donated tensors are deleted. If the function is the result of ``jax.jit``, its static and donated arguments are so here, too.

        Raises :class:`InvalidArgumentError` in a session of another engine. Calls raise :class:`IncompatibleProgramError` for functions that cannot
        be exported, such as those with callbacks, :class:`InvalidArgumentError` for tensors that were deleted, donated or belong to another session,
        and errors of tracing unchanged. Failures in the session (:class:`CompileError`, :class:`OutOfDeviceMemoryError`, :class:`ExecutionError`,
        :class:`IncompatibleProgramError` for a call that the plugin does not support) are raised when a dependent value is read, and by
        :meth:`synchronise`.
        """
        self._need("xla", "jit")
        from .jit import RemoteFunction

        def wrap(wrapped: Callable[..., Any]) -> RemoteFunction:
            if not callable(wrapped):
                raise TypeError(f"session.jit takes a function, not {wrapped!r}")
            return RemoteFunction(self, wrapped, static_argnums, static_argnames, donate_argnums, donate_argnames)

        return wrap if function is None else wrap(function)

    def _function(self, function: Any) -> RemoteFunction:
        from .jit import RemoteFunction

        if not isinstance(function, RemoteFunction):
            return RemoteFunction(self, function)
        if function._session is not self:
            raise InvalidArgumentError(f"{function!r} is a function of session {function._session.name}")
        return function

    def estimate_jitted(self, function: Callable[..., Any], sample_inputs: Sequence[Any], sample_keywords: Mapping[str, Any] | None = None) -> Estimate:
        """Returns the resources that the function needs for arguments of these shapes and types, and whether they fit in addition to what the session
        uses now. The function is compiled, but not executed.

        Arguments may be ``jax.ShapeDtypeStruct`` objects, which take no memory. Arguments that are tensors of this session already are counted once.
        A program that the session cannot compile is not feasible, and the estimate's ``reason`` says why.

        Raises :class:`IncompatibleProgramError` for functions that cannot be exported, :class:`InvalidArgumentError` for ``sample_inputs`` that are
        neither a tuple nor a list, and errors of tracing unchanged.
        """
        self._need("xla", "estimate_jitted")
        sample = _sample(sample_inputs)
        remote = self._function(function)
        leaves, tree = remote.flatten(sample, dict(sample_keywords or {}))
        exported = remote.export(self.platform, tree, remote.avals(leaves, tree, described=True), cost=True)
        return estimated(self, leaves, exported)

    def execute_jitted(self, function: Callable[..., Any], sample_inputs: Sequence[Any], sample_keywords: Mapping[str, Any] | None = None) -> Execution:
        """Executes the function once with these arguments and waits for its end.

        Raises the failure of this execution: :class:`CompileError`, :class:`IncompatibleProgramError`, :class:`OutOfDeviceMemoryError`,
        :class:`ExecutionError`, or the error that ended the session. Failures of earlier operations that nothing has raised yet are left to the next
        :meth:`synchronise`.
        Raises :class:`InvalidArgumentError` for ``sample_inputs`` that are neither a tuple nor a list.
        """
        self._need("xla", "execute_jitted")
        sample = _sample(sample_inputs)
        import jax

        # What a read has raised is not raised again at the end of a block.
        try:
            self._native.finish()
        except (CompileError, ExecutionError, IncompatibleProgramError, InvalidArgumentError, OutOfDeviceMemoryError) as earlier:
            if not self._earlier:
                # The frames of the traceback refer to the session.
                self._earlier.append(earlier.with_traceback(None))
        made, tree = self._function(function).call(self, sample, dict(sample_keywords or {}))
        self._native.synchronise()
        tensors = [leaf for leaf in made if isinstance(leaf, RemoteTensor)]
        return Execution("jax_export_local", tensors, jax.tree_util.tree_unflatten(tree, made))

    def kernel(self, ptx: str | bytes, entry: str) -> RemoteKernel:
        """Returns a PTX kernel that runs on tensors of this session, such as ``session.kernel(ptx, "scale")(grid, block, x, 2.0)`` for
        ``scale(float *x, float a)``.

        ``ptx`` is PTX text, not the path of a file, and ``entry`` the name of the kernel in it. Raises :class:`InvalidArgumentError` in a session of
        another engine than ``"ptx"``, and when the text has no such entry.
        """
        self._need("ptx", "kernel")
        from .kernel import RemoteKernel

        return RemoteKernel(self, ptx, entry)

    def _need(self, engine: str, what: str) -> None:
        if self.engine != engine:
            raise InvalidArgumentError(f'{what} needs a session with engine="{engine}", and this one has "{self.engine}"')

    def load(self) -> dict[str, int]:
        """Returns the numbers of ``tensors``, ``programs`` and unfinished ``active_executions``, as well as ``used_bytes`` and ``limit_bytes``.

        The request is answered in the order of the operations. Raises the error that ended the session.
        """
        names = ("tensors", "used_bytes", "limit_bytes", "programs", "active_executions")
        return dict(zip(names, self._native.load()))

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received so far. A step whose results stay in the session transfers about a hundred bytes."""
        return Traffic(*self._native.traffic())

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{self!r} belongs to this process and cannot be pickled or copied: create another one where it is needed")

    def __repr__(self) -> str:
        return f"RemoteJaxSession({self.namespace}/{self.name}, {self.engine} on {self.device}, {self.model})"

    def _repr_html_(self) -> str:
        return (
            f"<code>RemoteJaxSession</code> <b>{escape(self.namespace)}/{escape(self.name)}</b> engine {escape(self.engine)} "
            f"on <code>{escape(self.device)}</code> ({escape(self.model)}), {self.limit_bytes:,} bytes"
        )
