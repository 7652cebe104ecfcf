"""What is said when a request cannot be done: a kind that the host knows, and a message."""

from __future__ import annotations

import errno
import os


class Refused(Exception):
    """A request that cannot be done; becomes the error of its reply."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


ERRNO_KINDS = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.ENOTEMPTY: "not_empty",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ELOOP: "path_escape",
    errno.EXDEV: "path_escape",
    errno.ENXIO: "not_a_file",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "limit",
    errno.ENAMETOOLONG: "bad_path",
    errno.EINVAL: "bad_path",
    errno.EMFILE: "out_of_descriptors",
    errno.ENFILE: "out_of_descriptors",
}


def refused(error: OSError, subject: object) -> Refused:
    """The refusal that says what an OSError means for a path or a command."""
    kind = ERRNO_KINDS.get(error.errno or errno.EIO, "io")
    return Refused(kind, f"{subject}: {os.strerror(error.errno or errno.EIO)}")
