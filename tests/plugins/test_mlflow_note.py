"""Our section in a run's description."""

from __future__ import annotations

import pytest

from flashback_plugins import _mlflow_note as note

VERDICT = {"status": "bad", "first_bad_step": 37}


@pytest.mark.parametrize("text", ["", "mine", "mine\n", "a\n\n<!-- flashback:begin --> cut"])
def test_a_note_keeps_what_the_user_wrote(text: str) -> None:
    """Our section comes behind the user's text, and a second time in place of the first."""
    once = note.with_section(text, VERDICT, "because", "#link")
    twice = note.with_section(once, VERDICT | {"first_bad_step": 40}, "because", "#link")
    assert once.startswith(text)
    assert "step 37" in once
    assert twice == once.replace("step 37", "step 40")


def test_a_note_keeps_what_the_user_wrote_behind() -> None:
    """Text behind our section stays behind it."""
    once = note.with_section("before", VERDICT, "", None) + "\n\nbehind"
    assert note.with_section(once, VERDICT, "", None) == once


def test_a_note_never_grows_past_the_limit() -> None:
    """Where there is little room the section is shortened, where there is none left out."""
    assert len(note.with_section("x" * 7700, VERDICT, "y" * 1000, "#link")) < 8000
    assert "step 37" in note.with_section("x" * 7700, VERDICT, "y" * 1000, "#link")
    assert note.with_section("x" * 7990, VERDICT, "", "#link") == "x" * 7990


def test_a_note_shows_signs_as_they_are() -> None:
    """What comes from the run cannot become markup, or end our section."""
    text = "<script>*a*_b_[c](d)</script> <!-- flashback:end -->"
    section = note.with_section("", VERDICT, text, None)
    assert "<script>" not in section
    assert section.count("<!-- flashback:end -->") == 1
    assert r"\*a\*\_b\_\[c\]" in section
