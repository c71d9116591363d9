"""How processes speak to each other: gRPC, tokens, rate limits, and bulk data by content."""
