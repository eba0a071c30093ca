"""The FSDP example of AWS's distributed-training samples: its flags to a training plan."""
