"""When a task starts: the gate in the worker's consumer, before the pool."""
