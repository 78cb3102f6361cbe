"""Proof from outside: Celery's own integration suite, run with every task throttled. ``make celery-suite``."""
