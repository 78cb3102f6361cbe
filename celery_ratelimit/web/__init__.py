"""The people's view: a page that shows how the limits stand, live, and lets those who may change them.

``celery -A proj ratelimit web``. Needs ``celery-ratelimit[web]``; nothing but the command imports it.
"""
