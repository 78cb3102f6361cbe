"""The store of limits: the only folder that imports redis."""
