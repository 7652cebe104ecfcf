"""TLS outward, over a line: always verified, by whom the host trusts.

The host's bundle of authorities is what OpenSSL finds (``SSL_CERT_FILE`` and ``SSL_CERT_DIR``
included), and what the variables of other programs name beside it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress

from podbot.egress._lines import PIECE, Line
from podbot.egress._noting import unreachable

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


def trusting(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Whom the host trusts."""
    context = ssl.create_default_context()
    for name in _BUNDLES:
        if path := environment.get(name):
            with suppress(OSError):  # of TLS too; what is missing makes trust smaller, never larger
                context.load_verify_locations(path)
    context.options |= ssl.OP_NO_RENEGOTIATION  # receiving then never has to send
    # Python sets it with OpenSSL 3: whoever is between could then end an answer anywhere.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsLine:
    """A line that speaks TLS. Two tasks may use it: one only receives, the other only sends."""

    def __init__(self, line: Line, context: ssl.SSLContext, host: str):
        self._line = line
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def shake_hands(self) -> None:
        """Be sure of who is there; `Turned` if it is somebody else."""
        try:
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
                else:
                    return await self._flush()
        except ssl.SSLCertVerificationError as error:
            raise unreachable(f"TLS: its certificate is not good: {error.verify_message}") from None
        except (ssl.SSLError, OSError):
            raise unreachable("TLS did not come about") from None

    async def receive(self) -> bytes:
        """What is there, as soon as something is; nothing at the end."""
        while True:
            try:
                return self._tls.read(PIECE)
            except ssl.SSLWantReadError:
                # What TLS may want to say to what came goes along with what is sent next. To send
                # it here could wait for the other side, which may itself wait to be heard.
                await self._fill()
            except ssl.SSLZeroReturnError:
                return b""
            # An end that TLS does not tell of may be somebody else's: `ssl.SSLError`, an `OSError`.

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            part = rest[:PIECE]
            self._tls.write(part)
            rest = rest[len(part) :]
            await self._flush()

    async def _flush(self) -> None:
        if data := self._out.read():
            await self._line.send(data)

    async def _fill(self) -> None:
        data = await self._line.receive()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
