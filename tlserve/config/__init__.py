"""Settings, and how a runtime.toml, the environment and the command line become them."""

from tlserve.config.settings import EngineSettings, HttpSettings, LogSettings, Settings

__all__ = ["EngineSettings", "HttpSettings", "LogSettings", "Settings"]
