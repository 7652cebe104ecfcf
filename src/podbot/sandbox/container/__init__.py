"""The container backend: the guest in a container of Podman or Docker, reached past the engine."""
