"""Exports of flashback and of other tools -> the table that detectors read."""
