"""Fills chat templates in a process of its own, which the kernel ends when one computes for too long.

A template is a program that came with a model. A sandbox keeps it from the machine, but not from looping for ever, nor from making one
string of all the memory there is; a thread that does so cannot be stopped, a process can.

The language is Jinja in a sandbox, with the additions that transformers makes, each of which published templates use.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import marshal
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO, Final

from jinja2 import Template, meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

CPU_SECONDS: Final = 2
"""Seconds of CPU time, not of waiting; a template takes milliseconds."""
MEMORY: Final = 2**30
LONGEST: Final = 2**26
"""Bytes of an answer."""
_LENGTH: Final = 8
_PAUSE: Final = 0.1
"""Seconds before a start that failed is tried again."""
_PROGRAM: Final = f"import sys; sys.path += sys.argv[2:]; from {__name__} import main; main()"
"""It finds last what this process has put on its own path, so that no file there takes the place of a library's."""


class TemplateStoppedError(Exception):
    """A template computed for too long, or took more memory than it may have."""


class TemplateFailedError(Exception):
    """A template ended with an error that it did not raise on purpose."""


class TemplateProcess:
    """Starts with the first template, and again after one was stopped; its calls wait for one another."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def variables(self, source: str) -> frozenset[str]:
        """The names that a template reads and does not set itself; none if it is no template."""
        try:
            return frozenset(json.loads(self.render(source, None)))
        except (TemplateStoppedError, TemplateFailedError):
            return frozenset()

    def close(self) -> None:
        """End it; the next call starts another one."""
        with self._lock:
            self._end()

    def render(self, source: str, values: Mapping[str, Any] | None) -> str:
        """A filled template, or without values the names that it reads, as JSON.

        Raises `TemplateError` with what it raises, `TemplateStoppedError` or `TemplateFailedError`.
        """
        question = _packed(source, values)
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._process is None:
                self._process = self._start()
            answer = None
            try:
                answer = _answer(self._process, question)
            finally:
                if answer is None:  # also where Ctrl-C comes first: the next answer would be this one's
                    self._end()
        if answer is None:
            raise TemplateStoppedError
        kind, _, written = answer.partition(b"\n")
        content = written.decode(errors="surrogatepass")
        if kind == b"refused":
            raise TemplateError(content)
        if kind == b"failed":
            raise TemplateFailedError(content)
        return content

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(OSError):  # what could not be written
                self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        """Raises the `OSError` of a second try: a machine may refuse a process for a moment (EAGAIN, EFAULT)."""
        try:
            return self._launch()
        except OSError:
            time.sleep(_PAUSE)
            return self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-c", _PROGRAM, str(self._cpu_seconds), *filter(None, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's signals are for us, and while we drain there is more to render
        )


@functools.cache
def template_process() -> TemplateProcess:
    """The one of this process."""
    process = TemplateProcess()
    atexit.register(process.close)
    return process


def _packed(source: str, values: Mapping[str, Any] | None) -> bytes:
    """Values of JSON in a form that is made in a moment; JSON itself would keep the interpreter's lock for as long as a text is."""
    try:
        return marshal.dumps([source, values])
    except ValueError:  # classes that are derived from those of JSON
        return marshal.dumps([source, json.loads(json.dumps(values))])


def _answer(process: subprocess.Popen[bytes], question: bytes) -> bytes | None:
    """None if the process ended over it, or would say more than it may."""
    try:
        _write(process.stdin, question)
        return _read(process.stdout)
    except OSError:
        return None


def _write(file: BinaryIO | Any, content: bytes) -> None:
    file.write(len(content).to_bytes(_LENGTH, "little") + content)
    file.flush()


def _read(file: BinaryIO | Any) -> bytes | None:
    """The next message; None if the other end is gone, or says that more comes than may."""
    length = int.from_bytes(file.read(_LENGTH), "little")
    content: bytes = file.read(length) if 0 < length <= LONGEST else b""
    return content if content and len(content) == length else None


class _GenerationBlock(Extension):
    """`{% generation %}` ... `{% endgeneration %}` around what the model writes: marks it for training, renders it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, without the type's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)`, which holds no name that starts with an underscore: those are Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be the name of a variable
        self, *values = args
        for name in (named := dict(*values, **kwargs)):
            _check_name(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}; use a name without leading underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape characters that mean something in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates want the local date


_LANGUAGE: Final = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
)
_LANGUAGE.filters["tojson"] = _to_json
_LANGUAGE.globals |= {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "dict": _Dict(),
    "namespace": _Namespace,
}


@functools.lru_cache(maxsize=8)
def compile_template(source: str) -> Template:
    """A template that is ready to render. Raises `TemplateError` if it is not one."""
    return _LANGUAGE.from_string(source)


def _answer_to(question: bytes) -> bytes:
    try:
        source, values = marshal.loads(question)  # noqa: S302 - of the process that started this one
        if values is None:
            kind, content = "rendered", json.dumps([*meta.find_undeclared_variables(_LANGUAGE.parse(source))])
        else:
            kind, content = "rendered", compile_template(source).render(**values)
    except Exception as error:  # noqa: BLE001 - a template is a program and may raise anything
        kind, content = "refused" if type(error) is TemplateError else "failed", str(error)
    return f"{kind}\n{content}".encode(errors="surrogatepass")


def main() -> None:
    """Answer until the other end closes."""
    cpu_seconds = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (length := sys.stdin.buffer.read(_LENGTH)) and (
        question := sys.stdin.buffer.read(int.from_bytes(length, "little"))
    ):
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        answer = _answer_to(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(sys.stdout.buffer, answer)
