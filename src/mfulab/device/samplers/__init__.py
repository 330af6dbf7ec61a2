"""Samplers of device activity: NVML, GPM, RAPL, CPU time, the input pipeline."""
