"""The tables of settings that are too long for one file, and how a setting is declared."""
