"""The default schema is the contract: 128 metrics under known names."""

from __future__ import annotations

import pytest

from flashback_core.errors import SchemaError
from flashback_core.schema import (
    BODY_GROUPS,
    EXACT_FIELDS,
    GROUP_METRICS,
    N_BINS,
    TRANSFORMER_GROUPS,
    SketchSchema,
)

SCALARS = (
    "loss", "lr", "grad_norm", "grad_max", "update_norm", "update_max", "param_norm", "nonfinite",
    "step_wall_ms", "batch_id_mean", "batch_uniq_frac", "grad_norm_p10", "grad_norm_p25",
    "grad_norm_p50", "grad_norm_p75", "grad_norm_p90",
)  # fmt: skip
PER_GROUP = (
    "grad_norm", "max_abs", "var", "sign_flip", "nonfinite", "update_norm", "update_max",
    "update_nonfinite", "param_norm", "upd_param_ratio",
)  # fmt: skip


@pytest.mark.parametrize("groups", [TRANSFORMER_GROUPS, BODY_GROUPS], ids=["attention", "depth"])
def test_all_128_names(groups: tuple[str, ...]) -> None:
    """Every metric by name and in order, with and without attention."""
    expected = (
        *SCALARS,
        *(f"group:{g}:{m}" for g in groups for m in PER_GROUP),
        *(f"hist_grad:{i}" for i in range(16)),
        *(f"hist_update:{i}" for i in range(16)),
    )
    schema = SketchSchema(groups)
    assert schema.names == expected
    assert len(schema) == 128


def test_any_number_of_groups() -> None:
    """Three groups give 16 + 30 + 32 metrics."""
    assert len(SketchSchema(("router", "experts", "rest"))) == 16 + 3 * len(GROUP_METRICS) + 32


def test_every_metric_is_described() -> None:
    """Unit, merge rule, phase and meaning stand beside each name; counts are integers on disk."""
    for metric in SketchSchema().metrics:
        assert metric.unit
        assert metric.doc.endswith(".")
        assert metric.merge in {"sum", "max", "root_sum_square", "weighted", "local"}
        assert metric.phase in {"before", "after"}
        assert (metric.dtype == "i8") == (metric.unit == "count")


def test_unknown_metric_names_close_ones() -> None:
    """A misspelt name says what is close to it."""
    with pytest.raises(SchemaError, match=r"'grad_nrm'.*128 metrics.*close to it: grad_norm"):
        SketchSchema().position("grad_nrm")


def test_bad_groups_are_refused() -> None:
    """Two groups of one name, and names that would break a metric's name."""
    with pytest.raises(SchemaError, match="twice"):
        SketchSchema(("a", "a"))
    with pytest.raises(SchemaError, match="':'"):
        SketchSchema(("a:b",))


def test_fingerprint_tells_schemas_apart() -> None:
    """Equal schemas have one fingerprint, others another."""
    assert SketchSchema().fingerprint == SketchSchema(TRANSFORMER_GROUPS).fingerprint
    assert SketchSchema().fingerprint != SketchSchema(BODY_GROUPS).fingerprint


def test_exact_fields_are_no_metrics() -> None:
    """Exact fields have columns of their own, none of which is a metric."""
    columns = [f.column for f in EXACT_FIELDS]
    assert len(set(columns)) == len(columns)
    assert not set(columns) & set(SketchSchema().names)
    assert N_BINS == 16
