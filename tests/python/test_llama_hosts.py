"""Others on the same object: hosts that decode on its context or assign its record, attach(), and install()."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama
import numpy as np
import pytest
from dspark_cpp import ArgumentError, Llama, MismatchError, attach, detach, install, open_target, uninstall
from llama_settings import SETTINGS
from scripted import PROMPT
from tiny_mrope import decode_image, write_mrope


@pytest.fixture
def plain(paths: tuple[str, str]) -> Iterator[Any]:
    llm = llama_cpp.Llama(paths[0], **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture
def llm(paths: tuple[str, str]) -> Iterator[Llama]:
    llm = Llama(paths[0], draft=paths[1], **SETTINGS)
    yield llm
    llm.close()


def take(llm: Any, prompt: list[int], n: int) -> list[int]:
    return list(itertools.islice(llm.generate(prompt, temp=0.0), n))


def decode(llm: Any, tokens: list[int], first: int) -> None:
    """What a host does that drives the context itself."""
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(llm.ctx), 0, first, -1)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    llama_cpp.llama_batch_free(batch)


# --- foreign decodes --------------------------------------------------------------------------------------------------


def test_guidance_may_decode_on_the_context_and_reads_plain_logits(llm: Llama, plain: Any) -> None:
    """It drives llama_decode itself and says nothing: the cached prompt must not be taken for what is there."""
    take(llm, PROMPT, 10)
    other = [256, *b"something else entirely, and longer"]
    for one in (llm, plain):
        decode(one, other, 0)
    rows = [
        np.array([llama_cpp.llama_get_logits_ith(one.ctx, i)[:320] for i in range(len(other))]) for one in (llm, plain)
    ]
    np.testing.assert_array_equal(*rows)
    assert take(llm, PROMPT, 20) == take(plain, PROMPT, 20)
    assert llm.speculation.last.n_prompt == len(PROMPT)


def test_a_host_that_assigns_the_record_is_believed(llm: Llama, plain: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As the multimodal handlers and old text-generation-webui do."""
    caplog.set_level(logging.INFO, "dspark_cpp")
    results = []
    for one in (plain, llm):
        one.reset()
        one._ctx.kv_cache_clear()
        one.eval(PROMPT[:10])
        decode(one, PROMPT[10:25], 10)
        one.input_ids[10:25] = PROMPT[10:25]
        one.n_tokens = 25
        one.eval(PROMPT[25:])
        prompt = one.input_ids[: one.n_tokens].tolist()
        results.append(take(one, prompt, 40))
        assert prompt == PROMPT
    assert results[0] == results[1]
    assert llm.speculation.last.draft_n > 0 and llm.speculation.last.n_prompt <= 1
    assert "the draft goes on from position 25" in caplog.text


@pytest.fixture(scope="module")
def images(tiny_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_mrope(tiny_path("target-qwen3"), tmp_path_factory.mktemp("mrope") / "qwen2vl.gguf"))


@pytest.mark.parametrize("after", ["text, evaluated", "text, in the prompt", "one token", "one token, evaluated"])
def test_b6_text_behind_an_image_is_the_same_and_drafted_for(after: str, images: str) -> None:
    """Its rows stand at one position, and the next text behind a grid: the memory ends before n_tokens says."""

    class Drafter:
        n_draft_max = 4
        target_layers = (1,)
        appended: list[int] = []
        n_proposed = 0

        def propose(self, anchor: int, position: int, n_max: int) -> list[int]:
            self.n_proposed += 1
            return [7] * n_max

        def append(self, features: Any, position: int) -> None:
            self.appended += range(position, position + len(features))

        def rewind(self, n_past: int) -> None:
            pass

    drafter = Drafter()
    tokens = PROMPT[10:11] if after.startswith("one") else PROMPT[10:20]
    results = []
    for one in (llama_cpp.Llama(images, **SETTINGS), Llama(images, draft=drafter, **SETTINGS)):
        for _ in range(2):
            one.reset()
            one._ctx.kv_cache_clear()
            one.input_ids[:30] = 0  # the base's are whatever was in memory
            one.eval(PROMPT[:10])
            decode_image(one, 6, 4)
            prompt = [*one.input_ids[: one.n_tokens].tolist(), *tokens]
            if after.endswith("evaluated"):
                one.eval(tokens)
            results.append((take(one, prompt, 40), one.n_tokens, one._input_ids.tolist()[16:]))
        results.append((take(one, PROMPT, 20), one.n_tokens, []))
        one.close()
    assert results[:3] == results[3:]
    assert results[0] == results[1]
    assert drafter.n_proposed > 70
    first = drafter.appended[10:40]  # behind the text before the image
    assert first[0] >= 16 and first == list(range(first[0], first[0] + len(first))), "consecutive, none the image's"


@pytest.mark.parametrize("what", ["cleared", "shortened", "lengthened"])
def test_memory_that_others_changed_never_spoils_a_text(what: str, llm: Llama, plain: Any) -> None:
    want = take(plain, PROMPT, 30)
    for n in (1, 4, 9):
        take(llm, PROMPT, n)
        memory = llama_cpp.llama_get_memory(llm.ctx)
        if what == "cleared":
            llm._ctx.kv_cache_clear()
        elif what == "shortened":
            llama_cpp.llama_memory_seq_rm(memory, 0, 20, -1)
        else:
            decode(llm, [65, 66], llm.n_tokens)
        assert take(llm, PROMPT, 30) == want


def test_the_record_may_be_cut_by_assignment(llm: Llama, plain: Any) -> None:
    results = []
    for one in (plain, llm):
        take(one, PROMPT, 12)
        one.n_tokens = 15
        one.eval([65, 66])
        results.append((take(one, [*PROMPT[:15], 65, 66, 67], 20), one._input_ids.tolist()))
    assert results[0] == results[1]


def test_the_record_may_be_replaced_by_assignment(llm: Llama, plain: Any) -> None:
    results = []
    for one in (plain, llm):
        take(one, PROMPT, 12)
        one.input_ids = np.array(one.input_ids)
        one.scores = np.array(one.scores)
        one.n_tokens = 0
        results.append(take(one, PROMPT, 20))
    assert results[0] == results[1]


# --- attach and detach ------------------------------------------------------------------------------------------------


def test_attach_gives_an_existing_object_a_draft_and_detach_takes_it(plain: Any, paths: tuple[str, str]) -> None:
    want = take(plain, PROMPT, 40)
    names = set(vars(plain))
    scores, tokenizer = plain.scores.shape, type(plain.tokenizer_)
    same = attach(plain, paths[1], draft_n_max=4)
    assert same is plain and isinstance(plain, Llama) and isinstance(plain, llama_cpp.Llama)
    assert plain.draft_n_max == 4
    assert take(plain, PROMPT, 40) == want
    assert plain.speculation.last.draft_n > 0
    assert plain.speculation.last.n_prompt == 1, "the sequence was kept"
    assert detach(plain) is plain
    assert type(plain) is llama_cpp.Llama and set(vars(plain)) <= names | {"draft_model"}
    assert plain.scores.shape == scores and type(plain.tokenizer_) is tokenizer
    assert take(plain, PROMPT, 40) == want


def test_attach_to_one_of_ours_changes_its_draft(llm: Llama, plain: Any, converted: Callable[..., Path]) -> None:
    want = take(plain, PROMPT, 40)
    before = llm.draft
    take(llm, PROMPT, 10)
    attach(llm, str(converted("spk-dflash")))
    assert llm.draft is not before
    assert take(llm, PROMPT, 40) == want and llm.speculation.last.draft_n > 0
    with pytest.raises(MismatchError):
        attach(llm, str(converted("spk-dspark-gemma4")))
    assert take(llm, PROMPT, 40) == want and llm.speculation.last.draft_n > 0, "as before"
    detach(llm)
    assert type(llm) is Llama and llm.draft is None
    assert llm.speculation.disabled_reason == "no draft was given"
    assert take(llm, PROMPT, 40) == want
    llm.draft_model = before
    assert take(llm, PROMPT, 40) == want and llm.speculation.last.draft_n > 0


def test_attach_keeps_what_a_derived_class_overrides(paths: tuple[str, str]) -> None:
    class Mine(llama_cpp.Llama):  # type: ignore[misc]
        def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> Any:
            return super().tokenize(text.lower(), add_bos, special)

    llm = Mine(paths[0], **SETTINGS)
    attach(llm, paths[1])
    assert isinstance(llm, Mine) and isinstance(llm, Llama) and llm.tokenize(b"ABC") == [256, *b"abc"]
    assert len(take(llm, PROMPT, 10)) == 10 and llm.speculation.last.draft_n > 0
    detach(llm)
    assert type(llm) is Mine
    llm.close()


def test_attach_that_fails_leaves_the_object_alone(
    plain: Any, converted: Callable[..., Path], tiny_path: Callable[[str], Path]
) -> None:
    want = take(plain, PROMPT, 10)
    for draft, settings, error in (
        (str(converted("spk-dspark-gemma4")), {}, MismatchError),
        (str(tiny_path("target-qwen3")), {}, ValueError),
        ("nowhere.gguf", {}, OSError),
        (str(converted("spk-dflash")), {"draft_nmax": 3}, ArgumentError),
        (17, {}, ArgumentError),
    ):
        with pytest.raises(error):
            attach(plain, draft, **settings)
        assert type(plain) is llama_cpp.Llama
        assert take(plain, PROMPT, 10) == want
    with pytest.raises(ArgumentError, match="has no draft"):
        detach(plain)


def test_attach_to_an_object_whose_memory_was_emptied_begins_anew(plain: Any, paths: tuple[str, str]) -> None:
    want = take(plain, PROMPT, 20)
    plain._ctx.kv_cache_clear()
    attach(plain, paths[1])
    assert take(plain, PROMPT, 20) == want
    assert plain.speculation.last.n_prompt == len(PROMPT)


def test_attach_replaces_a_stock_draft_model_and_detach_gives_it_back(paths: tuple[str, str], plain: Any) -> None:
    lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding()
    llm = llama_cpp.Llama(paths[0], draft_model=lookup, **{**SETTINGS, "n_batch": 64})
    attach(llm, paths[1])
    assert llm._logits_all is False and take(llm, PROMPT, 60) == take(plain, PROMPT, 60)
    detach(llm)
    assert llm.draft_model is lookup and llm._logits_all is True and llm.scores.shape == (64, 320)
    assert take(llm, PROMPT[:10], 10) == take(plain, PROMPT[:10], 10)
    llm.close()


def test_attach_works_on_a_target_that_was_opened_with_a_tap(paths: tuple[str, str], plain: Any) -> None:
    llm = open_target(paths[0], **SETTINGS)
    attach(llm, paths[1])
    assert take(llm, PROMPT, 20) == take(plain, PROMPT, 20)
    llm.close()


# --- install ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()


def test_install_makes_llama_cpps_name_ours_and_uninstall_gives_it_back(paths: tuple[str, str], plain: Any) -> None:
    base = llama_cpp.Llama
    install()
    install()
    try:
        assert llama_cpp.Llama is llama_cpp.llama.Llama is Llama
        llm = llama_cpp.Llama(paths[0], draft=paths[1], f16_kv=True, n_parts=-1, **SETTINGS)
        assert take(llm, PROMPT, 20) == take(plain, PROMPT, 20)
        llm.create_completion("x", max_tokens=3)
        llm.close()
        with open_target(paths[0], **SETTINGS)._stack:
            pass
        attached = attach(base(paths[0], **SETTINGS), paths[1])
        assert take(attached, PROMPT, 20) == take(plain, PROMPT, 20)
        attached.close()
    finally:
        uninstall()
    assert llama_cpp.Llama is llama_cpp.llama.Llama is base
    uninstall()
    assert llama_cpp.Llama is base


def test_what_the_base_made_still_works_while_ours_is_installed(installed: None, plain: Any) -> None:
    cache = llama_cpp.LlamaRAMCache()
    plain.set_cache(cache)
    for _ in range(2):
        plain.create_completion("The lighthouse", max_tokens=5, temperature=0.0)
    assert len(take(plain, PROMPT, 5)) == 5
