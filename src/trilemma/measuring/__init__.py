"""The machine under this program, measured: kernels, wires and disks into an accelerator file, pilots, servers under load."""
