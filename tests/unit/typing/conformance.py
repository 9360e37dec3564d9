"""Every adapter, and the engine, beside its port, for mypy to compare; nothing here runs."""

from __future__ import annotations

from typing import Any

from nanoserve.adapters.engine_process.client.kept_engine import Keeper, KeptEngine
from nanoserve.adapters.engine_process.client.requests import PendingReply
from nanoserve.adapters.engine_process.client.sharing import Membership
from nanoserve.adapters.engine_process.client.supervisor import Supervisor
from nanoserve.adapters.engine_process.client.thread import EngineThread
from nanoserve.adapters.engine_process.host.process import SocketLink
from nanoserve.adapters.huggingface.chat_template import HFChatTemplate
from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.runner import TorchRunner, TorchTicket
from nanoserve.adapters.system.process import SystemClock
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.engine import Engine
from nanoserve.ports.driven import ChatTemplate, Clock, ModelRunner, ReferenceModel, Tokenizer, TraceFormat
from nanoserve.ports.driving import EngineClient, EngineHandle, Link, Reply
from nanoserve.ports.grammar import Grammars, LateDrawing
from nanoserve.ports.step import StepPlan
from nanoserve_cluster.domain.simulation.cost_runner import CostRunner
from tests.fakes.constant_runner import ConstantRunner
from tests.fakes.finite_grammars import FiniteGrammars
from tests.fakes.memory_runner import MemoryRunner


def text(
    tokenizer: HFTokenizer, template: HFChatTemplate, reference: HFReferenceModel
) -> tuple[Tokenizer, ChatTemplate, ReferenceModel]:
    return tokenizer, template, reference


def machine(
    clock: SystemClock, trace_format: JsonTraceFormat, grammars: FiniteGrammars
) -> tuple[Clock, TraceFormat, Grammars]:
    return clock, trace_format, grammars


def runners(
    torch: TorchRunner, cuda: CudaRunner, memory: MemoryRunner, constant: ConstantRunner
) -> tuple[ModelRunner[TorchTicket], ModelRunner[CudaTicket], ModelRunner[StepPlan], ModelRunner[int]]:
    return torch, cuda, memory, constant


def late_drawing(
    torch: TorchRunner, memory: MemoryRunner
) -> tuple[LateDrawing[TorchTicket], LateDrawing[StepPlan]]:
    return torch, memory


def engine(engine: Engine[Any], kept: KeptEngine[Supervisor]) -> tuple[EngineHandle, EngineClient]:
    return engine, kept


def keepers(process: Supervisor, thread: EngineThread, member: Membership) -> tuple[Keeper, Keeper, Keeper]:
    return process, thread, member


def process(reply: PendingReply, link: SocketLink) -> tuple[Reply, Link]:
    return reply, link


def simulated(runner: CostRunner) -> ModelRunner[Any]:
    return runner
