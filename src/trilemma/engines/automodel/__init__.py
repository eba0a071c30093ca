"""NeMo AutoModel: `automodel CONFIG.yaml --nproc-per-node N --key.subkey value`."""
