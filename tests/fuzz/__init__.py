"""Random input for what reads bytes of strangers. A few seconds; `FDT_FUZZ_EXAMPLES` makes it longer (`make fuzz`)."""
