"""The engine as a Python object, named and shaped as in vLLM's offline interface."""

from nanoserve.entrypoints.offline.llm import LLM
from nanoserve.entrypoints.offline.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from nanoserve.ports.sampling import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput", "SamplingParams"]
