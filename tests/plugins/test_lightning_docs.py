"""The tables of docs/lightning.md name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")
FILES = sorted(Path(__file__).parent.glob("test_lightning*.py"))
CODE = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not re.fullmatch(r".*\|\s*test[^|]*\|", line)
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_every_row_names_a_test_that_exists(row: list[str]) -> None:
    """The last cell of each row names files, test functions or modes, and all are there."""
    names = re.findall(r"`([^`]+)`", row[-1])
    assert names, row
    for name in names:
        assert _exists(name), f"{name} of the row {row[0]!r}"


def _exists(name: str) -> bool:
    if name.endswith(".py"):
        return (ROOT / name).exists() or (Path(__file__).parent / name).exists()
    function, _, case = name.partition("[")
    if function.startswith("test_"):
        has_case = not case or f'"{case.rstrip("]")}"' in CODE
        return f"def {function}(" in CODE and has_case
    modes = (Path(__file__).parent / "test_lightning_modes.py").read_text(encoding="utf-8")
    return f'    "{name}": Mode(' in modes


def test_there_are_rows() -> None:
    """The tables were found."""
    assert len(ROWS) > 35
