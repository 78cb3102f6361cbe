"""A small Celery project with every kind of limit, and a demo of it against an upstream that says 429."""
