"""The gateway, or ``sahasra up``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    import pandas


class SahasraClient:
    """A gateway at this URL.

    The token is the argument's, or the first that there is of: ``SAHASRA_TOKEN``, the file named by ``SAHASRA_TOKEN_FILE``, the file
    that ``sahasra up`` wrote for this port, the kubeconfig's current user, the pod's service account. ``authority`` is the PEM of
    the authority that an ``https`` gateway is verified by, where the system does not know it; ``server_name`` is the name that its
    certificate is for, where the URL has another, as through a port-forward.

    Nothing is asked of the gateway yet. Raises :class:`ConfigurationError` when URL or token cannot be used.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        namespace: str = "default",
        authority: str | None = None,
        server_name: str | None = None,
    ) -> None:
        self._gateway = _native.Gateway(url, token, authority, server_name)
        self._token = token
        #: Where objects are created and looked for.
        self.namespace = namespace

    @property
    def url(self) -> str:
        """Where the gateway is."""
        return self._gateway.url

    def workers(self) -> Any:
        """The load of every worker, as ``GET /workers`` has it: a list of dicts.

        Raises :class:`AuthenticationError`, :class:`PermissionDeniedError` without the right to ``list`` ``gpuworkers``,
        :class:`ConnectionLostError`.
        """
        return json.loads(self._gateway.workers())

    def sessions(self, namespace: str | None = None) -> list[dict[str, Any]]:
        """The ``GpuSession``s of the namespace, as kubectl shows them with ``-o json``.

        Raises :class:`AuthenticationError`, :class:`PermissionDeniedError`, :class:`ConnectionLostError`.
        """
        return list(json.loads(self._gateway.sessions(namespace or self.namespace)).get("items", []))

    def burst(self, *, ptx: str, parameters: Any, **options: Any) -> pandas.DataFrame:
        """Runs one kernel over many sets of parameters on the whole pool, and waits: a DataFrame, a row for each.

        :func:`sahasra.burst.run` says what the options are. Raises :class:`InvalidArgumentError` for what does not fit together,
        :class:`ExecutionError` when the burst fails, :class:`WaitTimeoutError` when it takes longer than ``timeout_seconds``.
        """
        from .burst import run

        return run(self, ptx=ptx, parameters=parameters, **options)

    def __repr__(self) -> str:
        return f"SahasraClient({self.url!r}, namespace={self.namespace!r})"
