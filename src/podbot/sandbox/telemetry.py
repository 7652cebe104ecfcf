"""Hosts to which agents and their tools report about their users: contacted without being asked to.

No sandbox reaches one unless it is named itself, and nobody is told of each attempt: they are
counted. Agents work without them.
"""

from __future__ import annotations

HOSTS: tuple[str, ...] = (
    "*.amplitude.com",
    "*.datadoghq.com",
    "*.mixpanel.com",
    "*.posthog.com",
    "*.rum.aliyuncs.com",
    "*.segment.io",
    "*.sentry.io",
    "*.statsig.com",
    "*.statsigapi.net",
    "ab.chatgpt.com",
    "browser-intake-datadoghq.com",
    "copilot-telemetry.githubusercontent.com",
    "copilot-telemetry-service.githubusercontent.com",
    "dc.services.visualstudio.com",
    "default.exp-tas.com",
    "featuregates.org",
    "metrics.cursor.sh",
    "play.googleapis.com",
    "statsig.anthropic.com",
)
"""They as words of an allowlist: a name, or what is below one."""


def is_telemetry(host: str) -> bool:
    """Whether a host, in its one spelling, is one of these."""
    return any(
        host.endswith(word.removeprefix("*")) if word.startswith("*.") else host == word
        for word in HOSTS
    )
