"""No bytes make a reader of the converter raise anything but the package's own errors.

Stands for: a length, offset, type or nesting of the file that is trusted. The same functions run under atheris
(make fuzz); what that finds is a file in regressions/.
"""

from __future__ import annotations

import random

import pytest
from converter_readers import READERS, REGRESSIONS, SEEDS, run

N_MUTATIONS = 400

WILD = [0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**40]


def mutate(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice((4, 8))
            out[at : at + size] = rng.choice(WILD).to_bytes(8, "little")[:size]
        elif kind == 3:
            del out[at : at + rng.randint(1, 16)]
        elif kind == 4:
            out[at:at] = out[(start := rng.randrange(len(out) + 1)) : start + rng.randint(1, 32)]
        elif rng.randrange(4) == 0:
            del out[at:]
    return bytes(out)


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_takes_its_first_seed(reader: str) -> None:
    assert run(reader, SEEDS[reader][0])


@pytest.mark.parametrize("reader", READERS)
def test_mutated_and_regressing_files_are_refused_in_a_sentence_or_read(reader: str) -> None:
    rng = random.Random(reader)
    for path in sorted((REGRESSIONS / reader).glob("*")):
        run(reader, path.read_bytes())
    for i in range(N_MUTATIONS):
        data = mutate(SEEDS[reader][i % len(SEEDS[reader])], rng)
        try:
            run(reader, data)
        except Exception as exception:
            raise AssertionError(f"{reader}, mutation {i}: {data!r}") from exception
