"""A record on the native kernels: what can run there, the model, and the test at the start."""
