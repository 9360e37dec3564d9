"""Linear layers on a GPU for few rows, where reading the weight takes all the time, and batch-invariant ones.

| rows of x | function         | what is fused                                                       |
|-----------|------------------|---------------------------------------------------------------------|
| 1         | row_linear       | RMS norm before; bias, gated activation, residual addition after   |
| 2 to 128  | skinny_linear    | bias, gated activation after                                       |
| 2 to 128  | split_linear     | nothing: partial sums, which `rms_norm`'s `add_rms_norm_into` adds up   |
| any       | invariant_linear | bias, residual addition after                                       |
| any       | packed_linear, fp8_linear | the same, for weights that are stored so                   |
| many      | gated_linear     | gated activation                                                    |

All write into tensors that the caller has allocated, wait for nothing, and may be captured into a CUDA graph. Operands are
bfloat16, float16 or float32, all of one dtype unless said otherwise; sums are float32, products of float32 exact to
float32. Any N and K are served, multiples of 128 fastest. With more rows than these the arithmetic counts, not the
reading, and cuBLAS is the better choice.

`reference.py` is the formula; `tuning.py` says which tile runs where, and how fast it was.
"""
