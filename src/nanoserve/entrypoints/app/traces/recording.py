"""Records an engine of this process into a trace file."""

from __future__ import annotations

import structlog

from nanoserve.entrypoints.app.traces.writer import TraceWriter
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.driving import EngineHandle


class Recording:
    """Everything that an engine does from now on, until `close`. A full disk ends the trace and not the run.

    Args:
        engine: is between two turns.
        writer: of a new file; closed here.
        tokenizer: turns what is asked and answered into text; None leaves the text out.
    """

    def __init__(self, engine: EngineHandle, writer: TraceWriter, tokenizer: Tokenizer | None = None) -> None:
        self._engine = engine
        self._writer: TraceWriter | None = writer
        self._recorder = engine.record(tokenizer)
        writer.write([self._recorder.snapshot()])

    def write_turns(self) -> None:
        """Write what the turns since the last time have changed; call it after each."""
        if self._writer is None:
            return
        try:
            self._writer.write(self._recorder.take())
        except OSError as error:
            structlog.get_logger().warning(
                "the step log ends here: it cannot be written", reason=error.strerror
            )
            self._stop()

    def close(self) -> None:
        """End the trace; may be called twice."""
        self.write_turns()
        self._stop()

    def _stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._engine.stop_recording()
        try:
            writer.close()
        except OSError as error:
            structlog.get_logger().warning("the step log lacks its last lines", reason=error.strerror)
