"""One folder per operation, with the same file names in each, as far as it has work for them.

| file              | what it holds                                                                                |
|-------------------|----------------------------------------------------------------------------------------------|
| `__init__.py`     | the contract: what is computed; re-exports what serves on a CPU and never imports Triton     |
| `reference.py`    | the operation as its formula, in float32: what everything else is compared with              |
| `cpu.py`          | torch on a CPU, also with bits that depend on nothing but what is asked for                  |
| `triton.py`       | the kernels of a GPU                                                                         |
| `triton_tiles.py` | those that compute tiles of many tokens, where one file would be too long                    |
| `launch.py`       | the functions that launch them, on outputs that the caller has allocated                     |
| `tuning.py`       | measured sizes, and how work is cut into programs                                            |
| `tuning_tiles.py` | those of many tokens, where one file would be too long                                       |
| `cases.py`        | inputs, poisoned outputs and expected results: for the tests, and for the start-up self-test |

Folders of operations do not know each other. `device` holds what kernels of several call or are launched with, `forms` how weights are kept and
loaded, with a folder for each form. Beside them: `paged.py` and `latent.py`, the paged caches and what attending to them means;
`recurrent.py`, the states of recurrent layers; `gates.py`, the activations of feeds; `invariant_attention.py` and `whole_vectors.py`, attention on a CPU and element-wise functions with invariant bits; `tiles.py`, tiles of queries; `philox.py`, counter-based random
numbers; `testing.py`, the harness of all cases, and `testing_attention.py`, what those of attention share.

Kernels are launched by name: pointers, then numbers, then shapes and tiles, then switches and options. A kernel begins with what one program computes, in the letters of its paper, and with the shapes of its tiles.
"""
