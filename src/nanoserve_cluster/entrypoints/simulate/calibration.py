"""`nanoserve bench calibrate`: from a step log to a file that says how long steps take, and back."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.bench.report import check_writable, show, table, write_report
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import TraceHeader
from nanoserve_cluster.domain.simulation.observed_steps import observed_steps
from nanoserve_cluster.entrypoints.simulate.fitting import FittedCost, fit_cost
from nanoserve_cluster.ports.step_cost import StepCost

FORMAT: Final = "nanoserve step cost 1"
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
_SIZES: Final = ("block_size", "num_blocks", *LIMITS)
_MEANINGS: Final = {
    "fixed": "every step",
    "weights": "reading all weights",
    "token": "multiplying one token",
    "row": "drawing one token",
    "context": "reading the keys and values of one token",
    "pair": "attention of one prompt token to another",
}


@attrs.frozen(kw_only=True)
class MeasuredReplica:
    """An engine whose step log was read: its sizes as in the log's header, and the cost of its steps."""

    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    cost: StepCost


def run_calibration(log: str, out: str | None) -> None:
    """Fit, print, and write the file; raises whatever goes wrong."""
    check_writable(out)
    trace = TraceFile(log, trace_format())
    _check_kinds(log, trace.header)
    fitted = fit_cost(list(observed_steps(trace)))
    _show(trace.header, fitted)
    if out is not None:
        written = {
            "format": FORMAT,
            **{name: getattr(trace.header, name) for name in ("model", "device", "dtype", *_SIZES)},
            "cost": attrs.asdict(fitted.cost),
            "errors": {name: value for name, value in attrs.asdict(fitted).items() if name != "cost"},
        }
        write_report(out, written)


def read_measured(path: str) -> MeasuredReplica:
    """A file that `run_calibration` has written; raises `BadValueError` that says what is wrong with it."""
    try:
        found: Any = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValueError("cost", f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadValueError("cost", f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        message = (
            f"{path} does not say {FORMAT!r}; nanoserve bench calibrate LOG --out FILE writes such files"
        )
        raise BadValueError("cost", message)
    try:
        names = [field.name for field in attrs.fields(MeasuredReplica) if field.name != "cost"]
        return MeasuredReplica(cost=StepCost(**found["cost"]), **{name: found[name] for name in names})
    except (KeyError, TypeError) as error:
        raise BadValueError("cost", f"{path} is not complete: {error}") from None


def _check_kinds(log: str, header: TraceHeader) -> None:
    kinds = header.kinds or tuple("window" if each else "full" for each in header.windows)
    if not set(kinds) <= {"full", "latent"}:
        raise BadValueError(
            log, f"its model has a cache of {', '.join(kinds)} groups, and only full ones are simulated"
        )


def _show(header: TraceHeader, fitted: FittedCost) -> None:
    rows = [(meaning, f"{getattr(fitted.cost, name) * 1e6:,.4g}") for name, meaning in _MEANINGS.items()]
    show(
        f"{header.model}, {header.dtype} on {header.device}: {fitted.fitted} steps fitted, {fitted.held_out} held out",
        table(["cost of", "microseconds"], rows),
        f"error on held-out steps: median {fitted.median_error:.1%}, p95 {fitted.p95_error:.1%}, "
        f"of their sum {fitted.total_error:.1%}",
    )
