"""What can be said of a configuration: which settings there are, what each is and whence, what changed."""
