"""What the tests of backends share."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a real family, made once for all workers. Skips where its package is not installed."""
    from tests.backends.real_tokenizers import REAL

    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "real-tokenizers"
    shared.mkdir(exist_ok=True)

    def folder(name: str) -> Path:
        place = shared / name
        if not place.is_dir():
            made = REAL[name].write(Path(tempfile.mkdtemp(dir=shared)))
            with contextlib.suppress(OSError):  # another worker was first
                made.rename(place)
        return place

    return folder
