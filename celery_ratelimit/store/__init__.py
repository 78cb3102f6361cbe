"""Where the limits are kept: the one folder that imports redis."""
