"""Files of measured tiles: those that ship for a device (`kernels/linear/tables`), and the user's, in the cache folder, which come first.

A file is for one device and one version of the kernels. It holds only tiles that the tuner would try there; else it is left aside whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from nanoserve.adapters.pytorch.cuda.tuner import Finding, tune
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.kernels.device.launch import tile_room
from nanoserve.kernels.forms import form_of
from nanoserve.kernels.linear import tuning_table
from nanoserve.kernels.linear.tuning_table import TABLE, VERSION, Key, Tile, form_name, neighbours

SHIPPED: Final = pathlib.Path(tuning_table.__file__).with_name("tables")
_MOST_BYTES: Final = 16 << 20


def describe(device: torch.device) -> dict[str, Any]:
    """A table's head: this device, and these kernels."""
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {"device": torch.cuda.get_device_name(device), "capability": capability, "kernels": VERSION}


def own_table(device: str) -> pathlib.Path:
    """The user's table for a device of this name."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with contextlib.suppress(RuntimeError):  # of users without a home
        cache = cache.expanduser()
    return cache / "nanoserve" / "tiles" / _file(device)


def _file(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def load(model: DecoderModel, *, deterministic: bool) -> tuple[int, list[str]]:
    """Let this process's products have the tiles of the device's tables, but not those of float32 or of one order of summation.

    Returns how many are of this model's products, and why a table was left aside.
    """
    device, dtype = model.embedding.weight.device, model.embedding.weight.dtype
    subject, complaints = describe(device), list[str]()
    TABLE.clear()
    if deterministic or dtype == torch.float32:
        return 0, complaints
    for path in (SHIPPED / _file(subject["device"]), own_table(subject["device"])):
        try:
            TABLE.update(read(path, subject, tile_room(device)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            complaints.append(f"{path} is left aside: {error}; `nanoserve tune` makes it anew")
    matrices = [each.linear.matrix for each in model.products()]
    shapes = {(form_name(form_of(each)), *each.shape) for each in matrices}
    return sum(key[1:4] in shapes for key in TABLE), complaints


def read(path: pathlib.Path, subject: Mapping[str, Any], room: int) -> dict[Key, Tile]:
    """The tiles of a file for a device, which has so many bytes of shared memory for them. Raises `OSError`, or `ValueError` for another device's, an old or a damaged one."""
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    try:
        table = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or not isinstance(table.get("tiles"), list):
        raise ValueError("it is no table of tiles")  # noqa: TRY004 - a file's content
    for name, wanted in subject.items():
        if table.get(name) != wanted:
            raise ValueError(f"its {name} is {str(table.get(name))[:40]}, not {wanted}")
    return dict(_tile_of(each, room) for each in table["tiles"])


def tune_into(
    model: DecoderModel, rows: Sequence[int], out: str | None, tell: Callable[[str], object]
) -> tuple[pathlib.Path, list[Finding]]:
    """Measure the tiles of a model's products, as in `tune`; returns the table that has those which are faster, the user's unless `out` is another, and all that was found."""
    device = model.embedding.weight.device
    subject = describe(device)
    path = own_table(subject["device"]) if out is None else pathlib.Path(out)
    findings = tune(model, rows, tell)
    update(path, subject, findings, device)
    return path, findings


def _tile_of(entry: Any, room: int) -> tuple[Key, Tile]:
    try:
        key = Key(*(entry[name] for name in Key._fields))
        if [*map(type, key)] == [str, str, int, int, int]:
            return key, next(each for each in neighbours(key, room) if each._asdict() == entry["tile"])
    except (TypeError, KeyError, IndexError, ValueError, StopIteration):
        pass
    raise ValueError(f"no kernel takes {str(entry)[:100]}")


def update(
    path: pathlib.Path, subject: Mapping[str, Any], findings: Iterable[Finding], device: torch.device
) -> None:
    """Put a table where the old one is, at once or not at all: the tiles that were found, and the old one's of other products. Raises `OSError`."""
    tiles = dict[Key, Tile]()
    with contextlib.suppress(OSError, ValueError):
        tiles = read(path, subject, tile_room(device))
    for each in findings:
        tiles.pop(each.key, None)
        tiles.update({} if each.tile is None else {each.key: each.tile})
    lines = [json.dumps({**key._asdict(), "tile": tile._asdict()}) for key, tile in sorted(tiles.items())]
    head = json.dumps({**subject, "tiles": []}, ensure_ascii=False)[:-2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as fresh:
        written = pathlib.Path(fresh) / path.name
        written.write_text(head + "\n" + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
        written.replace(path)
