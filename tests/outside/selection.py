"""Which tests of Celery's suite are run (arguments of pytest), and which of them are meant to differ with us."""

from __future__ import annotations

__all__ = ["ALL", "DIFFERENCES", "PART"]

_TASKS = "t/integration/test_tasks.py"
_CANVAS = "t/integration/test_canvas.py"

#: The Redis backend's first: two of its tests want no subscription left by others.
ALL = (
    "t/integration/test_redis_backend.py",
    "t/integration/test_inspect.py",
    _TASKS,
    _CANVAS,
    "t/integration/test_group_chains.py",
)

#: What a task's way through a broker can spoil: retries, expiry, revoking, links, replacing, stamps, and chords.
_WORDS = (
    *("test_tasks", "test_link_error", "link_option", "replace", "stamping", "implicit_chords", "nested_chord"),
    *("add_to_chord", "parallel_chords", "chord_in_chain", "errbacks_of"),
)

#: Those that take long and say little besides.
_SLOW = (
    *(f"{_TASKS}::test_tasks::{name}" for name in ("test_retry", "test_timeout")),
    f"{_TASKS}::test_tasks::test_revoked_by_headers_complex_canvas",
    f"{_TASKS}::test_tasks::test_revoke_keeps_state_of_task_started_elsewhere",
    f"{_TASKS}::test_pool_acquire_timeout",
    f"{_CANVAS}::test_chord::test_nested_chord_header_link_error",
    f"{_CANVAS}::test_group",
)

PART = (_TASKS, _CANVAS, "-k", " or ".join(_WORDS), *(f"--deselect={test}" for test in _SLOW))

_TWICE = "a throttled task is delivered twice, and the worker logs each delivery as received"
_SECOND = "of 42 errbacks it gives 41 one second after the first, and 25 a second are allowed"
_BODY_FAILURE = "test_mutable_errback_called_by_chord_from_group_fail_multiple_on_body_failure"

#: What is different with us and meant to be: the tests that see it, and why.
DIFFERENCES = {
    f"{_TASKS}::test_trace_log_arguments::test_task_success": _TWICE,
    f"{_TASKS}::test_trace_log_arguments::test_task_failed": _TWICE,
    f"{_CANVAS}::test_chord::{_BODY_FAILURE}[errback_old_style]": _SECOND,
    f"{_CANVAS}::test_chord::{_BODY_FAILURE}[errback_new_style]": _SECOND,
    "t/integration/test_inspect.py::test_Inspect::test_active_queues": "the worker also consumes the return queue",
}
