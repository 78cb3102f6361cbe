"""The algorithms, one a file, and what the scripts share."""
