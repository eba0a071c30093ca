"""A shared cluster over time: jobs with gangs and quotas, on nodes with a topology, under the policies of real schedulers."""
