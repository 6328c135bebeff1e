"""`report.markdown`: a note that no name can break out of."""

from __future__ import annotations

import re

from flashback_core.report.markdown import inline_code, to_markdown, words


def test_the_note_answers_the_questions(spiked) -> None:
    """Verdict, order of moving, evidence and commands are in the note."""
    text = to_markdown(spiked)
    assert text.startswith("## BAD: This run went wrong at step 240")
    for part in ("`update_norm`", "### Evidence", "flashback show runs/my-run --steps 220:260"):
        assert part in text


def test_a_healthy_note(healthy) -> None:
    """A healthy run gets a note with its false-alarm rate."""
    text = to_markdown(healthy)
    assert text.startswith("## HEALTHY")
    assert "4.2 false alarms per 100,000" in text


def test_hostile_names_stay_text(hostile) -> None:
    """No raw tag, link, heading or open code span comes from a name."""
    text = to_markdown(hostile)
    assert not re.search(r"<(?!details>|/details>|summary>|/summary>)", text)
    assert not re.search(r"(?<!\\)\]\(", re.sub(r"`[^`]*`", "", text))
    assert "\u202e" not in text
    assert not re.search(r"^# x", text, re.MULTILINE)
    assert "Z" * 700 not in text


def test_tables_keep_their_columns(hostile) -> None:
    """Every row of a table has as many cells as its head."""
    lines = to_markdown(hostile).splitlines()
    for i, line in enumerate(lines):
        if line.startswith("| ---"):
            width = line.count("|")
            rows = [r for r in lines[i - 1 : i + 20] if r.startswith("| ")]
            cells = [len(re.findall(r"(?<!\\)\|", r)) for r in rows[: rows.index(line) + 2]]
            assert set(cells) == {width}


def test_pieces() -> None:
    """A code span holds any name; a sentence loses its links and mentions."""
    assert inline_code("a`b|c\nd") == "`a'b¦c d`"
    assert (
        words("see https://x.y and @team *now*") == "see https&#8203;://x.y and &#64;team \\*now\\*"
    )
