"""The command `fdt predict`: what a script's steps will take on more workers."""
