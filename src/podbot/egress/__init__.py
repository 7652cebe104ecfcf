"""What may leave a sandbox: an allowlist of words, and the proxy of the host that keeps to it.

    from podbot.egress import Proxy, Rules

    with Proxy(Rules.of("pypi.org", "*.example.org:443"), on_record=print) as proxy:
        proxy.serve(listener)  # a listening socket, of this network or of a sandbox's own

Knows no agent and no sandbox: it is given sockets, and is of use alone. Names here are the public
API; modules below are not. Nothing is loaded until it is used.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.egress.broker import Broker, Route, built_in
    from podbot.egress.credentials import FromCommand, FromFile, FromVariable, Source
    from podbot.egress.names import HOST_NAME
    from podbot.egress.presets import PRESETS
    from podbot.egress.proxy import Proxy, ProxyLimits
    from podbot.egress.records import Record, Verdict
    from podbot.egress.route_words import route_of
    from podbot.egress.rules import Judgement, Rule, Rules
    from podbot.errors import EgressError

__all__ = [
    "HOST_NAME",
    "PRESETS",
    "Broker",
    "EgressError",
    "FromCommand",
    "FromFile",
    "FromVariable",
    "Judgement",
    "Proxy",
    "ProxyLimits",
    "Record",
    "Route",
    "Rule",
    "Rules",
    "Source",
    "Verdict",
    "built_in",
    "route_of",
]

# Where public names live. A new one goes here, above, and into __all__.
_HOMES = {
    "podbot.egress.broker": "Broker Route built_in",
    "podbot.egress.credentials": "FromCommand FromFile FromVariable Source",
    "podbot.egress.names": "HOST_NAME",
    "podbot.egress.presets": "PRESETS",
    "podbot.egress.proxy": "Proxy ProxyLimits",
    "podbot.egress.records": "Record Verdict",
    "podbot.egress.route_words": "route_of",
    "podbot.egress.rules": "Judgement Rule Rules",
    "podbot.errors": "EgressError",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
