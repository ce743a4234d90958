"""Settings, and how a runtime.toml, the environment and the command line become them."""
