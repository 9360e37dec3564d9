"""The gated delta rule (Yang et al. 2024) after a short convolution, over states in slots.

The channels of each token are convolved with those of the tokens before it, each channel alone, and pass a SiLU; query and
key heads are then brought to length one, and queries scaled by key_dim ** -0.5. With b and a of a token's projections, and in the
paper's letters, a value head's state S [key_dim, value_dim] and result o become

    alpha = exp(g),  g = -exp(decay_log) softplus(a + decay_bias)      how much of the state stays
    beta  = sigmoid(b)                                                 how much of what the key holds is replaced
    S <- alpha S
    u  = beta (v - S^T k)                                              what is written for the key
    S <- S + k u^T
    o  = S^T q

and the result is normed, weighted and multiplied by the SiLU of its gate. All of it is float32.
"""

from nanoserve.kernels.delta_rule.cpu import delta_rule, invariant_delta_rule

__all__ = ["delta_rule", "invariant_delta_rule"]
