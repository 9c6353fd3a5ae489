"""The trainer: outer loop, inner loops, one replica's step, data, relocation."""
