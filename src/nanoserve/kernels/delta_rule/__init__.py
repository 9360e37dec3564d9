"""The gated delta rule (Yang et al. 2024) behind a short convolution, over states in slots.

Of each token the channels are convolved with those of the tokens before it, each channel alone, and pass a SiLU; query and
key heads are then brought to length one, and queries scaled by key_dim ** -0.5. With b and a its strength and decay, the
state S of a value head becomes

    S <- exp(-exp(decay_log) softplus(a + decay_bias)) S
    S <- S + k (sigmoid(b) (v - S^T k))^T

and the token's result S^T q is normed, weighted and multiplied by the SiLU of its gate. All of it is float32.
"""

from nanoserve.kernels.delta_rule.cpu import delta_rule
from nanoserve.kernels.delta_rule.invariant import invariant_delta_rule

__all__ = ["delta_rule", "invariant_delta_rule"]
