"""Every public call, by llama_cpp.Llama and by ours with a draft: the same response, and the same object after it."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, Llama, StateError
from llama_cpp import _internals
from llama_settings import PLAIN as SETTINGS
from same import collect, differences
from scripted import PROMPT, Recorder

TEXT = "The lighthouse at the end of the "

Pair = tuple[Any, Any]


def make_pair(target: Path, draft: Path, **settings: Any) -> Pair:
    settings = {**SETTINGS, **settings}
    return llama_cpp.Llama(str(target), **settings), Llama(str(target), draft=str(draft), **settings)


@pytest.fixture(scope="module")
def pair(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> Iterator[Pair]:
    plain, drafted = make_pair(tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    yield plain, drafted
    plain.close(), drafted.close()


@pytest.fixture(scope="module")
def pair_logits(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> Iterator[Pair]:
    plain, drafted = make_pair(tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"), logits_all=True)
    yield plain, drafted
    plain.close(), drafted.close()


def same(pair: Pair, call: Callable[[Any], Any]) -> Any:
    """Runs a call with both and compares the results and the objects' public state; returns the result."""
    plain, drafted = pair
    want, got = collect(call(plain)), collect(call(drafted))
    assert differences(want, got) == []
    assert drafted.n_tokens == plain.n_tokens
    assert drafted._input_ids.tolist() == plain._input_ids.tolist()
    memory = [llama_cpp.llama_get_memory(llm.ctx) for llm in pair]
    assert llama_cpp.llama_memory_seq_pos_max(memory[1], 0) == llama_cpp.llama_memory_seq_pos_max(memory[0], 0)
    if plain._logits_all:
        np.testing.assert_allclose(drafted._scores, plain._scores, atol=5e-4)
    return want


def complete(**arguments: Any) -> Callable[[Any], Any]:
    arguments = {"prompt": TEXT, "max_tokens": 40, "temperature": 0.0, "seed": 1, **arguments}
    return lambda llm: llm.create_completion(**arguments)


# --- completion -------------------------------------------------------------------------------------------------------

SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "default": {"temperature": 0.8},
    "hot": {"temperature": 1.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "negative temperature": {"temperature": -1.0},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.5},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
    "typical_p": {"temperature": 1.0, "typical_p": 0.6},
    "mirostat": {"temperature": 1.0, "mirostat_mode": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "mirostat 2": {"temperature": 1.0, "mirostat_mode": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "repeat penalty": {"repeat_penalty": 1.3},
    "presence penalty": {"presence_penalty": 0.7},
    "frequency penalty": {"frequency_penalty": 0.5},
    "all penalties": {"temperature": 0.9, "repeat_penalty": 1.2, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    "logit bias": {"logit_bias": {"115": -100, "101": 3}},
    "logit bias, hot": {"temperature": 1.2, "logit_bias": {"32": -100.0}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_completion_is_the_same_with_every_sampler(sampler: str, stream: bool, pair: Pair) -> None:
    same(pair, complete(stream=stream, **SAMPLERS[sampler]))


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, None])
def test_completion_is_the_same_with_every_seed(seed: int | None, pair: Pair) -> None:
    for llm in pair:
        llm.set_seed(77)
    first = same(pair, complete(temperature=1.5, seed=seed))
    second = same(pair, complete(temperature=1.5, seed=seed))
    assert seed is None or first == second


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [-1, None, *range(10)])
def test_completion_is_the_same_for_every_max_tokens(n: int | None, stream: bool, pair: Pair) -> None:
    prompt = TEXT if n is not None and n > 0 else "x" * 470  # without a limit: to the end of the context
    result = same(pair, complete(prompt=prompt, max_tokens=n, stream=stream))
    if not stream and n is not None and n > 0:
        assert result["usage"]["completion_tokens"] == n


def test_every_piece_of_an_accepted_block_may_be_a_stop_string(pair: Pair) -> None:
    """C14: also across tokens and rounds, streamed or not, and against max_tokens."""
    with pair[1].drafting(n_max=7):
        check_every_piece(pair)


def check_every_piece(pair: Pair) -> None:
    text = same(pair, complete())["choices"][0]["text"]
    assert pair[1].speculation.last.draft_n_accepted > 10
    for i, width, stream in itertools.product(range(0, 20), (1, 2, 5), (False, True)):
        stop = text[i : i + width]
        result = same(pair, complete(stop=[stop], stream=stream))
        if not stream:
            assert result["choices"][0]["text"] == text[: text.index(stop)]
            assert result["choices"][0]["finish_reason"] == "stop"
    for i in range(8):
        same(pair, complete(stop=[text[i : i + 2], text[i + 3]], max_tokens=5))
        # the next call with the same seed is also the plain one
        same(pair, complete(temperature=1.0))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"echo": True},
        {"suffix": " and more"},
        {"prompt": ""},
        {"prompt": "x"},
        {"prompt": [256]},
        {"prompt": PROMPT},
        {"prompt": "a" * 505},
        {"stop": "th"},
        {"model": "a name"},
        {"prompt": "Grüße, 日本語 "},
    ],
    ids=lambda a: str(a)[:30],
)
def test_completion_is_the_same_with_the_other_arguments(arguments: dict[str, Any], stream: bool, pair: Pair) -> None:
    if arguments.get("echo") and stream:
        pytest.skip("the base does not echo a stream")
    same(pair, complete(stream=stream, **arguments))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"echo": True}, {"temperature": 1.0}, {"stop": ["e"]}, {"max_tokens": 1}, {"repeat_penalty": 1.3}],
    ids=str,
)
def test_c12_logprobs_are_the_targets_own(arguments: dict[str, Any], stream: bool, pair_logits: Pair) -> None:
    if arguments.get("echo") and stream:
        pytest.skip("the base does not echo a stream")
    result = same(pair_logits, complete(logprobs=5, stream=stream, **arguments))
    if not stream and not arguments:
        got = result["choices"][0]["logprobs"]
        assert len(got["tokens"]) == result["usage"]["completion_tokens"] == 40
        assert len(set(got["token_logprobs"])) > 30, "not the certainty of a token that was sampled already"


def test_logprobs_without_logits_all_are_refused_as_by_the_base(pair: Pair) -> None:
    for llm in pair:
        with pytest.raises(ValueError, match="logits_all=False"):
            llm.create_completion(TEXT, logprobs=1)


def test_a_prompt_longer_than_the_context_is_refused_as_by_the_base(pair: Pair) -> None:
    for llm in pair:
        with pytest.raises(ValueError, match="exceed context window of 512"):
            llm.create_completion("x" * 600)


def test_e11_a_prompt_of_no_tokens_is_an_error(pair: Pair) -> None:
    pair[1].reset()
    with pytest.raises(ArgumentError, match="prompt is empty"):
        next(pair[1].generate([]))


# --- chat -------------------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the lighthouse"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "finds",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"temperature": 0.8},
        {"stop": ["e"]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"logit_bias": {"32": -100.0}},
        {"max_tokens": 1},
    ],
    ids=str,
)
def test_chat_is_the_same(arguments: dict[str, Any], stream: bool, pair: Pair) -> None:
    arguments = {"max_tokens": 60, "temperature": 0.0, "seed": 4, **arguments}
    result = same(pair, lambda llm: llm.create_chat_completion(MESSAGES, stream=stream, **arguments))
    if "schema" in arguments.get("response_format", {}) and not stream:
        answer = json.loads(result["choices"][0]["message"]["content"])
        assert set(answer) == {"name", "ok"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", ["auto", {"type": "function", "function": {"name": "find"}}], ids=["auto", "named"])
def test_tools_are_called_the_same_way(
    choice: Any, stream: bool, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    settings = {"n_ctx": 1024, "chat_format": "chatml-function-calling"}
    pair = make_pair(tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"), **settings)

    def call(llm: Any) -> Any:
        return llm.create_chat_completion(
            MESSAGES, tools=[TOOL], tool_choice=choice, max_tokens=50, temperature=0.0, seed=1, stream=stream
        )

    if choice == "auto" and stream:
        for llm in pair:
            with pytest.raises(ValueError, match="streaming tool choice is not supported"):
                call(llm)
    else:
        result = same(pair, call)
    for llm in pair:
        llm.close()
    if choice != "auto" and not stream:
        assert "n" in json.loads(result["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])


def test_chat_logprobs_are_the_same(pair_logits: Pair) -> None:
    same(pair_logits, lambda llm: llm.create_chat_completion(MESSAGES, logprobs=True, top_logprobs=3, temperature=0.0))


# --- grammar and chains of one's own ----------------------------------------------------------------------------------

GRAMMARS = {"yes or no": 'root ::= "yes" | "no"', "numbers": 'root ::= ([0-9]+ " ")*', "the text": "root ::= [a-z ]*"}


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_c11_a_grammar_holds_and_sees_emitted_tokens_only(grammar: str, temperature: float, pair: Pair) -> None:
    def call(llm: Any) -> Any:
        rules = llama_cpp.LlamaGrammar.from_string(GRAMMARS[grammar], verbose=False)
        return llm.create_completion(TEXT, grammar=rules, temperature=temperature, seed=2, max_tokens=30)

    text = same(pair, call)["choices"][0]["text"]
    if grammar == "yes or no":
        assert text in ("yes", "no")


def own_chain(llm: Any, build: Callable[[Any, Any], None]) -> None:
    """The Llama samples by a chain of the test's own, as one that was derived from it could."""

    def init(**_: Any) -> Any:
        chain = _internals.LlamaSampler()
        build(chain, llm)
        return chain

    llm._init_sampler = init


CHAINS: dict[str, Callable[[Any, Any], None]] = {
    "a grammar triggered in the middle of a block": lambda chain, llm: (
        chain.add_grammar_lazy_patterns(
            llm._model, llama_cpp.LlamaGrammar.from_string('root ::= "o" [0-9]*', verbose=False), ["[\\s\\S]*?(o)"], []
        ),
        chain.add_greedy(),
    ),
    "DRY": lambda chain, llm: (chain.add_dry(llm._model, 2.0, 1.75, 2, -1, ["\n"]), chain.add_greedy()),
    "XTC": lambda chain, llm: (chain.add_xtc(0.5, 0.1, 1, 3), chain.add_dist(3)),
    "top n sigma": lambda chain, llm: (chain.add_top_n_sigma(1.0), chain.add_dist(3)),
    "infill": lambda chain, llm: (chain.add_infill(llm._model), chain.add_dist(3)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_samplers_that_the_base_does_not_offer_act_the_same(name: str, pair: Pair) -> None:
    for llm in pair:
        own_chain(llm, CHAINS[name])
    try:
        same(pair, complete(max_tokens=60))
    finally:
        for llm in pair:
            del llm._init_sampler


# --- processors, criteria, and tokens sent ----------------------------------------------------------------------------


def test_c10_processors_see_each_emitted_token_once_with_true_history(pair: Pair) -> None:
    seen: dict[int, list[list[int]]] = {}

    def call(llm: Any) -> Any:
        histories = seen.setdefault(id(llm), [])

        def processor(ids: Any, scores: Any) -> Any:
            histories.append(ids.tolist())
            scores[115] -= len(ids) % 3  # depends on the history, and changes it
            return scores

        processors = llama_cpp.LogitsProcessorList([processor])
        return list(itertools.islice(llm.generate(PROMPT, temp=0.0, logits_processor=processors), 50))

    got = same(pair, call)
    plain, drafted = (seen[id(llm)] for llm in pair)
    assert drafted == plain == [[*PROMPT, *got[:i]] for i in range(50)]


def test_min_tokens_holds_back_the_end_for_exactly_as_many_tokens(pair: Pair) -> None:
    end = pair[0].token_eos()

    def call(llm: Any) -> Any:
        processors = llama_cpp.LogitsProcessorList(
            [lambda ids, scores: np.where(np.arange(len(scores)) == end, 1e9, scores)]  # it would end at once
        )
        processors.append(llama_cpp.MinTokensLogitsProcessor(20, end))
        return llm.create_completion(TEXT, max_tokens=40, temperature=0.0, logits_processor=processors)

    assert same(pair, call)["usage"]["completion_tokens"] == 20


def test_logits_processors_and_logit_bias_act_together(pair: Pair) -> None:
    """The base joins the two by the result of list.extend(), None, and applies neither."""
    calls = []

    def processor(ids: Any, scores: Any) -> Any:
        calls.append(len(ids))
        scores[101] = -np.inf
        return scores

    given = llama_cpp.LogitsProcessorList([processor])
    result = pair[1].create_completion(
        TEXT, max_tokens=30, temperature=0.0, logit_bias={"115": -100.0}, logits_processor=given
    )
    text = result["choices"][0]["text"]
    assert "s" not in text and "e" not in text and len(calls) == 30
    assert given == [processor], "the caller's list is left alone"


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("n", [0, 1, 4])
def test_what_a_processor_raises_reaches_the_caller(n: int, pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """ctypes prints it and goes on as if nothing had happened: an interrupt would be lost."""
    calls = itertools.count()

    def processor(ids: Any, scores: Any) -> Any:
        if next(calls) == n:
            raise Interrupted("here")
        return scores

    generator = pair[1].generate(PROMPT, temp=0.0, logits_processor=llama_cpp.LogitsProcessorList([processor]))
    with pytest.raises(Interrupted, match="here"):
        list(generator)
    assert capfd.readouterr().err == ""
    same(pair, complete())


@pytest.mark.parametrize("logits_all", [False, True])
@pytest.mark.parametrize("n", range(9))
def test_stopping_criteria_end_the_text_at_every_offset(
    n: int, logits_all: bool, pair: Pair, pair_logits: Pair
) -> None:
    def call(llm: Any) -> Any:
        criteria = llama_cpp.StoppingCriteriaList([lambda ids, logits: len(ids) >= len(PROMPT) + n])
        return llm.create_completion(PROMPT, max_tokens=40, temperature=0.0, stopping_criteria=criteria)

    result = same(pair_logits if logits_all else pair, call)
    assert result["choices"][0]["finish_reason"] == "stop" and result["usage"]["completion_tokens"] == n


def test_stopping_criteria_see_the_logits_of_the_token_that_was_chosen(pair: Pair) -> None:
    """The base passes a row that it never wrote."""
    best: list[int] = []
    ids_seen: list[list[int]] = []

    def criterion(ids: Any, logits: Any) -> bool:
        best.append(int(np.argmax(logits)))
        ids_seen.append(ids.tolist())
        return False

    criteria = llama_cpp.StoppingCriteriaList([criterion])
    got = list(itertools.islice(pair[1].generate(PROMPT, temp=0.0, stopping_criteria=criteria), 30))
    assert best == got
    assert ids_seen == [[*PROMPT, *got[:i]] for i in range(30)]


@pytest.mark.parametrize("n_before", [1, 2, 3, 6])
@pytest.mark.parametrize("sent", [[65], [65, 66, 67], []], ids=str)
def test_tokens_sent_into_the_generator_follow_the_yielded_one(n_before: int, sent: list[int], pair: Pair) -> None:
    """The base ends the process (logits_all=False), or takes them for drafts that it may reject."""
    plain, drafted = pair
    generator = drafted.generate(PROMPT, temp=0.0)
    got = [next(generator) for _ in range(n_before)]
    history = [*PROMPT, *got, *sent]
    after = [generator.send(sent), *itertools.islice(generator, 19)]
    assert drafted._input_ids.tolist() == [*history, *after[:-1]]
    generator.close()
    assert after == list(itertools.islice(plain.generate(history, temp=0.0), 20))


# --- the object between tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("logits_all", [False, True])
def test_the_public_state_at_every_yield_is_the_plain_one(logits_all: bool, pair: Pair, pair_logits: Pair) -> None:
    pair = pair_logits if logits_all else pair
    for llm in pair:
        llm.reset()
    generators = [llm.generate(PROMPT, temp=0.0) for llm in pair]
    for i, tokens in enumerate(itertools.islice(zip(*generators, strict=False), 40)):
        assert tokens[0] == tokens[1]
        for llm in pair:
            assert llm.n_tokens == len(PROMPT) + i
            assert llm._input_ids.tolist()[: len(PROMPT)] == PROMPT
        assert pair[0].eval_tokens == pair[1].eval_tokens
        if logits_all:
            np.testing.assert_allclose(pair[1]._scores, pair[0]._scores, atol=5e-4)
            assert int(np.argmax(pair[1]._scores[-1])) == tokens[1]
    for generator in generators:
        generator.close()
    assert pair[0].n_tokens == pair[1].n_tokens


def test_eval_and_sample_are_the_same(pair: Pair) -> None:
    def by_hand(llm: Any) -> list[int]:
        llm.reset()
        llm._sampler = None
        llm.eval(PROMPT)
        ids = []
        for _ in range(20):
            ids.append(llm.sample(temp=0.0))
            llm.eval([ids[-1]])
        ids.append(llm.sample(temp=0.0, idx=llm.n_tokens - 1))
        return ids

    assert len(set(same(pair, by_hand))) > 5


def test_sample_after_a_stream_that_was_left_in_a_block_is_the_plain_one(pair: Pair) -> None:
    for n in range(1, 9):

        def call(llm: Any, n: int = n) -> int:
            llm.reset()
            list(itertools.islice(llm.generate(PROMPT, temp=0.0), n))
            llm._sampler = None
            return llm.sample(temp=0.0)  # type: ignore[no-any-return]

        same(pair, call)


def test_sample_before_anything_was_decoded_is_an_error(pair: Pair) -> None:
    pair[1].reset()
    with pytest.raises(StateError, match="nothing to sample from"):
        pair[1].sample()


def test_sample_without_the_logits_of_the_index_is_an_error(pair: Pair) -> None:
    """llama.cpp would end the process."""
    pair[1].reset()
    pair[1].eval(PROMPT)
    with pytest.raises(ArgumentError, match="idx is 3, expected 33"):
        pair[1].sample(temp=0.0, idx=3)


def test_generate_without_reset_goes_on_behind_the_sequence(pair: Pair) -> None:
    def call(llm: Any) -> list[int]:
        llm.reset()
        llm.eval(PROMPT[:20])
        first = list(itertools.islice(llm.generate(PROMPT[20:], temp=0.0, reset=False), 10))
        return [*first, *itertools.islice(llm.generate([65, 66], temp=0.0, reset=False), 10)]

    same(pair, call)


def test_prompts_that_share_a_beginning_give_what_cold_ones_do(pair: Pair) -> None:
    rng = np.random.default_rng(0)
    for _ in range(15):
        n = int(rng.integers(1, len(PROMPT)))
        prompt = PROMPT[:n] + rng.integers(97, 122, int(rng.integers(0, 5))).tolist()
        same(pair, lambda llm, p=prompt: list(itertools.islice(llm.generate(p, temp=0.0), 12)))  # type: ignore[misc]


def test_generate_and_eval_take_what_the_base_takes() -> None:
    base, ours = (inspect.signature(cls.generate) for cls in (llama_cpp.llama.Llama, Llama))
    assert list(ours.parameters) == list(base.parameters)
    for name, parameter in base.parameters.items():
        assert ours.parameters[name].default == parameter.default, name


@pytest.mark.parametrize(
    "settings",
    [
        {"n_batch": 1},
        {"n_batch": 2},
        {"n_batch": 5},
        {"n_batch": 8, "n_ubatch": 3},
        {"n_ctx": 300},
        {"n_ctx": 0},
        {"flash_attn": True},
        {"offload_kqv": False},
        {"n_batch": 34},
        {"last_n_tokens_size": 3},
    ],
    ids=str,
)
def test_settings_of_the_context_change_nothing(
    settings: dict[str, Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    """Batches smaller than a block too, in which the base's own drafts end the process."""
    pair = make_pair(tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"), **settings)
    same(pair, complete(max_tokens=60, repeat_penalty=1.1))
    for llm in pair:
        llm.close()


def test_a_context_that_llama_cpp_rounds_up_can_be_filled(
    tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    """n_ctx() says 512 for 300, and the base fails where it passes 300."""
    with_draft = Llama(
        str(tiny_path("target-qwen3")), draft=str(converted("deepspec-qwen3-vanilla")), **{**SETTINGS, "n_ctx": 300}
    )
    without = Llama(str(tiny_path("target-qwen3")), **{**SETTINGS, "n_ctx": 300})
    texts = []
    for llm in (with_draft, without):
        assert llm.n_ctx() == 512
        result = llm.create_completion("The lighthouse", max_tokens=None, temperature=0.0)
        texts.append(result["choices"][0]["text"])
        assert result["usage"]["total_tokens"] > 300
        llm.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("tokens", [[], [7], [300, 1], [320], [-1]], ids=str)
def test_a_stock_draft_model_drafts_and_never_shows_what_was_not_verified(
    tokens: list[int], tiny_path: Callable[[str], Path]
) -> None:
    """Prompt lookup and its like, without forced logits_all, rows of the whole context, or tokens nobody chose."""

    class Fixed(llama_cpp.llama_speculative.LlamaDraftModel):  # type: ignore[misc]
        histories: list[list[int]] = []

        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            self.histories.append(input_ids.tolist())
            return np.array(tokens, np.intc)

    model = Fixed()
    plain = llama_cpp.Llama(str(tiny_path("target-qwen3")), **SETTINGS)
    drafted = Llama(str(tiny_path("target-qwen3")), draft_model=model, **SETTINGS)
    assert drafted.draft_model is model and drafted._logits_all is False
    if tokens and not 0 <= tokens[0] < 320:
        with pytest.raises(RuntimeError, match="expected 0 to 319|proposed token"):
            drafted.create_completion(TEXT, max_tokens=10)
    else:
        want = same((plain, drafted), lambda llm: list(itertools.islice(llm.generate(PROMPT, temp=0.0), 30)))
        everything = [*PROMPT, *want]
        assert all(h == everything[: len(h)] for h in model.histories)
    plain.close(), drafted.close()


def test_prompt_lookup_is_accepted_on_text_that_repeats(tiny_path: Callable[[str], Path]) -> None:
    plain = llama_cpp.Llama(str(tiny_path("target-qwen3")), **SETTINGS)
    lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding(num_pred_tokens=10)
    drafted = Llama(str(tiny_path("target-qwen3")), draft_model=lookup, draft_n_max=10, **SETTINGS)
    same((plain, drafted), complete(max_tokens=200))
    assert drafted.speculation.last.draft_n_accepted > 20
    plain.close(), drafted.close()


def test_any_drafter_will_do(tiny_path: Callable[[str], Path]) -> None:
    plain = llama_cpp.Llama(str(tiny_path("target-qwen3")), **SETTINGS)
    drafter = Recorder(lambda anchor, position, n: [101] * n, 5)
    drafted = Llama(str(tiny_path("target-qwen3")), draft=drafter, draft_n_max=5, **SETTINGS)
    same((plain, drafted), complete(max_tokens=50))
    assert drafted.draft is drafter and len(drafter.proposed) > 5
    plain.close(), drafted.close()
