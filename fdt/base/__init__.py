"""What every other package may use: configuration, limits, files, logs, values of options. It imports none of them."""
