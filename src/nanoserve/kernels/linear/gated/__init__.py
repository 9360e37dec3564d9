"""Gate and up projections of many rows on Hopper, with the activation behind their sums: `launch.gated_linear` (ADR 41)."""
