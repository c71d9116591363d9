"""Provides what every other package may use: configuration, limits, files, logs, values of options. Imports none of them."""
