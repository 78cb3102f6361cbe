"""The algorithms, one a file, and the line of those that count permits."""
