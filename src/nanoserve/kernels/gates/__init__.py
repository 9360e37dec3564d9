"""What all gated feed-forward networks share (Shazeer 2020): the activations of their gates, by name."""

from __future__ import annotations

from typing import Final, Literal

Activation = Literal["silu", "gelu_tanh"]
"""SiLU, or the approximation of GELU by a hyperbolic tangent (Hendrycks and Gimpel 2016)."""
ACTIVATIONS: Final[tuple[Activation, ...]] = ("silu", "gelu_tanh")
