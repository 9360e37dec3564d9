"""The output of `nanoserve simulate`: a line for each run, how many replicas are enough, and a plot over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.report import number, show, table
from nanoserve.entrypoints.bench.serving.level import GOOD_ENOUGH
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.ports.simulation import RunFigures, Scenario, SimulatedRun

_REFUSED: Final = {
    "PromptTooLongError": "have prompts longer than --max-model-len",
    "RequestTooLargeError": "do not fit into an empty KV cache",
}
_PANELS: Final[Mapping[str, Callable[[RunFigures], float]]] = {
    "TTFT mean, s": lambda figures: figures.ttft.mean,
    "ITL p99, ms": lambda figures: figures.itl.p99 * 1000,
    "hit share": lambda figures: figures.hit_share,
    "goodput, req/s": lambda figures: figures.goodput,
}


@attrs.frozen(kw_only=True)
class SimulatedCase:
    """One run with its figures; `offered` is the load, and `seconds` what the simulation took of a processor."""

    run: SimulatedRun
    trace: Sequence[TracedRequest]
    figures: RunFigures
    windows: Mapping[int, RunFigures]
    offered: float
    seconds: float

    @property
    def retried(self) -> int:
        """Requests that were sent again because their replica died."""
        return sum(each.attempts > 1 for each in self.run.served)

    @property
    def lost(self) -> int:
        """Requests that were neither answered nor refused."""
        return self.run.sent - len(self.run.served) - sum(self.run.refused.values())

    @property
    def busy(self) -> float:
        """The share of the replicas' time in which their devices computed."""
        return self.run.busy_seconds / max(self.run.replica_seconds, 1e-9)

    def record(self) -> dict[str, Any]:
        """Everything but how long the simulation took, so that equal runs have equal records."""
        scenario = self.run.scenario
        return {
            "replicas": scenario.replicas,
            "prefill_replicas": scenario.prefill_replicas,
            "policy": scenario.policy,
            "offered": self.offered,
            "figures": attrs.asdict(self.figures),
            "sent": self.run.sent,
            "refused": dict(self.run.refused),
            "retried": self.retried,
            "lost": self.lost,
            "preemptions": self.run.preemptions,
            "steps": self.run.steps,
            "busy": self.busy,
            "ended": self.run.ended,
            "window": scenario.window,
            "windows": {str(window): attrs.asdict(figures) for window, figures in self.windows.items()},
        }


def show_cases(title: str, cases: Sequence[SimulatedCase], objectives: Mapping[str, float]) -> None:
    """Print a line for each run, then what is to be said of them all."""
    headings = ["replicas", "load", "req/s", "TTFT mean", "p50", "p99", "ITL p50", "p99", "hits"]
    has_retries = any(case.retried for case in cases)
    headings += ["good"] * bool(objectives) + ["retried", "lost"] * has_retries
    rows = []
    for case in cases:
        figures, scenario = case.figures, case.run.scenario
        ttft, itl = figures.ttft, figures.itl
        cells = [_name(scenario), f"{case.offered:.2f}", number(figures.request_rate)]
        cells += [_ms(each) for each in (ttft.mean, ttft.p50, ttft.p99, itl.p50, itl.p99)]
        cells.append(f"{figures.hit_share:.1%}")
        cells += [f"{figures.good_share:.1%}"] * bool(objectives)
        cells += [str(case.retried), str(case.lost)] * has_retries
        rows.append(cells)
    trace = cases[0].trace
    tokens = [each.num_tokens for each in trace]
    answers = [each.output_tokens for each in trace]
    show(
        title,
        f"{len(trace)} requests in {trace[-1].at:.0f} s: {sum(tokens) / len(trace):,.0f} tokens in, "
        f"{sum(answers) / len(trace):,.0f} out on average; times in milliseconds",
        table(headings, rows, box=None, pad_edge=False),
        *_say_refused(cases),
        *(_say_enough(cases, objectives) if objectives else ()),
        _say_speed(cases),
    )


def _name(scenario: Scenario) -> str:
    prompts = f"{scenario.prefill_replicas} + " * bool(scenario.prefill_replicas)
    return f"{prompts}{scenario.replicas} x {scenario.policy}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _say_refused(cases: Sequence[SimulatedCase]) -> list[str]:
    """Every policy refuses the same requests."""
    return [
        f"{count} requests were refused: they {_REFUSED.get(why, why)}"
        for why, count in cases[0].run.refused.items()
    ]


def _say_enough(cases: Sequence[SimulatedCase], objectives: Mapping[str, float]) -> list[str]:
    """The fewest replicas, policy by policy, that keep the objectives."""
    wanted = ", ".join(f"{name} <= {most * 1000:g} ms" for name, most in objectives.items())
    lines = []
    for policy in dict.fromkeys(case.run.scenario.policy for case in cases):
        enough = [
            case.run.scenario.replicas
            for case in cases
            if case.run.scenario.policy == policy and case.figures.good_share >= GOOD_ENOUGH
        ]
        found = (
            f"{min(enough)} replicas are enough" if enough else "none of these numbers of replicas is enough"
        )
        lines.append(f"{policy}: {found} for {GOOD_ENOUGH:.0%} of the requests with {wanted}")
    return lines


def _say_speed(cases: Sequence[SimulatedCase]) -> str:
    seconds = max(sum(case.seconds for case in cases), 1e-9)
    steps = sum(case.run.steps for case in cases)
    replica_seconds = sum(case.run.replica_seconds for case in cases)
    return (
        f"simulated {replica_seconds:,.0f} replica-seconds and {steps:,} steps in {seconds:.1f} s of a processor: "
        f"{replica_seconds / seconds:,.0f} and {steps / seconds:,.0f} per second"
    )


def draw_windows(path: str, title: str, cases: Sequence[SimulatedCase]) -> None:
    """Write a PNG with a panel for each of TTFT, ITL, hits and goodput over time, a line for each run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(13, 7), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axes, (label, read) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for case in cases:
            scenario = case.run.scenario
            times = [window * scenario.window for window in case.windows]
            values = [read(figures) for figures in case.windows.values()]
            axes.plot(times, values, label=_name(scenario), linewidth=1.2)
        axes.set(xlabel="seconds", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=130)
