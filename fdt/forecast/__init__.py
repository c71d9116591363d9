"""How long a step takes on more workers: arithmetic on measured times, and its table, file and plots."""
