"""How many workers a pool needs: demand now and soon, against what a worker can do. Pure but for `keda`."""
