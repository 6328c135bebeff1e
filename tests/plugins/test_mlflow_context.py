"""The tag on every new MLflow run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins._mlflow_help import script

pytest.importorskip("mlflow")

CONTEXT = """
import mlflow, sys
from mlflow.tracking.context.registry import resolve_tags
print(resolve_tags().get("flashback.version"))
"""


@pytest.mark.parametrize(("off", "tag"), [("", "9.9"), ("1", "None")])
def test_runs_say_which_flashback_was_there(tmp_path: Path, off: str, tag: str) -> None:
    """MLflow finds our entry point and asks it, unless flashback is switched off."""
    info = tmp_path / "flashback_plugins-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flashback-plugins\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text(
        "[mlflow.run_context_provider]\n"
        "flashback = flashback_plugins._mlflow_context:FlashbackRunContext\n"
    )
    head = f"import os, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    head += f"os.environ['FLASHBACK_DISABLED'] = {off!r}\n"
    assert script(head + CONTEXT, tmp_path).strip() == tag
