"""The command `fdt compare`: a script's steps in every form, beside what was predicted."""
