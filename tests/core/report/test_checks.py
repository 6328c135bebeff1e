"""`report.checks`: exact checks that broke at a finding."""

from __future__ import annotations

import numpy as np

from flashback_core.report.checks import broken
from flashback_core.report.window import around


def found(report) -> dict[str, tuple[int, str, str]]:
    """Name to step, value before and value then."""
    window = around(report.table, report.bad)
    assert window is not None
    return {c.name: (c.step, c.before, c.at) for c in broken(window, report)}


def test_nan(with_nan) -> None:
    """The count of NaN gradients rises from 0 to 3 at the step; the loss follows one step later."""
    checks = found(with_nan)
    assert checks["group:attn_qkv:nonfinite"] == (431, "0", "3")
    assert checks["loss"][0] == 432


def test_what_breaks_together_is_one_line(with_nan) -> None:
    """Dozens of metrics that turn NaN at one step do not fill the page."""
    assert len(found(with_nan)) < 25


def test_weights_changed_outside(make_run, make_bad) -> None:
    """A write from outside the optimizer is named with what it hit."""
    table = make_run()
    table.column("exact:outside")[240] = 3
    assert found(make_bad(table, 240))["exact:outside"][2] == "weights and optimizer state changed"


def test_a_habit_is_no_finding(make_run, make_bad) -> None:
    """A run that writes to its weights at every step (averaging) is not accused of it."""
    table = make_run()
    table.column("exact:outside")[:] = 1
    assert "exact:outside" not in found(make_bad(table, 240))


def test_configuration_skips_and_still_groups(make_run, make_bad) -> None:
    """A changed configuration, a skipped step and a group that stands still are found."""
    table = make_run()
    table.column("exact:config_hash")[240:] = 0x99
    table.column("exact:step_skipped")[241] = 1
    table.column("group:head:update_norm")[242:] = 0
    checks = found(make_bad(table, 240))
    assert checks["exact:config_hash"] == (240, "000000001234abcd", "0000000000000099")
    assert checks["exact:step_skipped"][0] == 241
    assert checks["group:head:update_norm"][0] == 242


def test_a_healthy_step_breaks_nothing(make_run, make_bad) -> None:
    """Round a healthy step no check breaks."""
    assert found(make_bad(make_run(), 240, kind="outlier")) == {}


def test_bad_from_the_first_row(make_run, make_bad) -> None:
    """A run that starts with NaN has no value before, and says so."""
    table = make_run(30)
    table.column("nonfinite")[:] = 5
    assert found(make_bad(table, 0))["nonfinite"] == (0, "no step before", "5")
    assert np.isfinite(table.column("loss")).all()


def test_spoilt_updates_are_not_still(with_nan) -> None:
    """Where all updates are NaN, the norm of what is left is zero and says nothing."""
    column = with_nan.table.column("group:head:update_norm")
    column[432:] = 0.0
    assert "group:head:update_norm" not in found(with_nan)


def test_the_first_few_counts_of_a_step(make_run, make_bad) -> None:
    """Where everything turns NaN at once, some counts are listed and the others counted."""
    table = make_run()
    counts = [n for n in table.names if n.endswith("nonfinite")]
    for name in counts:
        table.column(name)[240:] = 7
    window = around(table, make_bad(table, 240).bad)
    rows = [c for c in broken(window, make_bad(table, 240, kind="nonfinite")) if c.at == "7"]
    assert len(rows) == 3
    assert rows[-1].meaning.endswith(f"{len(counts) - 3} more counts rose at this step")


def test_a_write_stands_above_what_it_led_to(make_run, make_bad) -> None:
    """At one step the cause comes first."""
    table = make_run(nan_from=240)
    table.column("exact:outside")[240] = 1
    found = broken(around(table, make_bad(table, 240).bad), make_bad(table, 240, kind="nonfinite"))
    assert found[0].name == "exact:outside"
