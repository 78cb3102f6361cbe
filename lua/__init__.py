"""The Lua scripts, shipped as ``celery_ratelimit.lua``; see ``README.md`` beside this file."""
