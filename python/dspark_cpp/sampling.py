"""Sampler chains of llama.cpp: our own for a session, and llama_cpp's with errors where llama.cpp would crash."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
from llama_cpp._internals import LlamaSampler

from . import errors
from ._native import check, ffi, lib, require_llama
from .grammar import require_grammar
from .params import integer, number

__all__ = ["Sampler"]


class Sampler:
    """A llama_sampler chain: penalties, top-k, top-p, min-p, temperature, and a seeded draw.

    With ``temp <= 0`` the chain is greedy. The order and meaning of the steps are llama.cpp's.

    Args:
        target: The llama_cpp.Llama; needed by the penalties alone, which count over its vocabulary.

    Raises:
        ArgumentError: A setting is out of range, or a penalty was asked for without a target.
    """

    _chain: Any = None

    def __init__(
        self,
        target: Any = None,
        *,
        temp: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        seed: int | None = None,
    ) -> None:
        temp = number(temp, "temp")
        top_p = number(top_p, "top_p", "more than 0 and at most 1", lambda x: 0 < x <= 1)
        min_p = number(min_p, "min_p", "0 to 1", lambda x: 0 <= x <= 1)
        repeat_penalty = number(repeat_penalty, "repeat_penalty", "more than 0", lambda x: x > 0)
        frequency_penalty = number(frequency_penalty, "frequency_penalty")
        presence_penalty = number(presence_penalty, "presence_penalty")
        penalty_last_n = integer(penalty_last_n, "penalty_last_n")
        if penalty_last_n < 0:
            raise errors.ArgumentError(f"penalty_last_n is {penalty_last_n}, expected 0 or more")
        top_k = integer(top_k, "top_k")
        seed = llama_cpp.LLAMA_DEFAULT_SEED if seed is None else integer(seed, "seed") & 0xFFFFFFFF
        penalties = repeat_penalty != 1.0 or frequency_penalty != 0.0 or presence_penalty != 0.0
        if target is not None:
            require_llama(target)
        elif penalties:
            raise errors.ArgumentError("penalties count over the target's vocabulary: give the Llama as target")
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._chain = chain

        def add(sampler: Any) -> None:
            llama_cpp.llama_sampler_chain_add(chain, sampler)

        if penalties:
            add(
                llama_cpp.llama_sampler_init_penalties(
                    target.n_vocab(), penalty_last_n, repeat_penalty, frequency_penalty, presence_penalty
                )
            )
        if temp <= 0:
            add(llama_cpp.llama_sampler_init_greedy())
        else:
            add(llama_cpp.llama_sampler_init_top_k(top_k))
            add(llama_cpp.llama_sampler_init_top_p(top_p, 1))
            add(llama_cpp.llama_sampler_init_min_p(min_p, 1))
            add(llama_cpp.llama_sampler_init_temp(temp))
            add(llama_cpp.llama_sampler_init_dist(seed))

    @property
    def sampler(self) -> Any:
        """The llama_sampler pointer, as llama_cpp has it."""
        if self._chain is None:
            raise errors.StateError("the sampler is closed")
        return self._chain

    def reset(self) -> None:
        """Forgets the accepted tokens and restarts the random numbers from the seed."""
        llama_cpp.llama_sampler_reset(self.sampler)

    def close(self) -> None:
        """Frees the chain. May be called more than once."""
        chain, self._chain = self._chain, None
        if chain is not None:
            llama_cpp.llama_sampler_free(chain)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if llama_cpp is not None:  # interpreter shutdown clears modules
            self.close()


def sampler_pointer(sampler: Any) -> Any:
    """struct llama_sampler * of None (greedy), a Sampler, or an object of llama_cpp's with a ``sampler`` pointer."""
    if sampler is None:
        return ffi.NULL
    raw = getattr(sampler, "sampler", sampler)
    # only a pointer of llama_cpp's own type: any other number would be followed to wherever it leads
    if not isinstance(raw, llama_cpp.llama_sampler_p_ctypes) or not raw:
        raise errors.ArgumentError(f"the sampler is {sampler!r}, expected None, a Sampler or a llama_sampler pointer")
    return ffi.cast("struct llama_sampler *", ctypes.cast(raw, ctypes.c_void_p).value)


class _CheckedSampler(LlamaSampler):  # type: ignore[misc, unused-ignore]
    """llama_cpp's sampler, whose sample() raises where llama.cpp would end the process."""

    def sample(self, ctx: Any, idx: int = -1) -> int:
        token = ffi.new("int32_t *")
        target = ffi.cast("struct llama_context *", ctypes.cast(ctx.ctx, ctypes.c_void_p).value)
        check(lib.dspark_sample(target, sampler_pointer(self), idx, token))
        return int(token[0])


def checked_sampler(init: Any, *args: Any, grammar: Any = None, **kwargs: Any) -> LlamaSampler:
    """What the base's ``_init_sampler`` makes, if llama.cpp can run it."""
    if grammar is not None:
        require_grammar(grammar)
    sampler = init(*args, grammar=grammar, **kwargs)
    chain = sampler.sampler
    if not all(llama_cpp.llama_sampler_chain_get(chain, i) for i in range(llama_cpp.llama_sampler_chain_n(chain))):
        sampler.close()
        raise errors.ArgumentError(
            "the grammar is not valid GBNF with a root rule and no left recursion; stderr has what llama.cpp says of it"
        )
    sampler.__class__ = _CheckedSampler
    return sampler
