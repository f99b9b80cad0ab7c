"""Functions that run in a session. Each combination of shapes, types and static values of the arguments is a program of its own."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from . import _native
from .errors import InvalidArgumentError
from .export import FLOAT0, Aval, Exported, aval_of, export, host_array, is_key, trace_context
from .operators import _run as run
from .tensor import RemoteTensor, upload

if TYPE_CHECKING:
    from .session import RemoteJaxSession


class _Static:
    """Wrapper of a static argument, which makes it part of the tree structure instead of a leaf."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


jax.tree_util.register_pytree_node(_Static, lambda static: ((), static), lambda static, _: static)


def _numbers(option: str, given: int | Iterable[int] | None) -> tuple[int, ...]:
    """Returns the numbers given as this option. Raises ``TypeError``, which names the option, for anything else than integers."""
    if given is None:
        return ()
    try:
        return tuple(map(operator.index, given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        raise TypeError(f"{option} must be an integer or a tuple of integers, not {given!r}") from None


def _places(numbers: Iterable[int], count: int) -> set[int]:
    """Returns the positions among ``count`` arguments that the numbers denote. Negative numbers count from the end."""
    return {number % count for number in numbers if -count <= number < count}


def _names(option: str, given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the names given as this option. Raises ``TypeError``, which names the option, for anything else than strings."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{option} must be a string or a tuple of strings, not {given!r}")
    return names


class Prepared:
    """A program in a session, and the positions of arguments and results that its calls need."""

    __slots__ = ("donated", "donated_leaves", "exported", "program", "without_values")

    def __init__(self, exported: Exported, program: _native.Program, donated: Sequence[int]) -> None:
        self.exported = exported
        self.program = program
        #: Positions of the donated arguments among all argument leaves.
        self.donated_leaves = donated
        places = {leaf: place for place, leaf in enumerate(exported.kept)}
        #: Positions of the donated arguments among the arguments that the program takes.
        self.donated = [places[leaf] for leaf in donated if leaf in places]
        #: Positions of the results of type ``float0``, which have no values.
        self.without_values = [place for place, (_, dtype, _) in enumerate(exported.outputs) if dtype == FLOAT0]


class Traced:
    """A function, and the programs made of it for one session."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Iterable[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
        donate_argnums: int | Iterable[int] | None = None,
        donate_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__).strip("<>") or "function"
        # Static and donated arguments declared in the user's own `jax.jit` apply to this function too, because tracing through that `jax.jit`
        # would reject the static ones and lose the donations.
        static = _numbers("static_argnums", static_argnums), _names("static_argnames", static_argnames)
        donated = _numbers("donate_argnums", donate_argnums), _names("donate_argnames", donate_argnames)
        _refuse_unknown(function, self._name, "static", *static)
        _refuse_unknown(function, self._name, "donate", *donated)
        numbers, names = _options_of(function, "static")
        self._static_numbers, self._static_names = _by_number_and_name(function, static[0] + numbers, static[1] + names)
        numbers, names = _options_of(function, "donate")
        self._donated, self._donated_names = _by_number_and_name(function, donated[0] + numbers, donated[1] + names)
        both = [*dict.fromkeys(name for name in self._static_names if name in self._donated_names)]
        both = both or [*dict.fromkeys(str(number) for number in self._static_numbers if number in self._donated)]
        if both:
            raise InvalidArgumentError(f"argument {', '.join(both)} of {self._name} is both static and donated: choose one, only arrays can be donated")
        self._programs: dict[Any, Prepared] = {}
        # Key and program of the previous call, with which the next call of a loop is compared first: hashing a key visits hundreds of parts,
        # most of which are the same objects in both calls.
        self._last: tuple[Any, Prepared] | None = None

    def flatten(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Any]:
        """Returns the leaves of the arguments and their tree structure, which contains the static values."""
        if self._static_numbers or self._static_names:
            static = _places(self._static_numbers, len(arguments))
            wrapped = tuple(self._static(place, value, arguments) if place in static else value for place, value in enumerate(arguments))
            keywords = {name: self._static(name, value, arguments) if name in self._static_names else value for name, value in keywords.items()}
            arguments = wrapped
        return jax.tree_util.tree_flatten((arguments, keywords))

    def _static(self, place: int | str, value: Any, arguments: Sequence[Any]) -> _Static:
        """Returns the wrapped value of a static argument, given its position or its keyword.

        Raises :class:`InvalidArgumentError`, which names the argument, for a value that is not hashable.
        """
        try:
            hash(value)
        except TypeError as error:
            name = place if isinstance(place, str) else self._parameter(place, arguments)
            raise InvalidArgumentError(f"argument {name} of {self._name} is static and cannot be hashed: {error}") from error
        return _Static(value)

    def donated_leaves(self, tree: Any) -> list[int]:
        """Returns the positions of the donated leaves."""
        arguments, keywords = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        donated = [arguments[place] for place in sorted(_places(self._donated, len(arguments)))]
        donated += [keywords[name] for name in self._donated_names if name in keywords]
        return sorted(jax.tree_util.tree_leaves(donated))

    def _parameter(self, place: int, arguments: Sequence[Any]) -> str:
        """Returns the name of the parameter that takes the argument at this position, or the position if it has no name of its own."""
        try:
            signature = inspect.signature(self._function)
            name = list(signature.bind_partial(*arguments).arguments)[place]
        except (TypeError, ValueError, IndexError):
            return str(place)
        return str(place) if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL else name

    def argument(self, tree: Any, place: int) -> str:
        """Returns the user's name of the leaf at this position, such as ``argument batch['x'] of step``."""
        arguments, keywords = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        (_, first, *rest), _ = jax.tree_util.tree_flatten_with_path((arguments, keywords))[0][place]
        name = getattr(first, "key", None)
        if name is None:
            name = self._parameter(first.idx, arguments)
        return f"argument {name}{jax.tree_util.keystr(tuple(rest))} of {self._name}"

    def avals(self, leaves: Sequence[Any], tree: Any, *, described: bool = False) -> tuple[Aval, ...]:
        """Returns shape, type and weak-type flag of each leaf. Raises as :func:`export.aval_of` does, and names the argument."""
        made: list[Aval] = []
        try:
            for leaf in leaves:
                made.append(leaf._aval if type(leaf) is RemoteTensor else aval_of(leaf, described=described))
        except (TypeError, InvalidArgumentError) as error:
            raise type(error)(f"{self.argument(tree, len(made))}: {error}") from None
        return tuple(made)

    def _refuse_given_twice(self, prepared: Prepared, leaves: Sequence[Any], tree: Any) -> None:
        """Raises :class:`InvalidArgumentError` if a donated tensor is also another argument."""
        for place in prepared.donated_leaves:
            for other in prepared.exported.kept:
                if other != place and type(leaves[place]) is RemoteTensor and leaves[other] is leaves[place]:
                    raise InvalidArgumentError(
                        f"{self.argument(tree, place)} is donated, and the same tensor is {self.argument(tree, other)}: "
                        "pass tensor.copy() as one of them, or do not donate it"
                    ) from None

    def _look_for_nan(self, session: RemoteJaxSession, made: Sequence[Any]) -> None:
        """Implements ``jax_debug_nans`` and ``jax_debug_infs``: waits for the results and checks their values in the session.

        Raises ``FloatingPointError``, as JAX does.
        """
        inexact = [tensor for tensor in made if type(tensor) is RemoteTensor and jax.numpy.issubdtype(tensor.dtype, np.inexact)]
        for option, what, found in (("jax_debug_nans", "nan", any_nan), ("jax_debug_infs", "inf", any_inf)):
            if inexact and getattr(jax.config, option) and bool(run(session, found, *inexact)):
                raise FloatingPointError(f"invalid value ({what}) in the results of {self._name}: called through jax.jit, JAX says in which operation")

    def export(self, platform: str, tree: Any, avals: Sequence[Any], *, cost: bool = False) -> Exported:
        """Exports the function for arguments of this structure and these shapes and types. Raises as :func:`export.export` does, and
        :class:`InvalidArgumentError` for arguments of 64 bits while ``jax_enable_x64`` is off.
        """
        # JAX would convert the values as it traces, and the program would not be one of the types of its arguments.
        for place, (_, dtype, _) in enumerate(avals):
            narrow = jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) and dtype != FLOAT0 else dtype
            if narrow != dtype:
                raise InvalidArgumentError(
                    f"{self.argument(tree, place)} is {dtype} and jax_enable_x64 is off: turn it on, or convert the argument to {narrow} first, "
                    "as session.put(tensor.numpy()) does"
                )

        def plain(*arguments: Any, **keywords: Any) -> Any:
            opened = [argument.value if isinstance(argument, _Static) else argument for argument in arguments]
            named = {name: value.value if isinstance(value, _Static) else value for name, value in keywords.items()}
            return self._function(*opened, **named)

        # JAX's messages then name the arguments and lines of the user's function.
        plain.__wrapped__ = self._function  # type: ignore[attr-defined]
        struct: Any = jax.ShapeDtypeStruct
        arguments, keywords = jax.tree_util.tree_unflatten(tree, [struct(shape, dtype, weak_type=weak) for shape, dtype, weak in avals])
        donated = sorted(_places(self._donated, len(arguments)))
        return export(plain, self._name, arguments, keywords, donated, [name for name in self._donated_names if name in keywords], platform, cost=cost)

    def _prepare(self, session: RemoteJaxSession, tree: Any, avals: tuple[Any, ...]) -> Prepared:
        key = (tree, avals, trace_context())
        # Read once, because another thread may replace it.
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        found = self._programs.get(key)
        if found is None:
            exported = self.export(session.platform, tree, avals)
            with session._watch.during("compile", exported.name):
                program = session._native.compile(exported.name, "stablehlo", exported.code)
            found = self._programs[key] = Prepared(exported, program, self.donated_leaves(tree))
        self._last = (key, found)
        return found

    def call(self, session: RemoteJaxSession, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Any]:
        """Calls the function in the session. Returns the leaves of the results and their tree structure. Every call must use the same session.

        The leaves are remote tensors, except gradients of type ``float0``, which have no values and are local arrays, as in JAX.
        """
        leaves, tree = self.flatten(arguments, keywords)
        avals = self.avals(leaves, tree)
        prepared = self._prepare(session, tree, avals)
        exported = prepared.exported
        passed: list[Any] = []
        for place in exported.kept:
            leaf = leaves[place]
            if type(leaf) is not RemoteTensor or leaf._session is not session or leaf._native is None:
                try:
                    leaf = put_leaf(session, leaf, avals[place])
                except (OverflowError, InvalidArgumentError) as error:
                    raise type(error)(f"{self.argument(tree, place)}: {error}") from None
            passed.append(leaf._native)
        try:
            results = session._native.execute(prepared.program, passed, len(exported.outputs), prepared.donated)
        except InvalidArgumentError:
            self._refuse_given_twice(prepared, leaves, tree)
            raise
        for place in prepared.donated_leaves:
            leaf = leaves[place]
            if type(leaf) is RemoteTensor:
                leaf._donate(self._name)
        made: list[Any] = list(map(RemoteTensor, repeat(session), results, exported.outputs))
        for place in prepared.without_values:
            made[place] = np.zeros(exported.outputs[place][0], FLOAT0)
        config: Any = jax.config
        if config.jax_debug_nans or config.jax_debug_infs:
            self._look_for_nan(session, made)
        return made, prepared.exported.tree


class RemoteFunction(Traced):
    """Result of :meth:`RemoteJaxSession.jit`: a function whose calls run in the session and return immediately."""

    def __init__(self, session: RemoteJaxSession, function: Callable[..., Any], *options: Any) -> None:
        super().__init__(function, *options)
        self._session = session
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns the function's results as :class:`RemoteTensor` objects, in the structure that the function gives them.

        Arguments may be arrays, numbers, remote tensors, and pytrees of them. Failures in the session are raised when a dependent value is read,
        and by :meth:`RemoteJaxSession.synchronise`.
        """
        made, tree = self.call(self._session, arguments, keywords)
        return jax.tree_util.tree_unflatten(tree, made)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self._name} on {self._session.device}>"


def _options_of(function: Callable[..., Any], kind: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the numbers and names of the arguments that the user's own ``jax.jit`` declares static (``kind="static"``) or donated
    (``kind="donate"``).
    """
    own = getattr(function, "_jit_info", None)
    numbers, names = tuple(getattr(own, f"{kind}_argnums", ())), tuple(getattr(own, f"{kind}_argnames", ()))
    if inspect.ismethod(function):
        # A bound method already has its first argument, which the numbers count.
        numbers = tuple(number if number < 0 else number - 1 for number in numbers if number != 0)
    return numbers, names


def _by_number_and_name(function: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Extends numbers and names so that a parameter that is static or donated by number is so by name too, and vice versa, as in ``jax.jit``."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    plain = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)]
    by_name = tuple(plain.index(name) for name in names if name in plain)
    # With ``*args``, negative numbers count from the end of each call's arguments.
    first = 0 if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) else -len(plain)
    by_number = tuple(plain[number] for number in numbers if first <= number < len(plain))
    return tuple(dict.fromkeys(numbers + by_name)), tuple(dict.fromkeys(names + by_number))


def _refuse_unknown(function: Callable[..., Any], name: str, kind: str, numbers: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Raises :class:`InvalidArgumentError` for numbers and names that denote no parameter of the function, as ``jax.jit`` does. ``kind`` is
    ``"static"`` or ``"donate"``.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Some functions of C have no signature.
        return
    kinds = {parameter.kind for parameter in parameters}
    positional = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)]
    named = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    for number in numbers:
        if inspect.Parameter.VAR_POSITIONAL not in kinds and not -len(positional) <= number < len(positional):
            count = f"{len(positional)} positional parameter{'' if len(positional) == 1 else 's'}"
            raise InvalidArgumentError(f"{kind}_argnums contains {number}, and {name} has {count}: {', '.join(positional) or 'none'}")
    for given in names:
        if given in positional and given not in named:
            number = positional.index(given)
            raise InvalidArgumentError(f"{kind}_argnames contains {given!r}, a positional-only parameter of {name}: use {kind}_argnums={number}")
        if given not in named and inspect.Parameter.VAR_KEYWORD not in kinds:
            those = ", ".join(named) or "none that can be named"
            raise InvalidArgumentError(f"{kind}_argnames contains {given!r}, which is not a parameter of {name}: it has {those}")


def any_nan(*arrays: Any) -> Any:
    return functools.reduce(jax.numpy.logical_or, [jax.numpy.isnan(array).any() for array in arrays])


def any_inf(*arrays: Any) -> Any:
    return functools.reduce(jax.numpy.logical_or, [jax.numpy.isinf(array).any() for array in arrays])


def put_leaf(session: RemoteJaxSession, leaf: Any, aval: Any) -> RemoteTensor:
    """Uploads a leaf of a pytree. Returns its tensor in the session; a tensor of this session is returned unchanged.

    Raises :class:`InvalidArgumentError` for tensors that were deleted or donated, or belong to another session.
    """
    if isinstance(leaf, RemoteTensor):
        if leaf._session is not session:
            raise InvalidArgumentError(f"{leaf!r} is of session {leaf._session.name}: download it first, with tensor.session.get(tensor)")
        leaf._handle()
        return leaf
    array, immutable = host_array(leaf, aval)
    shape, dtype, weak_type = aval
    if is_key(dtype):
        return upload(session, array, immutable=True, dtype=dtype, shape=shape)
    return upload(session, array, immutable=immutable, weak_type=weak_type)
