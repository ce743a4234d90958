"""The HTTP client that the fleet, the terminal chat and the benchmarks use."""
