"""The GPU data plane: persistent device rows, fused Triton kernels, whole-step CUDA graphs, several steps in flight.

`building.py` puts it together. Under Triton's interpreter everything but the graphs also runs on a CPU, for tests.
"""
