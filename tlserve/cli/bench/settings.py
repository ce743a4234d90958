"""The settings of a server that a bench starts for itself.

Owns what differs from `serve`: free ports of the loopback interface, no keys, no TLS, one model.
"""

from __future__ import annotations

import argparse

import attrs

from tlserve.cli.settings_arguments import settings_of
from tlserve.config.settings import AccessSettings, Settings, TlsSettings


def own_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings that `serve` would take, with nothing in the way of the bench; raises SettingsError."""
    settings = settings_of(arguments)
    engine = attrs.evolve(settings.engine, http_listen="127.0.0.1:0", health_listen="")
    return attrs.evolve(settings, engine=engine, models=(), access=AccessSettings(), tls=TlsSettings())
