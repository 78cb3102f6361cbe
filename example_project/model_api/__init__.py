"""Requests and tokens a minute of a model API: an endpoint that enforces them, and tasks that keep them."""
