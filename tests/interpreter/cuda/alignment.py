"""Accesses of global memory in compiled kernels that are wider than what their address is known to be divisible by."""

from __future__ import annotations

import re
from typing import NamedTuple

ANY = 1 << 20
"""What zero, and every register that no instruction has written yet, is divisible by."""


class Access(NamedTuple):
    """One instruction, the bytes that it moves at a time, and what its address is known to be divisible by."""

    instruction: str
    size: int
    divisor: int


def misaligned(ptx: str, ttir: str) -> list[Access]:
    """The accesses of a kernel whose alignment does not follow from that of its arguments and from its arithmetic.

    Args:
        ptx: of one kernel.
        ttir: of the same, which says what each argument is divisible by.
    """
    instructions = [
        (match[1], _operands(match[2]))
        for line in ptx.splitlines()
        if (match := re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*?);?\s*(?://.*)?$", line))
    ]
    arguments = _arguments(ttir)
    divisors: dict[str, int] = {}
    while True:
        later: dict[str, int] = {}
        for name, operands in instructions:
            for register in re.findall(r"%\w+", operands[0]) if _writes(name) else ():
                found = _divisor(name, operands[1:], divisors, arguments)
                later[register] = min(later.get(register, ANY), found)
        if later == divisors:
            break
        divisors = later
    accesses = (_access(name, operands, divisors) for name, operands in instructions)
    return [each for each in accesses if each is not None and each.divisor < each.size]


def _operands(text: str) -> list[str]:
    return [each.strip() for each in re.split(r",(?![^{]*\})", text)]


def _arguments(ttir: str) -> list[int]:
    signature = re.search(r"tt\.func public @\w+\((.*?)\) attributes", ttir, re.DOTALL)
    assert signature is not None
    parts = re.findall(r"%\w+: ((?:[^{}%]|\{[^}]*\})*)", re.sub(r'loc\("[^"]*"[^)]*\)+', "", signature[1]))
    return [_of_argument(each) for each in parts]


def _of_argument(declared: str) -> int:
    """What an argument is divisible by: as it is specialised, or, for a pointer, by the size of an element."""
    if found := re.search(r"divisibility = (\d+)", declared):
        return int(found[1])
    pointed = re.search(r"!tt\.ptr<[a-z]+(\d+)", declared)
    return max(1, int(pointed[1]) // 8) if pointed else 1


def _writes(name: str) -> bool:
    return not name.startswith(
        ("st.", "bar", "bra", "ret", "cp.", "setp", ".", "red", "wgmma", "fence", "mbarrier")
    )


def _divisor(name: str, operands: list[str], divisors: dict[str, int], arguments: list[int]) -> int:
    if name.startswith("ld.param"):
        index = re.search(r"_param_(\d+)", operands[0])
        return arguments[int(index[1])] if index is not None and int(index[1]) < len(arguments) else 1
    known = [_value(each, divisors) for each in operands]
    match name.partition(".")[0]:
        case "mov" | "cvt" | "cvta":
            found = known[0]
        case "add" | "sub" | "or" | "xor" | "min" | "max":
            found = min(known)
        case "and":
            found = max(known)
        case "mul":
            found = known[0] * known[1]
        case "mad":
            found = min(known[0] * known[1], known[2])
        case "shl":
            found = known[0] << int(operands[1]) if operands[1].isdigit() else known[0]
        case "selp":
            found = min(known[:2])
        case _:
            found = 1
    return min(found, ANY)


def _value(operand: str, divisors: dict[str, int]) -> int:
    """What a register or number is divisible by, as a power of two."""
    if operand.startswith("%"):
        return divisors.get(operand, ANY)
    try:
        number = int(operand, 0)
    except ValueError:
        return 1
    return number & -number or ANY


def _access(name: str, operands: list[str], divisors: dict[str, int]) -> Access | None:
    if name.startswith(("ld.global", "st.global")):
        address = operands[1 if name.startswith("ld") else 0]
        lanes, bits = re.search(r"\.v(\d)", name), re.search(r"\.[a-z](\d+)$", name)
        assert bits is not None
        size = int(bits[1]) // 8 * int(lanes[1] if lanes else 1)
    elif name.startswith("cp.async") and name.endswith("shared.global"):
        address, size = operands[1], int(operands[2], 0)
    else:
        return None
    parts = re.sub(r"[\[\]\s]", "", address).split("+")
    return Access(f"{name} {', '.join(operands)}", size, min(_value(each, divisors) for each in parts))
