"""Who waits, in which order, for how long, and who is told to come back. Pure: time, chance and decisions come in."""
