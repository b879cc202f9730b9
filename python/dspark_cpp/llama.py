"""The drop-in: a llama_cpp.Llama that decodes with a draft."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import LlamaTokenizer

from . import errors
from . import state as saved
from ._native import BaseLlama
from ._native import tokens as as_tokens
from .draft import Draft
from .draft_settings import DraftSettings, draft_limit, refuse_typos
from .drafters import Drafter
from .engines import DraftEngine, PlainEngine
from .generation import generate, restore_logits
from .incremental_tokenizer import IncrementalTokenizer
from .interrupts import can_give_up, interruptible, watch
from .kernels import install as install_kernels
from .lookup import LookupDrafter
from .sampling import checked_sampler
from .session import Session
from .speculation import Speculation
from .target import FeatureTap, refuse_draft
from .turns import Turns

__all__ = ["Llama"]

log = logging.getLogger("dspark_cpp")


class Llama(BaseLlama):  # type: ignore[misc, unused-ignore]
    """llama_cpp.Llama, faster by a draft; everything else about it is the base's.

    Every keyword of llama_cpp.Llama is taken, and:

    Hybrid targets, whose memory is partly recurrent, get a context with ``n_rs_seq`` snapshots to be drafted for.

    Args:
        draft: Path of a draft's GGUF file, a Draft, any Drafter, a LlamaDraftModel, or None; also as ``draft_model``.
        draft_n_max: Most drafted tokens a round; None: chosen automatically; 0: no drafting until ``llm.draft_n_max``
            is set.
        draft_n_gpu_layers: 0: the draft stays on the CPU; any other number: it goes to the GPU; None: as the target.
        draft_n_threads: Threads of the draft; None: those of the target.
        draft_n_ctx: Longest sequence that is drafted for; None: no limit.
        draft_type_k, draft_type_v: Types of the draft's cache, "f16" by default.
        kernels: Whether this package's CPU kernels compute the model: "auto" (where they can), "on" or "off"
            (llama.cpp's own). They make small batches cheap and the text the same with and without a draft; on
            quantised models it differs from llama.cpp's in 3 to 6 of 100 tokens, by rounding. The setting is the
            whole process's; see ``dspark_cpp.kernels``.
        flash_attn: As the base's; by default on where the kernels are, which make it the faster choice.
        draft_verify: "match": seeds give the text of plain decoding; "rejection": more drafts stand when sampling, and
            the distribution of the text is the same; see Session and ``llm.speculation.match_reason``.
        confidence_min: A proposal ends before the first token whose confidence is lower; 0: off.

    ``llm.draft_n_max`` may be assigned at any time, also while a stream is read; ``with llm.drafting(n_max=0): ...``
    sets it for some calls. ``llm.speculation`` tells what drafting brought, or why it is off.

    Calls from several threads are served in turn. A stream goes on from its own text if others used the object since.

    Raises:
        ArgumentError: A keyword is out of its range, or looks like a misspelled one of these.
        FileError, FormatError: The draft cannot be read, or the target is a draft.
        MismatchError: They do not belong together.
    """

    #: tokens that the completion which calls generate() next will take; None or 0: no limit
    _n_wanted: int | None = None

    #: drafted tokens of a round, for the context that __init__ is about to make
    _n_snapshots = 0

    #: an evaluation callback for the context that __init__ is about to make
    _tap: FeatureTap | None = None

    # of an object that attach() made one of ours
    _kernels: Literal["auto", "on", "off"] = "off"
    _can_give_up = False

    # of the base
    input_ids: Any
    scores: Any
    n_tokens: int
    tokenizer_: Any

    def __init__(
        self,
        model_path: str,
        *,
        draft: Draft | str | os.PathLike[str] | Drafter | LlamaDraftModel | None = None,
        draft_model: Draft | str | os.PathLike[str] | Drafter | LlamaDraftModel | None = None,
        draft_n_max: int | None = None,
        draft_n_gpu_layers: int | None = None,
        draft_n_threads: int | None = None,
        draft_n_ctx: int | None = None,
        draft_type_k: str = "f16",
        draft_type_v: str = "f16",
        draft_verify: Literal["match", "rejection"] = "match",
        confidence_min: float = 0.0,
        kernels: Literal["auto", "on", "off"] = "auto",
        flash_attn: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if draft is not None and draft_model is not None:
            raise errors.ArgumentError("draft and draft_model are the same; give one of them")
        settings = DraftSettings(
            draft=draft_model if draft is None else draft,
            draft_n_max=draft_n_max,
            draft_n_gpu_layers=draft_n_gpu_layers,
            draft_n_threads=draft_n_threads,
            draft_n_ctx=draft_n_ctx,
            draft_type_k=draft_type_k,
            draft_type_v=draft_type_v,
            draft_verify=draft_verify,
            confidence_min=confidence_min,
        )
        refuse_typos(kwargs, ["draft_model", "kernels", *settings.as_keywords()])
        self._kernels = kernels
        active = install_kernels(kernels, model_path).active
        if flash_attn is None:
            flash_attn = active and not kwargs.get("n_gpu_layers")
        try:
            layers, self._n_snapshots = settings.wants()  # what is no draft is refused before the target is loaded
        except errors.FormatError:
            refuse_draft(model_path)  # the two are swapped
            raise
        if layers:
            self._tap = FeatureTap(layers)
        try:
            super().__init__(os.fspath(model_path), flash_attn=flash_attn, **kwargs)
        except BaseException as exception:
            if self._tap is not None:
                self._tap.free()
            if isinstance(exception, ValueError):
                refuse_draft(model_path)
            raise
        if self._tap is not None:
            self._tap.give_to(self)
            self._tap = None
        self._n_snapshots = 0
        watch(self)
        self._can_give_up = can_give_up(self)
        self._begin(settings)

    def _begin(self, settings: DraftSettings) -> None:
        """Everything that an object of the base lacks to be one of ours."""
        self._turns = Turns()
        if type(self.tokenizer_) is LlamaTokenizer:  # not a special one of the caller's
            self.tokenizer_ = IncrementalTokenizer(self)
        n_ctx = self._n_ctx  # which the base's own buffers fall short of where llama.cpp has rounded it up
        ids = np.zeros(n_ctx, np.intc)  # the base's are whatever was in memory, and are handed out for images
        ids[: self.n_tokens] = self.input_ids[: self.n_tokens]
        self.input_ids = ids
        if not self._logits_all:
            # the last row is all that anyone may ask for
            self.scores = np.zeros((1, self._n_vocab), np.single)
        elif len(self.scores) != n_ctx:
            scores = np.ndarray((n_ctx, self._n_vocab), np.single)
            scores[: self.n_tokens] = self.scores[: self.n_tokens]
            self.scores = scores
        self._use(settings)

    # --- the draft ----------------------------------------------------------------------------------------------------

    def _use(self, settings: DraftSettings) -> None:
        """Drafts with these settings from now on; the sequence stays."""
        old = self.__dict__.get("_engine")
        if isinstance(old, DraftEngine):
            old.follow(trusting=True)
            old.session.close()
        self._settings = settings
        self._draft: Draft | Drafter | LlamaDraftModel | None = None
        self._engine: PlainEngine = PlainEngine(self)
        reason: str | None = "no draft was given"
        if settings.draft is not None:
            reason = self._make_engine(settings)
            log.info("drafting with %s", self._draft) if reason is None else log.info("no drafting: %s", reason)
        self.speculation = Speculation(self._engine, reason, settings.draft_n_max)

    def _make_engine(self, settings: DraftSettings) -> str | None:
        if self.model_params.vocab_only:
            return "the Llama was opened with vocab_only=True: it has no weights"
        if self.context_params.embeddings:
            return "the Llama was opened with embedding=True: it does not generate"
        self._draft = settings.load(self)
        drafter = LookupDrafter(self._draft, self) if isinstance(self._draft, LlamaDraftModel) else self._draft

        def make_session(llm: Any, **arguments: Any) -> Session:
            return Session(llm, drafter, **arguments, **settings.session_arguments())

        engine = DraftEngine(self, make_session)
        reason = engine.session.disabled_reason
        if reason is None:
            self._engine = engine
        else:
            engine.session.close()
        return reason

    @property
    def draft(self) -> Draft | Drafter | LlamaDraftModel | None:
        """What proposes tokens, or None."""
        return self._draft

    @property
    def draft_model(self) -> Draft | Drafter | LlamaDraftModel | None:
        """The same by the base's name; may be assigned."""
        return self.__dict__.get("_draft")

    @draft_model.setter
    def draft_model(self, draft: Any) -> None:
        if "_engine" in self.__dict__:  # not yet in the base's constructor, which has got none
            with self._call():
                self._use(DraftSettings(**{**self._settings.__dict__, "draft": draft}))

    @property
    def draft_n_max(self) -> int | None:
        """Most drafted tokens of a round from now on: None for automatic, 0 for none."""
        return self.speculation.n_max

    @draft_n_max.setter
    def draft_n_max(self, n_max: int | None) -> None:
        _ = self.ctx
        self.speculation.n_max = draft_limit(n_max)

    @contextmanager
    def drafting(self, *, n_max: int | None) -> Iterator[None]:
        """``draft_n_max`` for the calls inside of a with statement."""
        before, self.draft_n_max = self.draft_n_max, n_max
        try:
            yield
        finally:
            self.speculation.n_max = before  # also if it was closed meanwhile

    @property
    def _model(self) -> Any:
        return self.__dict__["_model"]

    @_model.setter
    def _model(self, model: Any) -> None:
        self.__dict__["_model"] = model
        if "_ctx" in self.__dict__:
            return
        # the base's constructor has the model, and makes the context next
        refuse_draft(self.model_path, model)
        if self._tap is not None and self._tap.is_needed(model):
            self._tap.fill(self.context_params)
        if self._n_snapshots and (
            llama_cpp.llama_model_is_recurrent(model.model) or llama_cpp.llama_model_is_hybrid(model.model)
        ):
            # of the state after each of the last tokens, to take rejected ones back; none where llama.cpp cannot
            # (and that needs two tokens more in its batches)
            self.context_params.n_rs_seq = max(0, min(self._n_snapshots, self.context_params.n_ubatch - 2))

    # --- decoding -----------------------------------------------------------------------------------------------------

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: llama_cpp.LogitsProcessorList | None = None,
        stopping_criteria: llama_cpp.StoppingCriteriaList | None = None,
        grammar: llama_cpp.LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yields the tokens that follow a prompt; see llama_cpp.Llama.generate().

        Tokens that are sent back follow the one just yielded, and generation goes on behind them.
        """
        steps = generate(
            self,
            tokens,
            reset=reset,
            stopping_criteria=stopping_criteria,
            logits_processor=logits_processor,
            sampling={
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "typical_p": typical_p,
                "temp": temp,
                "repeat_penalty": repeat_penalty,
                "frequency_penalty": frequency_penalty,
                "presence_penalty": presence_penalty,
                "tfs_z": tfs_z,
                "mirostat_mode": mirostat_mode,
                "mirostat_tau": mirostat_tau,
                "mirostat_eta": mirostat_eta,
                "penalize_nl": penalize_nl,
                "grammar": grammar,
            },
        )
        return self._turns.serve(steps)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """The body is one call, of an object that is open."""
        with self._turns.call():
            _ = self.ctx
            yield

    def eval(self, tokens: Sequence[int]) -> None:
        """Decodes tokens behind the first ``n_tokens`` of the sequence; the draft sees them too."""
        with self._call():
            self._engine.follow(trusting=True)
            self._engine.append(as_tokens(tokens))

    def _eval_plainly(self, tokens: list[int]) -> None:
        first = self.n_tokens

        def failure() -> RuntimeError | None:
            try:
                BaseLlama.eval(self, tokens[self.n_tokens - first :])
            except RuntimeError as error:
                return error
            return None

        error = interruptible(failure) if self._can_give_up else failure()
        try:
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame, which would keep the weights

    def sample(self, *args: Any, idx: int | None = None, **kwargs: Any) -> int:
        """Samples from the logits at ``idx``, the last position by default; see llama_cpp.Llama.sample()."""
        with self._call():
            if not self.n_tokens:
                raise errors.StateError("there is nothing to sample from: no tokens were decoded")
            restore_logits(self, self._engine)
            if idx is not None and idx != self.n_tokens - 1 and not self._logits_all:
                raise errors.ArgumentError(
                    f"idx is {idx}, expected {self.n_tokens - 1}: without logits_all there are logits of the last token"
                )
            return int(super().sample(*args, idx=idx, **kwargs))

    def _init_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return checked_sampler(super()._init_sampler, *args, **kwargs)

    def reset(self) -> None:
        """Forgets the sequence."""
        with self._call():
            super().reset()

    def set_seed(self, seed: int) -> None:
        """See llama_cpp.Llama.set_seed()."""
        _ = self.ctx
        super().set_seed(seed)

    def set_cache(self, cache: Any) -> None:
        """See llama_cpp.Llama.set_cache()."""
        _ = self.ctx
        super().set_cache(cache)

    def tokenizer(self) -> LlamaTokenizer:
        """The model's own tokenizer, whatever ``tokenizer_`` is."""
        _ = self.ctx
        return IncrementalTokenizer(self)

    def embed(self, *args: Any, **kwargs: Any) -> Any:
        """See llama_cpp.Llama.embed()."""
        with self._call():
            return super().embed(*args, **kwargs)

    def _create_completion(
        self, *args: Any, logits_processor: Any = None, logit_bias: dict[int, float] | None = None, **kwargs: Any
    ) -> Any:
        if logits_processor is not None and logit_bias is not None:
            logits_processor = _Extensible(logits_processor)
        kwargs |= {"logits_processor": logits_processor, "logit_bias": logit_bias}
        return self._turns.serve(self._completion(super()._create_completion(*args, **kwargs), kwargs))

    def _completion(self, completion: Any, arguments: dict[str, Any]) -> Generator[Any, None, None]:
        self._n_wanted = arguments.get("max_tokens")  # for the generate() that the base is about to call
        yield from completion

    # --- state --------------------------------------------------------------------------------------------------------

    def save_state(self) -> llama_cpp.LlamaState:
        """The sequence, with the draft's side of it; a plain llama_cpp.Llama can load it too."""
        with self._call():
            self._engine.follow(trusting=True)
            return saved.save(self, super().save_state())

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Takes back a saved sequence; one saved without a draft, or with another, makes the draft begin anew."""
        if not isinstance(state, llama_cpp.LlamaState):
            raise errors.ArgumentError(f"the state is a {type(state).__name__}, expected a LlamaState of save_state()")
        with self._call():
            saved.load(self, state)

    def __getstate__(self) -> dict[str, Any]:
        settings = {**self._settings.as_keywords(), "draft_n_max": self.draft_n_max, "kernels": self._kernels}
        base: dict[str, Any] = super().__getstate__()
        del base["draft_model"]
        return {**base, **settings}

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        *args: Any,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        **kwargs: Any,
    ) -> Llama:
        """See llama_cpp.Llama.from_pretrained(); the draft is ``draft_filename`` (a name or pattern) of
        ``draft_repo_id``, or of the same repository."""
        if draft_filename is not None:
            where = {k: kwargs[k] for k in ("local_dir", "local_dir_use_symlinks", "cache_dir") if k in kwargs}
            find = BaseLlama.from_pretrained.__func__
            kwargs["draft"] = find(_PathOnly, draft_repo_id or repo_id, draft_filename, **where)
        elif draft_repo_id is not None:
            raise errors.ArgumentError(f"draft_repo_id is {draft_repo_id!r} without a draft_filename")
        llm: Llama = super().from_pretrained(repo_id, filename, *args, **kwargs)
        return llm

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees everything; may be called more than once. Waits for a call of another thread to end.

        Raises: StateError: It was called from inside one of the Llama's own calls (a logits processor).
        """
        if "_turns" in self.__dict__:
            if self._turns.inside():
                raise errors.StateError("the Llama cannot be closed from inside one of its own calls")
            with self._turns.call():
                _ = self.speculation.total, self.speculation.exact  # stay readable
                self._free()
                self._model = self._ctx = self._batch = self.tokenizer_ = _Closed()

    def __del__(self) -> None:
        if "_stack" in self.__dict__:  # else __init__ has refused its arguments
            self._free()

    def _free(self) -> None:
        if isinstance(self.__dict__.get("_engine"), DraftEngine):
            self._engine.session.close()  # type: ignore[attr-defined]
        super().close()


class _Extensible(llama_cpp.LogitsProcessorList):  # type: ignore[misc, unused-ignore]
    """The base joins its logit_bias to a list by the result of extend(), which is None, and loses both."""

    def extend(self, other: Any) -> _Extensible:
        return _Extensible([*self, *other])


class _PathOnly:
    """What from_pretrained() makes of a draft: the path of the file that it has found and fetched."""

    def __new__(cls, model_path: str) -> str:  # type: ignore[misc]
        return model_path


class _Closed:
    """In place of what a closed Llama has freed: llama.cpp would crash on it."""

    def __getattr__(self, name: str) -> Any:
        raise errors.StateError("the Llama is closed")
