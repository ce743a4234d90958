"""The arithmetic, behind one interface: the numpy reference, and native kernels where they were built."""
