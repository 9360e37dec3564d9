"""The values and protocols of clusters: simulated runs, replicas that requests go to, and what a step costs."""
