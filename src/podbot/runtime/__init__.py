"""The runtime: sessions, the event bus, and structured logs.

`podbot.runtime.session` has `Session`, its slices and reducers; `podbot.runtime.events` the bus
and the events; `podbot.runtime.logging` the loggers. Nothing is imported here, so that whoever
needs one of them does not pay for the others.
"""
