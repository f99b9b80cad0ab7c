"""A session: a slice of one device of the cluster."""

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
from .elements import element_type
from .errors import CompileError, ExecutionError, ForkedProcessError, IncompatibleProgramError, InvalidArgumentError, NotFoundError, OutOfDeviceMemoryError, SahasraError
from .progress import Report, Watch, reporter
from .tensor import RemoteTensor

if TYPE_CHECKING:
    from .client import SahasraClient
    from .jit import RemoteFunction, Traced
    from .kernel import RemoteKernel


#: How long a session that is closed is waited for; what still runs then ends with the object.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True)
class Estimate:
    """What a function takes to run in a session; nothing was executed."""

    #: It fits.
    feasible: bool
    #: Why not; empty where it does.
    reason: str
    #: Bytes of device memory: arguments, results, results in the place of arguments, what is needed in between, code.
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    code_bytes: int
    #: Floating-point operations of one execution; None where the plugin does not count them.
    flops: float | None
    #: Bytes that the session may use, and that its tensors use now.
    limit_bytes: int
    used_bytes: int
    #: How long it took to compile, and whether it was compiled before.
    compile_milliseconds: int
    cached: bool

    @property
    def total_bytes(self) -> int:
        """What an execution takes in all, its arguments included."""
        return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temporary_bytes


class Traffic(NamedTuple):
    """Bytes that went between this process and a session."""

    #: There.
    sent_bytes: int
    #: Back.
    received_bytes: int


@dataclass(frozen=True)
class Execution:
    """One execution of a function."""

    #: How it ran: ``jax_export_local`` is exported by the JAX of this process and executed by the session's plugin.
    runtime_mode: str
    #: The results, in the order of their leaves.
    output_tensors: list[RemoteTensor]
    #: The results, put together as the function does.
    output: Any


class Made(NamedTuple):
    """A ``GpuSession`` that this process made, and gives back."""

    gateway: _native.Gateway
    namespace: str
    name: str
    #: Names come again.
    uid: str
    #: What was forked from it has the session's memory, but not the session.
    process: int

    def end(self, native: _native.Session) -> None:
        """Frees what is there, and deletes the object, which ends what still runs there. Raises what :meth:`RemoteJaxSession.close` does."""
        if os.getpid() != self.process:
            return
        try:
            was_there, failure = native.close(CLOSE_SECONDS)
        except BaseException:
            # A signal: what waits for a step ends with the object.
            with contextlib.suppress(SahasraError):
                self.gateway.delete_session(self.namespace, self.name)
            raise
        # Of one that was over before, the name may be another's by now.
        if was_there or self._is_there():
            self.gateway.delete_session(self.namespace, self.name)
        if failure is not None:
            raise failure

    def _is_there(self) -> bool:
        """Whether the object of this name is still this one, and not another's that came after it."""
        try:
            return bool(json.loads(self.gateway.session(self.namespace, self.name))["metadata"]["uid"] == self.uid)
        except NotFoundError:
            return False

    def give_back(self, native: _native.Session) -> None:
        """As :meth:`end`, but suppresses errors, for finalizers: the session then ends by its own timeouts."""
        with contextlib.suppress(SahasraError):
            self.end(native)


class RemoteJaxSession:
    """A slice of one device, with tensors that stay there and functions that run there. Made by :meth:`create`.

    It is a context manager: at its end what was asked for has happened, or why it has not is raised: the first failure that was not raised
    before, or what ended the session (:class:`WorkerLostError`, :class:`LeaseExpiredError`, :class:`SessionClosedError`) where something was
    asked for since the last value or :meth:`synchronise` and no call has raised that. Everything there is freed and the device given back. An
    exception in the block ends what still runs, and is the one that is raised. The program's end closes the session as well, and so does the
    last reference to it and its tensors.
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
        self._end: weakref.finalize[[_native.Session], RemoteJaxSession] | None = None
        #: Name of the ``GpuSession``, and its namespace.
        self.name = name
        self.namespace = namespace
        #: Where it is: ``worker/device``.
        self.device = device
        self._watch = Watch(native, device, reporter(progress))
        # A failure of an earlier operation, which `execute_jitted` found and did not raise.
        self._earlier: SahasraError | None = None
        # `close` was called.
        self._is_closed = False
        # Functions of `operators`, by their names.
        self._operators: dict[Any, Traced] = {}
        #: Its engine (``xla`` or ``ptx``), the engine's platform and version, the device's model, the limit in bytes, the highest
        #: version of StableHLO that it reads (empty where it does not say).
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
        """Asks for ``vram`` on a device of the class (any where None), waits until there is room, and connects.

        ``vram`` is an amount as Kubernetes writes it, such as ``"512Mi"``; ``engine`` is ``"xla"`` for functions of JAX, ``"ptx"`` for
        kernels. The session ends by itself after ``idle_timeout_seconds`` in which nothing was asked of it, and after ``ttl_seconds``
        whatever happens. After a broken connection what is there is kept for ``grace_seconds``.

        ``direct`` connects straight to the worker, inside the cluster. Where workers speak TLS, ``authority`` is the PEM of the
        authority that their certificate is verified by, and ``server_name`` the name that it is for, where that is not the host of the
        session's endpoint: one certificate may serve all workers.

        Arrays are compressed on their way, and come out bit for bit as they were. ``compression`` is ``"adaptive"`` to do so where a
        slow line makes it worth while, as measured as it goes; ``"always"`` where it makes an array shorter, for a line on which bytes
        cost more than time; ``"never"`` for neither direction.

        A compilation or an upload that takes more than half a second shows on a line of stderr, on a terminal and in a notebook.
        ``progress`` is True to have it anywhere, False for silence, or is called with a :class:`Progress` a few times a second,
        from a thread of its own.

        Raises :class:`CapacityError` when no device has room within ``wait_seconds``: the message says why for each.
        :class:`InvalidArgumentError` when the API server refuses the session, :class:`AuthenticationError` or
        :class:`PermissionDeniedError` when it refuses the caller, :class:`ConnectionLostError` when there is no answer,
        :class:`ConfigurationError` when a worker's certificate is not accepted.
        """
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
            session._end = weakref.finalize(session, session._made.give_back, native)
            return session
        except BaseException:
            # The caller has no reference with which to end it.
            client._gateway.delete_session(namespace, name)
            raise

    def __enter__(self) -> RemoteJaxSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # The exception of the block is the one that is raised.
            with contextlib.suppress(SahasraError):
                self.close()
            return
        if not self._is_closed:
            try:
                with contextlib.suppress(ForkedProcessError):
                    self._native.finish()
            except BaseException:
                earlier, self._earlier = self._earlier, None
                with contextlib.suppress(SahasraError):
                    self.close()
                if earlier is not None:
                    raise earlier
                raise
        self.close()

    def close(self) -> None:
        """Frees everything that is there and gives the device back, within about a second: what still runs then is ended. It may be called
        again. In a process that was forked from the one that made the session it does nothing.

        Raises the first failure of an operation that was not reported before, when the device was given back; nothing about the session itself, which
        is over either way; :class:`ConnectionLostError` when the gateway does not answer.
        """
        self._is_closed = True
        if self._made is None or self._end is None:
            with contextlib.suppress(ForkedProcessError):
                _, failure = self._native.close()
                if failure is not None:
                    raise failure
        elif self._end.alive:
            # When it is interrupted the program's end is another occasion.
            try:
                self._made.end(self._native)
            except SahasraError:
                self._end.detach()
                raise
            self._end.detach()
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            raise earlier

    def synchronise(self) -> None:
        """Waits for every operation so far.

        Raises the first failure since the last time, with the name of its operation, and what ended the session if it has ended:
        :class:`SessionClosedError`, :class:`LeaseExpiredError`, :class:`WorkerLostError`, :class:`ConnectionLostError`.
        """
        earlier, self._earlier = self._earlier, None
        if earlier is None:
            self._native.synchronise()
            return
        with contextlib.suppress(SahasraError):
            self._native.synchronise()
        raise earlier

    def put(self, tree: Any) -> Any:
        """The pytree with its arrays and numbers as :class:`RemoteTensor`s, of the same shapes and of the types that JAX gives them.

        It does not wait until they are there: that there is no room for one of them (:class:`OutOfDeviceMemoryError`) is told by the next
        :meth:`synchronise` and by each look at a value that depends on it. Raises ``TypeError`` for leaves that are no arrays.
        """
        import jax

        from .export import aval_of
        from .jit import put_leaf

        return jax.tree_util.tree_map(lambda leaf: put_leaf(self, leaf, aval_of(leaf)), tree)

    def get(self, tree: Any) -> Any:
        """The pytree with its remote tensors as arrays of numpy's, of the same shapes and types; keys of random numbers, which numpy does not
        have, as those of JAX. Other leaves stay what they are.

        All are asked for before the first is waited for. Raises what went wrong in what they depend on.
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
        """Zeros of this shape and type, made there.

        Raises :class:`InvalidArgumentError` for a shape that is none and a type that no session has; that there is no room is told as by :meth:`put`.
        """
        try:
            dimensions = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        except TypeError:
            raise InvalidArgumentError(f"shape={shape!r}: a whole number or several of them are taken") from None
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
        """``jax.jit`` that runs here: ``f = session.jit(f)``, ``@session.jit``, ``@session.jit(static_argnums=1)``.

        The function is traced by the JAX of this process once for each shape, type and static value of its arguments, and its results
        are :class:`RemoteTensor`s of the shapes and types that ``jax.jit`` gives. ``grad``, ``vmap`` and the like go inside, donated
        tensors end. What is static or donated in a function that was through ``jax.jit`` already is so here.

        Raises :class:`InvalidArgumentError` in a session of another engine. Calls raise :class:`IncompatibleProgramError` for what cannot be
        exported, such as callbacks, :class:`InvalidArgumentError` for tensors that were deleted, donated or are of another session, and errors
        of tracing as they are. What goes wrong there (:class:`CompileError`, :class:`OutOfDeviceMemoryError`, :class:`ExecutionError`,
        :class:`IncompatibleProgramError` for a call that the plugin does not have) comes with the next look at a value.
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
        """What the function takes for arguments of these shapes and types, and whether that fits beside what is there now. It is compiled,
        not executed.

        Arguments may be ``jax.ShapeDtypeStruct``s, which take no memory. What is a tensor of this session already is counted once. A program
        that the session cannot compile is not feasible, and the estimate's ``reason`` says why. Raises :class:`IncompatibleProgramError` for
        what cannot be exported, and errors of tracing as they are.
        """
        self._need("xla", "estimate_jitted")
        remote = self._function(function)
        leaves, tree = remote.flatten(tuple(sample_inputs), dict(sample_keywords or {}))
        exported = remote.export(self.platform, tree, remote.avals(leaves, tree, described=True), cost=True)
        try:
            with self._watch.during("compile", exported.name):
                _, costs = self._native.compile_and_ask(exported.name, "stablehlo", exported.code)
        except (IncompatibleProgramError, CompileError, OutOfDeviceMemoryError) as error:
            _, used, limit, _, _ = self._native.load()
            return Estimate(False, str(error), 0, 0, 0, 0, 0, exported.flops, limit, used, 0, False)
        cached, milliseconds, _, arguments, outputs, aliased, temporary, code, flops, limit, used = costs
        needed = arguments + outputs - aliased + temporary
        here = {id(leaf): leaf.nbytes for leaf in (leaves[place] for place in exported.kept) if isinstance(leaf, RemoteTensor) and leaf._session is self}
        more = needed - sum(here.values())
        reason = ""
        if needed > limit:
            reason = f"an execution takes {needed:,} bytes, and the session may use {limit:,}: ask for more vram"
        elif used + more > limit:
            reason = (
                f"an execution takes {more:,} bytes more, and {used:,} of the {limit:,} that the session may use are taken: "
                "delete tensors, donate arguments, or ask for more vram"
            )
        return Estimate(
            not reason, reason, arguments, outputs, aliased, temporary, code, exported.flops if flops is None else flops, limit, used, milliseconds, cached
        )

    def execute_jitted(self, function: Callable[..., Any], sample_inputs: Sequence[Any], sample_keywords: Mapping[str, Any] | None = None) -> Execution:
        """Executes the function once with these arguments, and waits until it has.

        Raises what went wrong with it: :class:`CompileError`, :class:`IncompatibleProgramError`, :class:`OutOfDeviceMemoryError`,
        :class:`ExecutionError`, or what ended the session. What went wrong before stays for the next :meth:`synchronise`.
        """
        self._need("xla", "execute_jitted")
        import jax

        try:
            self.synchronise()
        except (CompileError, ExecutionError, IncompatibleProgramError, InvalidArgumentError, OutOfDeviceMemoryError) as earlier:
            # Its frames refer to the session.
            self._earlier = earlier.with_traceback(None)
        made, tree = self._function(function).call(self, tuple(sample_inputs), dict(sample_keywords or {}))
        self._native.synchronise()
        tensors = [leaf for leaf in made if isinstance(leaf, RemoteTensor)]
        return Execution("jax_export_local", tensors, jax.tree_util.tree_unflatten(tree, made))

    def kernel(self, ptx: str, entry: str) -> RemoteKernel:
        """A kernel of PTX text on this session's tensors: ``session.kernel(ptx, "saxpy")(grid, block, x, y, 2.0)``.

        Needs a session of ``engine="ptx"``. Raises :class:`InvalidArgumentError` when the text has no such entry.
        """
        self._need("ptx", "kernel")
        from .kernel import RemoteKernel

        return RemoteKernel(self, ptx, entry)

    def _need(self, engine: str, what: str) -> None:
        if self.engine != engine:
            raise InvalidArgumentError(f'{what} needs a session with engine="{engine}", and this one has "{self.engine}"')

    def load(self) -> dict[str, int]:
        """How many ``tensors`` and ``programs`` are there, ``used_bytes`` and ``limit_bytes``, and ``active_executions``, which have not ended.

        It is answered in the order of the operations. Raises what ended the session.
        """
        names = ("tensors", "used_bytes", "limit_bytes", "programs", "active_executions")
        return dict(zip(names, self._native.load()))

    @property
    def traffic(self) -> Traffic:
        """What went there and came back so far: a step that leaves its results there moves a hundred bytes or so."""
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
