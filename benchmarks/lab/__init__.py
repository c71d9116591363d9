"""A laboratory: hosts that are network namespaces of this machine, behind links of a chosen bandwidth."""
