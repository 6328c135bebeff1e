"""The report: what was found, as data, page, Markdown and terminal text."""
