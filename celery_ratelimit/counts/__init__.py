"""Counts of decisions: in each process for a second, in the store for the whole fleet."""
