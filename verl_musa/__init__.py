"""MT-veRL: reproducible veRL recipes for Moore Threads MUSA GPUs, testable without one."""

__version__ = "0.1.0"
