"""Forensics: training runs broken on purpose at a known step, recorded and labelled."""
