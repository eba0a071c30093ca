"""Patterns of checkpoints: the same answers as `re` gives, and an answer or a refusal in bounded time whatever they hold."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.models.quantized.automaton import Automaton
from trilemma.models.quantized.patterns import matcher

KINDS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.gate", "mlp.experts.3.up_proj")
NAMES = ["lm_head", "", *(f"model.layers.{layer}.{kind}" for layer in (0, 7, 12) for kind in KINDS)]
ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "c"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}", "{1,}", "*?"])).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=400)
@given(EXPRESSIONS, st.booleans(), st.lists(st.text("abc.1_", max_size=8), min_size=1, max_size=6))
def test_an_automaton_says_what_re_says(expression: str, ends: bool, texts: list[str]) -> None:
    expression += "$" if ends else ""
    automaton = Automaton([expression])
    for text in texts:
        assert automaton.matches(text) == (re.match(expression, text) is not None), (expression, text)


@pytest.mark.parametrize(
    "expression",
    [
        r"^model\.layers\.(0|7)\..*",
        r".*mlp\.(gate|down_proj)$",
        r"model\.layers\.[0-9]{2}\.",
        r".*experts\.\d+\..*_proj",
        "lm_head",
    ],
)
def test_expressions_of_real_checkpoints(expression: str) -> None:
    automaton = Automaton([expression])
    assert [automaton.matches(name) for name in NAMES] == [re.match(expression, name) is not None for name in NAMES]


def test_expressions_of_one_list_do_not_mix() -> None:
    both = Automaton(["ab$", "cd"])
    assert [both.matches(text) for text in ("ab", "cd", "cde", "abc", "ad", "cb")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("glob", "inside", "outside"),
    [
        ("model.layers.?.mlp*", "model.layers.7.mlp.gate", "model.layers.12.mlp.gate"),
        ("*.self_attn.[qk]_proj", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"),
        ("*.self_attn.[!qk]_proj", "model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.k_proj"),
        ("*layers*experts*up*", "model.layers.0.mlp.experts.3.up_proj", "model.layers.0.mlp.gate"),
    ],
)
def test_globs_speak_of_whole_names(glob: str, inside: str, outside: str) -> None:
    found = matcher((glob,))
    assert found.matches(inside + ".weight")
    assert not found.matches(outside + ".weight")


HOSTILE = [
    "re:^" + ".?" * 190 + "!", "re:" + "(?:.|..)?" * 40, "re:" + ".{0,99}" * 40, "re:" + "(a?|b?)" * 60, "re:(a+)+$",
    "re:(a|a)*$", "re:" + "a*" * 190, "re:((((.{0,99}){0,99}){0,99}){0,99})", "re:" + "(" * 190 + ")" * 190,
    "*a*a*a*a*a*a*a*a", "*?" * 190,
    "re:(x+x+)+y", r"re:(.*)\1", "re:(?=.*a)b", "re:(", "re:[z-a]", "re:(?i)a", "re:" + ".*a" * 130,
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_patterns_are_answered_or_refused_at_once(pattern: str) -> None:
    names = [f"model.layers.{layer}.mlp.{'a' * 40}.experts.{layer}.down_proj.weight" for layer in range(300)]
    start = time.process_time()
    with contextlib.suppress(InputError):
        found = matcher((pattern,))
        for name in names:
            found.matches(name)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("shape", ["*a{}*b", "re:.*a{}.*b", "re:(a|{}).?.?.?c"])
def test_many_patterns_cost_no_more_than_few(shape: str) -> None:
    start = time.process_time()
    for count in (2_000, 200_000):
        with contextlib.suppress(InputError):
            found = matcher(tuple(shape.replace("{}", str(number)) for number in range(count)))
            for layer in range(300):
                found.matches(f"model.layers.{layer}.mlp.a{layer}.b.weight")
    assert time.process_time() - start < 8


def test_backtracking_constructs_are_named() -> None:
    for pattern in (r"re:(.*)\1", "re:(?=a)b", "re:a$b", "re:(?i)gate"):
        with pytest.raises(InputError, match="simplify it"):
            matcher((pattern,))
