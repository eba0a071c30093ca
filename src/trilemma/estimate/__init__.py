"""What it costs: model, cluster, workload and plan joined into one estimate."""
