"""The public names are there, under the names that are documented."""

from __future__ import annotations

import flashback_core as fb


def test_every_public_name_loads() -> None:
    """Each name in `__all__` can be had and is listed by dir()."""
    for name in fb.__all__:
        assert getattr(fb, name) is not None
        assert name in dir(fb)


def test_the_contract_is_there() -> None:
    """The names that people outside rely on."""
    assert {
        "Recorder", "detect", "StepSketchIndex", "FirstBadStepDetector", "LossCurveDetector",
        "DetectionReport", "SketchSchema", "open_run", "faults",
    } <= set(fb.__all__)  # fmt: skip


def test_unknown_names_are_attribute_errors() -> None:
    """A misspelt name is an AttributeError, as with any module."""
    assert not hasattr(fb, "Recoder")


def test_no_module_hides_a_public_name() -> None:
    """Loading every module leaves the public names what they are, functions and classes."""
    import importlib
    import pkgutil

    for module in pkgutil.iter_modules(fb.__path__, "flashback_core."):
        importlib.import_module(module.name)
    assert callable(fb.detect)
    assert callable(fb.open_run)
