"""Direct sessions on workers with TLS that share one certificate: `e2e/tests/python.rs` starts these workers."""

import os
import pathlib

import numpy as np
import pytest
from conftest import eventually

import sahasra

AUTHORITY = pathlib.Path(os.environ.get("SAHASRA_E2E_CA_FILE", ""))
NAME = os.environ.get("SAHASRA_E2E_SERVER_NAME", "")

pytestmark = pytest.mark.skipif(not NAME, reason="the workers of `sahasra up` speak no TLS: e2e/tests/python.rs starts some that do")


def direct(client, **options):
    return sahasra.RemoteJaxSession.create(client, vram="256Mi", engine="ptx", direct=True, **options)


def test_arrays_are_sent_directly_to_a_worker_over_tls(client):
    with direct(client, authority=AUTHORITY.read_text(), server_name=NAME) as session:
        there = np.arange(4 << 20, dtype=np.uint32)
        assert np.array_equal(session.put(there).numpy(), there)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        # The certificate is not valid for the host of the endpoint, which is an address.
        ({"authority": "ca.crt"}, "set server_name"),
        ({"authority": "ca.crt", "server_name": "elsewhere"}, "elsewhere.*set server_name"),
        ({"authority": "clients.crt", "server_name": NAME}, "set authority"),
        ({"authority": "ca.crt", "server_name": "no name"}, "no name"),
    ],
)
def test_an_unverified_certificate_is_an_error_that_names_the_missing_arguments(client, options, remedy):
    options = {**options, "authority": AUTHORITY.with_name(options["authority"]).read_text()}
    with pytest.raises(sahasra.ConfigurationError, match=remedy):
        direct(client, **options)
    # The session object that was created is deleted.
    assert eventually(lambda: not client.sessions())
