"""`python -m podbot` is the `podbot` command."""

from __future__ import annotations

import sys

from podbot.cli import main

sys.exit(main())
