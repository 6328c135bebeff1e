"""`report.advice`: commands to copy."""

from __future__ import annotations

import shlex

import pytest

from flashback_core.report.advice import commands, look_at, shell_word
from flashback_core.report.model import Finding


def finding(kind: str) -> Finding:
    """A finding of a kind."""
    return Finding(step=5, interval=(5, 5), kind=kind, confidence=0.9, severity="bad")


@pytest.mark.parametrize("source", ["runs/a b", "it's", "$(rm -rf x)", "a;b", "`x`", "-rf", "ü"])
def test_sources_are_quoted(source: str) -> None:
    """A shell reads the source back as one word that is no option."""
    words = shlex.split(shell_word(source))
    assert len(words) == 1
    assert words[0].removeprefix("./") == source
    assert not words[0].startswith("-")


@pytest.mark.parametrize("source", ["a\nb", "a\u202eb", "", "x" * 500, "a\x1b[2J"])
def test_sources_that_cannot_be_typed_give_no_command(source: str) -> None:
    """A path with control or direction marks is not put into a command."""
    assert shell_word(source) == ""


def test_the_steps_round_it(spiked, loss_only) -> None:
    """`show` gets about twenty rows on both sides, in the run's own steps."""
    assert "--steps 220:260" in commands(spiked, spiked.bad)[0].text
    assert "--steps 12000:14000" in commands(loss_only, loss_only.bad)[0].text


def test_restoring_needs_a_rewind(make_run, make_bad) -> None:
    """`restore` is offered only where the run kept what it takes, for the last good step."""
    without = commands(*(lambda r: (r, r.bad))(make_bad(make_run(), 240)))
    kept = make_bad(make_run(), 240, facts={"rewind": True})
    assert not any("restore" in c.text for c in without)
    assert any("restore runs/my-run --step 239" in c.text for c in commands(kept, kept.bad))


def test_the_batch_can_be_left_out(spiked) -> None:
    """A known batch can be skipped next time."""
    python = [c.text for c in commands(spiked, spiked.bad) if c.language == "python"]
    assert python == ["if (epoch, batch_index) == (1, 90):\n    continue"]


@pytest.mark.parametrize(
    "kind", ["lr_jump", "nonfinite", "bit_flip", "zero_update", "never_learns", "outlier"]
)
def test_known_kinds_say_where_to_look(kind: str) -> None:
    """Each known kind has a sentence of its own; a kind without one has none."""
    assert look_at(finding(kind))
    assert look_at(finding("qwertz")) == ""
