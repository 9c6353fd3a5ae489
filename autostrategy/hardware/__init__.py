"""What this machine has: processor and memory, NVIDIA GPUs, TPUs.

Each `probe` here asks the operating system or a driver, decides nothing and
imports no framework. They are asked in the order host, nvidia, tpu: a GPU that
shares the host's memory is described by it.
"""
