"""Which limits a task has: the settings of an app, and what its tasks say."""
