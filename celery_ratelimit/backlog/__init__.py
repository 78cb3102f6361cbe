"""Tasks that wait in the store: they are parked there, and published again when their turn is near."""
