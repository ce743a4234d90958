"""A real server inside somebody's tests."""
