"""A small real inference server on torch, for CPU. `launch` starts it and needs no torch itself."""
