"""Whether the predicted hit is what real engines find in their caches."""
