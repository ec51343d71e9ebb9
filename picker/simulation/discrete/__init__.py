"""`picker simulate`: the production decision in front of a cluster that exists as events only."""
