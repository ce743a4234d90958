"""Settings, and how a runtime.toml, the environment and the command line become them."""

from tlserve.config.addresses import Address, parse_address
from tlserve.config.environment import process_environ
from tlserve.config.load import load_settings
from tlserve.config.model_id import served_model_id
from tlserve.config.paths import find_model, model_cache_dir
from tlserve.config.settings import (
    AccessSettings,
    CorsSettings,
    EngineSettings,
    HttpSettings,
    LogSettings,
    Settings,
    TlsSettings,
)

__all__ = [
    "AccessSettings",
    "Address",
    "CorsSettings",
    "EngineSettings",
    "HttpSettings",
    "LogSettings",
    "Settings",
    "TlsSettings",
    "find_model",
    "load_settings",
    "model_cache_dir",
    "parse_address",
    "process_environ",
    "served_model_id",
]
