"""The built-in rewards that need nothing but the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.errors import UserError
from grpo_core.rewards.diversity import distinctness
from grpo_core.rewards.facts import token_f1
from grpo_core.rewards.length import overlong_penalty
from grpo_core.rewards.repetition import repeated_share
from grpo_core.rewards.score import RewardConfig, build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample, Score, Verdict
from grpo_core.rewards.words import ngrams, words


def score(name: str, sample: Sample, **options: object) -> Score:
    (found,) = build_reward(RewardConfig(name=name, options=options))([sample])
    return found


def text(response: str, gold: str = "", **more: object) -> Sample:
    return Sample("0", response, gold, **more)


def test_words_keep_numbers_whole_and_count_characters_without_spaces() -> None:
    assert words("The ANSWER, it's 3.14 (1,000)!") == ["the", "answer", "it", "s", "3.14", "1,000"]
    assert words("東京 is 首都") == ["東", "京", "is", "首", "都"]
    assert words(" .,! ") == []
    assert ngrams([1, 2, 3], 2) == [(1, 2), (2, 3)]
    assert ngrams([1], 3) == [(1,)]
    assert ngrams([], 3) == []


@pytest.mark.parametrize(
    ("response", "fits"),
    [
        ("<think>so</think><answer>4</answer>", True),
        (" \n<think>\nso\n</think>\n\n<answer> 4 </answer>\n", True),
        ("<think>so</think><answer>4</answer> and more", False),
        ("first <think>so</think><answer>4</answer>", False),
        ("<think>so</think> hm <answer>4</answer>", False),
        ("<answer>4</answer><think>so</think>", False),
        ("<think>so</think><answer> </answer>", False),
        ("<think></think><answer>4</answer>", False),
        ("<think>a</think><think>b</think><answer>4</answer>", False),
        ("<think>so<answer>4</answer></think>", False),
        ("4", False),
        ("", False),
        ("<think>" * 50_000, False),
    ],
)
def test_format_of_tags(response: str, fits: bool) -> None:
    found = score("format", text(response), style="tags")
    assert (found.verdict, found.reward) == ((Verdict.OK, 1.0) if fits else (Verdict.WRONG, 0.0))


def test_format_of_box_and_of_a_pattern() -> None:
    assert score("format", text(r"so \boxed{4}")).reward == 1.0
    assert score("format", text("so 4")).reward == 0.0
    assert score("format", text(r"\boxed{}")).reward == 0.0
    assert score("format", text("a\nb"), style="pattern", pattern="a.b").reward == 1.0
    assert score("format", text("a\nbc"), style="pattern", pattern="a.b").reward == 0.0


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (101, -1.0)]
)
def test_length_is_dapos_equation(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, longest=100, cache=20) == penalty
    found = score("length", text("x", completion_tokens=tokens, max_new_tokens=100))
    assert (found.reward, found.verdict) == (penalty, Verdict.WRONG if penalty else Verdict.OK)


def test_length_limits_come_from_the_config_and_what_is_not_known_is_missing() -> None:
    sample = text("x", completion_tokens=9, max_new_tokens=100)
    assert score("length", sample, max_tokens=10, cache_tokens=4).reward == -0.75
    assert score("length", sample, max_tokens=9, cache_tokens=0).reward == 0.0
    assert score("length", sample, max_tokens=8, cache_tokens=0).reward == -1.0
    assert score("length", text("x")).verdict is Verdict.MISSING


def test_repeated_share_by_hand() -> None:
    assert repeated_share("abcd", 2) == 0.0
    assert repeated_share("abab", 2) == 0.5  # the second ab
    assert repeated_share("aaaa", 2) == 0.75  # all but the first a
    assert repeated_share("abcabcabc", 3) == pytest.approx(6 / 9)
    assert repeated_share("ab", 3) == 0.0
    assert repeated_share("", 1) == 0.0


@given(st.text("ab", max_size=40), st.integers(1, 5))
def test_repeated_share_is_that_of_marking_every_token(said: str, n: int) -> None:
    seen, marked = set(), set()
    for start in range(len(said) - n + 1):
        if said[start : start + n] in seen:
            marked |= set(range(start, start + n))
        seen.add(said[start : start + n])
    assert repeated_share(said, n) == (len(marked) / len(said) if said else 0.0)


def test_repetition_takes_tokens_where_there_are_any_else_words() -> None:
    assert score("repetition", text("x", completion_ids=[1, 2, 1, 2]), n=2, penalty=-3.0).reward == -1.5
    found = score("repetition", text("yes yes yes yes"), n=1)
    assert (found.reward, found.verdict) == (-0.75, Verdict.WRONG)
    assert score("repetition", text("a b c"), n=1).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("gold", "response", "found", "f1"),
    [
        ("Paris", "It is Paris.", 1.0, 2 / 4),
        ("Paris\nthe Seine", "Paris lies on the Seine", 1.0, 6 / 8),
        ("Paris\nthe Seine", "the Loire", 0.0, 2 / 5),
        ('["New York", "1,000"]', "1,000 miles from new york city", 1.0, 6 / 9),
        ('["New York"]', "York, New", 0.0, 1.0),
        ("42", "424", 0.0, 0.0),
        ("Paris", "", 0.0, 0.0),
    ],
)
def test_facts_by_hand(gold: str, response: str, found: float, f1: float) -> None:
    sample = text(response, gold)
    assert score("facts", sample, measure="found").reward == found
    assert score("facts", sample, measure="f1").reward == pytest.approx(f1)
    assert score("facts", sample).reward == pytest.approx((found + f1) / 2)
    assert score("facts", sample).verdict is (Verdict.OK if found == 1 else Verdict.WRONG)


def test_facts_from_a_column_and_without_a_reference() -> None:
    sample = text("it is blue", "red", extra={"facts": ["blue", "it"], "number": 7})
    assert score("facts", sample, column="facts", measure="found").reward == 1.0
    assert score("facts", sample, column="number", measure="found").reward == 0.0
    absent = score("facts", sample, column="absent")
    assert (absent.verdict, absent.reward) == (Verdict.MISSING, None)
    assert "'absent'" in absent.detail
    assert score("facts", text("x", " \n ")).verdict is Verdict.MISSING


def test_token_f1_counts_repetition() -> None:
    assert token_f1(["a", "a", "b"], ["a"]) == 0.5
    assert token_f1([], []) == 0.0


def test_distinctness_by_hand() -> None:
    # Bigrams: {ab, bc}, {ab, bd}, {xy}: Jaccard 1/3 between the first two, else 0.
    assert distinctness(["a b c", "a b d", "x y"], 2) == pytest.approx([1 - 1 / 6, 1 - 1 / 6, 1.0])
    assert distinctness(["a b c", "A B C!", "x y"], 2) == [0.0, 0.0, 1.0]
    assert distinctness(["a b"], 2) == [1.0]
    assert distinctness(["", "a"], 2) == [1.0, 1.0]


@given(st.lists(st.text("ab ", max_size=12), min_size=2, max_size=6))
def test_distinctness_is_a_share_and_duplicates_have_none(texts: list[str]) -> None:
    values = distinctness([*texts, texts[0]], 2)
    assert all(0 <= value <= 1 for value in values)
    assert values[0] == values[-1] == 0.0


def test_diversity_compares_inside_the_group_only() -> None:
    group = [
        Sample(str(n), said, "", group=g) for n, (g, said) in enumerate([("g", "a b"), ("h", "a b"), ("g", "c d")])
    ]
    scores = build_reward(RewardConfig(name="diversity"))(group)
    assert [s.reward for s in scores] == [1.0, 1.0, 1.0]
    again = build_reward(RewardConfig(name="diversity"))([*group, Sample("3", "a b", "", group="g")])
    assert [(s.reward, s.verdict) for s in again][::3] == [(0.0, Verdict.WRONG), (0.0, Verdict.WRONG)]


@pytest.mark.parametrize(
    ("name", "options", "words_"),
    [
        ("facts", {"colum": "x"}, r"unknown key 'reward.options.colum'; facts knows: column, measure"),
        ("diversity", {"n": 0}, r"'reward.options.n' is not usable"),
        ("format", {"style": "pattern"}, "pattern goes with style"),
        ("format", {"style": "pattern", "pattern": "("}, "not a regular expression"),
        ("math", {"correct": 2.0}, "takes its settings from the section reward itself"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, object], words_: str) -> None:
    config = RewardConfig(name=name, options=options)
    with pytest.raises(UserError, match=words_):
        build_reward(config)
    with pytest.raises(UserError, match=words_):
        reward_fingerprint(config)


def test_a_wrong_component_is_named_where_it_stands() -> None:
    config = RewardConfig.model_validate({"components": {"a": {"reward": "fact"}}})
    with pytest.raises(UserError, match=r"reward\.components\.a\.reward 'fact' is not known"):
        build_reward(config)
    config = RewardConfig.model_validate({"components": {"a": {"reward": "facts", "options": {"x": 1}}}})
    with pytest.raises(UserError, match=r"reward\.components\.a\.options\.x"):
        build_reward(config)


def test_fingerprint_holds_weights_options_and_which_component_is_first() -> None:
    def fingerprint(**section: object) -> str:
        return reward_fingerprint(RewardConfig.model_validate(section))

    two = {"a": {"reward": "facts"}, "b": {"reward": "diversity"}}
    base = fingerprint(components=two)
    assert fingerprint(components=two, max_unchecked=0.1, workers=2, verdict_from="a") == base
    for other in (
        {"components": two, "combine": "gdpo"},
        {"components": two, "smoothing": 0.5},
        {"components": {"b": two["b"], "a": two["a"]}},
        {"components": two | {"a": {"reward": "facts", "weight": 2}}},
        {"components": two | {"b": {"reward": "diversity", "options": {"n": 3}}}},
    ):
        assert fingerprint(**other) != base, other
