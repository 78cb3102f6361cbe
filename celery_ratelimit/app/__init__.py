"""The limits of an app's tasks: from the app's settings, and from the tasks' options."""
