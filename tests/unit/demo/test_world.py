"""The sample world: deterministic, of any size, with answers that only its documents hold."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from itertools import combinations
from pathlib import Path

import orjson
import pytest

from treadle.core.errors import ConfigError
from treadle.demo.names import NUM_NAMES, name, name_parts
from treadle.demo.world import Encyclopedia, World
from treadle.demo.world_files import write_world
from treadle.demo.world_templates import TEMPLATES, recognise


def rows(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    return write_world(folder, documents=1000, questions=300, heldout_questions=150, tiers=(0, 1), seed=7)


def test_equal_parameters_give_equal_bytes_and_another_seed_another_world(world: World, tmp_path: Path) -> None:
    again = write_world(tmp_path / "b", documents=1000, questions=300, heldout_questions=150, tiers=(0, 1), seed=7)
    other = write_world(tmp_path / "c", documents=1000, questions=300, heldout_questions=150, tiers=(0, 1), seed=8)
    assert again.corpus.read_bytes() == world.corpus.read_bytes()
    assert again.questions.read_bytes() == world.questions.read_bytes()
    titles = {row["title"] for row in rows(world.corpus)}
    assert len(titles & {row["title"] for row in rows(other.corpus)}) < 20


def test_generated_bytes_match_this_version(tmp_path: Path) -> None:
    world = write_world(tmp_path, documents=100, questions=10, heldout_questions=5, tiers=(0, 1), seed=1)
    digest = hashlib.sha256(world.corpus.read_bytes() + world.questions.read_bytes()).hexdigest()
    assert digest[:16] == "ff2864aeaaef3465"


def test_names_are_unique_and_can_be_split() -> None:
    sample = range(0, NUM_NAMES, 27)
    assert len({name(3, index) for index in sample}) == len(sample)
    assert all("".join(name_parts(3, index)).istitle() for index in range(200))


def test_counts_and_fields_are_as_requested(world: World) -> None:
    questions = rows(world.questions)
    assert [row["split"] for row in questions].count("train") == 300
    assert [row["split"] for row in questions].count("heldout") == 150
    assert {row["tier"] for row in questions} == {0, 1}
    assert {row["source"] for row in questions} == {template.source for template in TEMPLATES if template.tier < 2}
    assert len({row["id"] for row in rows(world.corpus)}) == 1000


def test_train_and_heldout_share_no_entity(world: World) -> None:
    book = Encyclopedia(1000, 7)
    side = {book.name(index): book.split(index) for index in range(1000)}
    for index, document in enumerate(rows(world.corpus)):
        named = [word for word in re.findall(r"[A-Z][a-z]+", str(document["text"])) if word in side]
        assert {side[word] for word in named} == {book.split(index)}
    for row in rows(world.questions):
        text = f"{row['question']} {row['answer']}"
        named = [word for word in re.findall(r"[A-Z][a-z]+", text) if word in side]
        assert named and {side[word] for word in named} == {row["split"]}


def test_lookup_answers_are_in_the_document_of_the_entity(world: World) -> None:
    texts = {row["title"]: str(row["text"]) for row in rows(world.corpus)}
    lookups = [row for row in rows(world.questions) if row["source"] == "world-lookup"]
    for row in lookups:
        asked = recognise(str(row["question"]))
        assert asked is not None
        assert row["answer"][0] in texts[asked.names["a"]]  # type: ignore[index]
        assert str(row["answer"][0]) not in str(row["question"])  # type: ignore[index]
    assert len(lookups) > 50


def test_supporting_documents_lead_from_question_to_answer_one_per_lookup(world: World) -> None:
    documents = {row["id"]: row for row in rows(world.corpus)}
    templates = {template.id: template for template in TEMPLATES}
    lengths: dict[object, set[int]] = {}
    for row in rows(world.questions):
        template = templates[str(row["template"])]
        supports = [documents[id_] for id_ in row["supports"]]  # type: ignore[attr-defined]
        lengths.setdefault(row["source"], set()).add(len(supports))
        computes = bool(template.expression) or template.combine in ("difference", "sum")
        assert len({document["id"] for document in supports}) == len(supports) == template.num_calls - computes
        # Each is named by the question or by the document before it.
        known = str(row["question"])
        for document in supports:
            assert re.search(rf"\b{document['title']}\b", known)
            known = f"{row['question']} {document['text']}" if len(template.paths) > 1 else str(document["text"])
        if template.combine == "value" and supports:
            assert row["answer"][0] in str(supports[-1]["text"])  # type: ignore[index]
    assert lengths == {
        "world-lookup": {1}, "world-compute": {0}, "world-hops": {2, 3}, "world-arithmetic": {2}, "world-compare": {2},
    }  # fmt: skip


def test_compared_facts_have_equally_many_digits_and_different_first_ones(tmp_path: Path) -> None:
    facts = write_world(tmp_path, documents=600, questions=60, heldout_questions=30, tiers=(2,), seed=2)
    texts = {row["id"]: str(row["text"]) for row in rows(facts.corpus)}
    asked = rows(facts.questions)
    assert {row["source"] for row in asked} == {"world-facts"} and {row["num_calls"] for row in asked} == {2, 3}
    for row in asked:
        values = [number for id_ in row["supports"] for number in re.findall(r"\d+", texts[id_])]  # type: ignore[attr-defined]
        assert len(values) == len({value[0] for value in values}) == row["num_calls"]
        assert len({len(value) for value in values}) == 1


def test_no_two_questions_are_near_duplicates(world: World) -> None:
    texts = [str(row["question"]) for row in rows(world.questions)]
    shingles = [{text[place : place + 5] for place in range(len(text) - 4)} for text in texts]
    worst = max(len(a & b) / len(a | b) for a, b in combinations(shingles, 2))
    assert worst < 0.85


def test_every_question_is_recognised_by_its_template(world: World) -> None:
    for row in rows(world.questions):
        asked = recognise(str(row["question"]))
        assert asked is not None and asked.template.id == row["template"]
    assert recognise("Who was the first president of France?") is None


def test_tier_zero_documents_are_one_short_sentence(world: World) -> None:
    assert max(len(str(row["text"])) for row in rows(world.corpus)) <= 100
    assert all(str(row["text"]).count(".") == 1 for row in rows(world.corpus))


def test_large_world_streams_in_bounded_memory() -> None:
    stream = Encyclopedia(1_000_000, 5).stream()
    for _ in range(1000):
        next(stream)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    last = {}
    for _ in range(3000):
        last = next(stream)
    grown = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert last["id"] == "w0003999"
    assert grown < 256 * 1024


@pytest.mark.parametrize("documents", [100, 101, 119, 1009])
def test_any_size_works_and_every_relation_has_its_document(documents: int) -> None:
    book = Encyclopedia(documents, 2)
    texts = list(book.stream())
    titles = {row["title"] for row in texts}
    assert len(titles) == documents
    for row in texts:
        assert set(re.findall(r"[A-Z][a-z]{4,}", row["text"].replace("Mount", ""))) <= titles


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="100 to 1000000"):
        write_world(tmp_path, documents=99)
    with pytest.raises(ConfigError, match="ask for fewer"):
        write_world(tmp_path, documents=100, questions=5000)
    with pytest.raises(ConfigError, match="tiers are 0, 1 and 2"):
        write_world(tmp_path, documents=100, questions=1, tiers=(3,))
