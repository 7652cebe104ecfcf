"""TLS to an engine: always verified, with the certificates that Docker's variables name.

``DOCKER_CERT_PATH`` is a folder that may hold ``ca.pem`` (whom to trust), ``cert.pem`` and
``key.pem`` (who we are). There is no way to skip verification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podbot.engine.endpoints import Endpoint
from podbot.errors import ConfigError, Kind

if TYPE_CHECKING:
    import ssl

VERIFY = "DOCKER_TLS_VERIFY"
FOLDER = "DOCKER_CERT_PATH"


def wanted(endpoint: Endpoint, environment: Mapping[str, str]) -> bool:
    """Whether to speak TLS with an endpoint."""
    if endpoint.scheme == "tcp":
        return bool(environment.get(VERIFY))  # any text, as Docker reads it
    return endpoint.scheme == "https"


def context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """The context for it."""
    import ssl

    folder = environment.get(FOLDER, "")
    if not folder and environment.get(VERIFY):
        folder = os.path.expanduser("~/.docker")
    authority, certificate, key = (
        os.path.join(folder, name) for name in ("ca.pem", "cert.pem", "key.pem")
    )
    try:
        known = authority if folder and os.path.exists(authority) else None
        made = ssl.create_default_context(cafile=known)
        if folder and os.path.exists(certificate):
            made.load_cert_chain(certificate, key)
    except OSError as error:  # every error of TLS is one
        raise ConfigError(
            f"the certificates in {folder} cannot be used: {error.strerror or error}",
            kind=Kind.INVALID,
            remedy=f"{FOLDER} is a folder with ca.pem, cert.pem and key.pem, readable by you",
            field=FOLDER,
        ) from error
    return made
