"""Compiled kernels: there with numba, never asked for in vain, never a reason to fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashback_core.detectors.compiled import kernels


def said(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


def test_there_with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba is installed the kernels load, once."""
    pytest.importorskip("numba")
    monkeypatch.delenv("FLASHBACK_BACKEND", raising=False)
    found = kernels(is_worth_it=True)
    assert found is not None
    assert kernels(is_worth_it=False) is found


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """``FLASHBACK_BACKEND=flat`` leaves numba out."""
    monkeypatch.setenv("FLASHBACK_BACKEND", "flat")
    assert kernels(is_worth_it=True) is None


def test_a_short_table_loads_no_numba() -> None:
    """To look at a few hundred steps, nobody waits for numba."""
    code = (
        "import sys, flashback_core as fb\n"
        "from flashback_core.testing import healthy_run\n"
        "fb.detect(healthy_run(300))\n"
        "print('numba' in sys.modules)"
    )
    assert said(code) == "False"


def test_no_folder_for_kernels() -> None:
    """Where no folder can be written, numpy does the work instead of a compiler at each start."""
    pytest.importorskip("numba")
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from flashback_core.detectors.compiled import kernels\n"
        "print(kernels(is_worth_it=True))"
    )
    assert said(code) == "None"
