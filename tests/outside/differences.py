"""What is different with us and meant to be: the tests that see it, and why."""

from __future__ import annotations

__all__ = ["DIFFERENCES"]

_TWICE = "a throttled task is delivered twice, and the worker logs each delivery as received"
_SECOND = "of 42 errbacks it gives 41 one second after the first, and 25 a second are allowed"
_BODY_FAILURE = "test_mutable_errback_called_by_chord_from_group_fail_multiple_on_body_failure"

DIFFERENCES = {
    "t/integration/test_tasks.py::test_trace_log_arguments::test_task_success": _TWICE,
    "t/integration/test_tasks.py::test_trace_log_arguments::test_task_failed": _TWICE,
    f"t/integration/test_canvas.py::test_chord::{_BODY_FAILURE}[errback_old_style]": _SECOND,
    f"t/integration/test_canvas.py::test_chord::{_BODY_FAILURE}[errback_new_style]": _SECOND,
    "t/integration/test_inspect.py::test_Inspect::test_active_queues": "the worker also consumes the return queue",
}
