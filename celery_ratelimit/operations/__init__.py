"""What operators ask and do: how limits stand, where a task is, whether a set-up is sound, tasks released by hand."""
