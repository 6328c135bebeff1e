"""Exact watches: what no statistic shows, because it is either so or not so.

Weights, optimizer state and buffers that something else than the optimizer changed; configuration
that changed; batches and samples that came before. Each gives exact fields of a row and events
that say what was changed, from what to what.
"""
