"""The guest: the one program that runs inside every sandbox and does what the host asks.

It executes commands, holds terminals, keeps a Python kernel and touches files. Only the standard
library, Python 3.8 or newer, one thread, one event loop; anything that could take long (walking,
matching, removing a tree) happens in a forked worker, so that one request cannot hold up the
others. It is not trusted by the host, and it trusts the host.

It must not import the rest of podbot: this folder is shipped alone (`podbot.sandbox.boot`). Its
modules import each other when they are loaded and never later: once there is a workspace, what runs
in it may be able to write where they came from. Nor do they import `typing`, which would cost every
start several milliseconds: type checkers take the name ``TYPE_CHECKING`` for true, and annotations
are never evaluated. The plain `socket` would cost as much, so they take the one below it. This file
is empty for the same reason: whoever needs one part loads that.

Reading order: `wire`, `loop`; `families`, `streams`, `spawning`, `users`, `processes`,
`terminals`;
`kernel`; `files`, `drafts`, `trees`; `globs`, `search`, `patterns`, `ripgrep`; `workers`,
`file_requests`, `requests`, `main`.
"""
