"""The recorded data set that lies in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashback_core.forensics.tables import LabelledRun, load_runs

DATA = Path(__file__).parents[2] / "data" / "forensics"


@pytest.fixture(scope="session")
def data() -> Path:
    """Its folder."""
    return DATA


@pytest.fixture(scope="session")
def runs() -> list[LabelledRun]:
    """Its runs and twins."""
    return list(load_runs(DATA, twins=True))
