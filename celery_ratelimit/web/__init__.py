"""A page that shows the status of the limits, live, and lets operators change them.

``celery -A proj ratelimit web``. Needs ``celery-ratelimit[web]``; nothing but the command imports it.
"""
