"""The package beside its peers, on one machine, in one run: ``python -m benchmarks``. See README.md here."""

#: The name of the one task, in every variant: so that one sender serves them all.
TASK = "benchmarks.call"
