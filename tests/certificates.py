"""Certificates for tests of TLS, made anew each time by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(folder: Path, **holders: tuple[str, str]) -> Path:
    """An authority (``ca.pem``), and for each holder ``NAME.pem`` and ``NAME-key.pem``.

    A holder has a subject and what else it is known by: ``("/CN=x", "DNS:x.example")``.
    """

    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = "keyUsage=critical,keyCertSign"
    openssl("req", "-x509", *key, "-subj", "/CN=test authority", "-days", "2", "-addext", usage,
            "-keyout", "ca-key.pem", "-out", "ca.pem")  # fmt: skip
    for name, (subject, known_by) in holders.items():
        openssl("req", *key, "-subj", subject, "-keyout", f"{name}-key.pem", "-out", "req.pem")
        (folder / "ext").write_text(f"subjectAltName={known_by}\n")
        openssl("x509", "-req", "-in", "req.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem",
                "-days", "2", "-extfile", "ext", "-out", f"{name}.pem")  # fmt: skip
    return folder
