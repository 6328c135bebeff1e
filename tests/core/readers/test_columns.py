"""Names, dtypes and order of the columns of other tools."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.errors import SourceError
from flashback_core.readers.columns import canonical, choose_run, dtype_of, table_of


def test_canonical_names() -> None:
    """The first alias that is there counts, whatever its case and spaces."""
    assert canonical(["Train/Loss", "total_loss", " LR "]) == {"Train/Loss": "loss", " LR ": "lr"}
    assert canonical(["val_loss", "x"]) == {}


def test_dtypes() -> None:
    """Metrics of any group have the dtype of their kind; other names have none."""
    assert dtype_of("group:router:nonfinite") == dtype_of("nonfinite") == "i8"
    assert dtype_of("group:router:grad_norm") == dtype_of("grad_norm") == "f4"
    assert dtype_of("exact:batch_hash") == "u8"
    assert dtype_of("apples") is dtype_of("group:x:apples") is None


def test_choose_run() -> None:
    """One run needs no name; several do."""
    assert choose_run(["a"], None, "x") is None
    assert choose_run(["a"], "a", "x") == "a"
    with pytest.raises(SourceError, match=r"x: run 'b' is not in it.*one of: a"):
        choose_run(["a"], "b", "x")
    with pytest.raises(SourceError, match=r"x: it holds 7 runs; .*one of: 0, 1, 2, 3, 4, …"):
        choose_run([str(i) for i in range(7)], None, "x")


def test_our_own_name_beats_an_alias() -> None:
    """A column ``loss`` is the loss though ``train_loss`` is there too."""
    columns = {"train_loss": np.array([9.0]), "loss": np.array([1.0])}
    table = table_of([0], columns, source="x")
    assert table["loss"].tolist() == [1.0]
    assert table["train_loss"].tolist() == [9.0]


def test_steps_beyond_all_measure_are_left_out() -> None:
    """Steps that are NaN, infinite or do not fit int64 leave their rows out."""
    steps = [np.nan, 3.0, -np.inf, 1e300, 1.0]
    assert table_of(steps, {"loss": np.arange(5.0)}, source="x")["loss"].tolist() == [4.0, 1.0]


def test_an_infinite_count_is_not_known() -> None:
    """Counts of others may be infinite; here they are NaN, while norms stay infinite."""
    columns = {"nonfinite": np.array([1.0, np.inf]), "grad_norm": np.array([1.0, np.inf])}
    table = table_of([0, 1], columns, source="x")
    np.testing.assert_array_equal(table["nonfinite"], [1.0, np.nan])
    np.testing.assert_array_equal(table["grad_norm"], [1.0, np.inf])


def test_exact_fields_keep_their_dtype() -> None:
    """What does not fit an exact field becomes its absent value."""
    columns = {
        "loss": np.zeros(4),
        "exact:epoch": np.array([1.0, np.nan, np.inf, 2.0**40]),
        "exact:batch_hash": np.array([1, -1, 2**62, 3]),
        "exact:loss_scale": np.array([1, 2, 3, 4]),
    }
    table = table_of(np.arange(4), columns, source="x")
    assert table["exact:epoch"].dtype == np.int32
    assert table["exact:epoch"].tolist() == [1, -1, -1, -1]
    assert table["exact:batch_hash"].dtype == np.uint64
    assert table["exact:batch_hash"].tolist() == [1, 0, 2**62, 3]
    assert table["exact:loss_scale"].dtype == np.float64
