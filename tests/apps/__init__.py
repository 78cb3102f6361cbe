import logging
import os

# What comes back is received at DEBUG: tests count it, and need not see all the rest at that level.
if "TEST_RECORDS" in os.environ and "TEST_QUIET" not in os.environ:
    logging.getLogger("celery.worker.strategy").setLevel(logging.DEBUG)
