"""Every adapter beside its port, for mypy to compare; nothing here runs."""

from __future__ import annotations

from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.pytorch.cuda.drawing import CudaTicket
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.runner import TorchRunner, TorchTicket
from nanoserve.adapters.scripted.constant_runner import ConstantRunner
from nanoserve.adapters.scripted.finite_grammars import FiniteGrammars
from nanoserve.adapters.scripted.memory_runner import MemoryRunner
from nanoserve.adapters.system.process import SystemClock
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.ports.driven import ChatTemplate, Clock, ModelRunner, ReferenceModel, Tokenizer, TraceFormat
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.grammar import Grammars, LateDrawing
from nanoserve.ports.step import StepPlan


def conform(model: DecoderModel, tokenizer: HFTokenizer, cuda_runner: CudaRunner) -> None:
    """Fails to type-check where an adapter no longer fits."""
    clock: Clock = SystemClock()
    text: Tokenizer = tokenizer
    template: ChatTemplate = HFChatTemplate(tokenizer)
    reference: ReferenceModel = HFReferenceModel("folder")
    sizes = EngineSizes(
        max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1, vocab_size=1, block_size=1, num_blocks=1
    )
    torch_runner: ModelRunner[TorchTicket] = TorchRunner(model, sizes)
    gpu_runner: ModelRunner[CudaTicket] = cuda_runner
    memory_runner: ModelRunner[StepPlan] = MemoryRunner((), num_blocks=1, block_size=1, vocab_size=1)
    constant_runner: ModelRunner[int] = ConstantRunner()
    late_torch: LateDrawing[TorchTicket] = TorchRunner(model, sizes)
    late_memory: LateDrawing[StepPlan] = MemoryRunner((), num_blocks=1, block_size=1, vocab_size=1)
    grammars: Grammars = FiniteGrammars(1)
    trace_format: TraceFormat = JsonTraceFormat()
    del (
        trace_format,
        clock,
        text,
        template,
        reference,
        torch_runner,
        gpu_runner,
        memory_runner,
        constant_runner,
        late_torch,
        late_memory,
        grammars,
    )
