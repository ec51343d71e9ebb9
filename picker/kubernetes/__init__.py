"""What Kubernetes' API server says, by list and watch. `api` needs the extra `kubernetes`."""
