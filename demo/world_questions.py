"""Generate questions about the sample world with their gold answers: a seeded walk over templates and entities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treadle.core.errors import ConfigError
from treadle.demo.comparisons import can_be_compared_at_a_glance
from treadle.demo.names import mix, name_parts
from treadle.demo.world import RELATIONS, Encyclopedia, EntityKind, Split
from treadle.demo.world_templates import TEMPLATES, TITLES, UNITS, Template

TIERS = (0, 1, 2)
_MAX_MISSES = 2000
_COMPUTE_SHARE = 40
_SALTS: Mapping[Split, int] = {"train": 1001, "heldout": 1002}


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """One line of questions.jsonl."""

    question: str
    answer: tuple[str, ...]
    source: str
    split: Split
    tier: int
    template: str
    num_calls: int
    supports: tuple[str, ...]
    """Ids of the documents that the answer needs, in the order of the hops; empty for a pure computation."""


def make_questions(world: Encyclopedia, split: Split, count: int, tiers: Sequence[int]) -> Iterator[WorldQuestion]:
    """Yield `count` questions about one split of a world, using the tiers in turn.

    No two questions of a template are about names that share two adjacent syllables of three, so that no question is
    a near duplicate of another by its characters. Raises ConfigError if the documents do not give enough questions.
    """
    if not tiers or any(tier not in TIERS for tier in tiers):
        raise ConfigError(f"tiers are 0, 1 and 2, not {list(tiers)}")
    taken: set[tuple[str, str, str]] = set()
    made = misses = attempt = 0
    while made < count and misses < _MAX_MISSES:
        attempt, misses = attempt + 1, misses + 1
        bits = mix(world.seed, attempt, _SALTS[split])
        template = _choose(tiers[made % len(tiers)], bits)
        entities = _choose_entities(world, template, split, bits)
        keys = _keys(world, template, entities)
        if keys & taken or len(set(entities.values())) < len(entities):
            continue
        taken |= keys
        question = _fill(world, template, entities, split, bits)
        if question is None:
            continue
        made, misses = made + 1, 0
        yield question
    if made < count:
        raise ConfigError(
            f"{world.documents} documents give only {made} {split} questions of tiers {list(tiers)} that differ "
            f"enough; ask for fewer than {count}, or for more documents"
        )


def _choose(tier: int, bits: int) -> Template:
    compute = tier == 0 and bits % 100 < _COMPUTE_SHARE
    group = [template for template in TEMPLATES if template.tier == tier and bool(template.expression) == compute]
    return group[(bits >> 8) % len(group)]


def _choose_entities(world: Encyclopedia, template: Template, split: Split, bits: int) -> dict[str, int]:
    if template.expression:
        return {"a": world.pick(split, "person", mix(world.seed, bits, 1))}
    slots = sorted({path[0] for path in template.paths})
    return {
        slot: world.pick(split, template.start_kind(slot), mix(world.seed, bits, salt))
        for salt, slot in enumerate(slots, 1)
    }


def _keys(world: Encyclopedia, template: Template, entities: Mapping[str, int]) -> set[tuple[str, str, str]]:
    keys = set()
    for index in entities.values():
        head, centre, tail = name_parts(world.seed, index)
        keys |= {(template.id, head, centre), (template.id, centre, tail)}
    return keys


def _fill(
    world: Encyclopedia, template: Template, entities: Mapping[str, int], split: Split, bits: int
) -> WorldQuestion | None:
    fields: dict[str, str | int] = {slot: world.name(index) for slot, index in entities.items()}
    if template.expression:
        for salt, (slot, (low, high)) in enumerate(zip("xyz", template.ranges, strict=True), 10):
            fields[slot] = low + mix(world.seed, bits, salt) % (high - low + 1)
        answer: tuple[str, ...] | None = (str(_compute(template, fields)),)
    else:
        answer = _solve(world, template, entities)
    if answer is None:
        return None
    wording = template.wordings[(bits >> 24) % len(template.wordings)]
    return WorldQuestion(
        wording.format(**fields), answer, template.source, split, template.tier, template.id, template.num_calls,
        _supports(world, template, entities),
    )  # fmt: skip


def _compute(template: Template, fields: Mapping[str, str | int]) -> int:
    x, y, z = (int(fields[slot]) for slot in "xyz")
    return {
        "compute-boxes": x * y + z,
        "compute-shelves": x * y - z,
        "compute-teams": (x + y) * z,
        "compute-weeks": x - y * z,
        "compute-squares": x**2 + y**2 - z,
        "compute-remainder": x * y % z,
    }[template.id]


def _solve(world: Encyclopedia, template: Template, entities: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the gold answers of a lookup question; None if its values are too close to be compared."""
    values = [_follow(world, entities[path[0]], path[1:]) for path in template.paths]
    last = template.paths[0][-1]
    if template.combine == "value":
        return _aliases(values[0], last)
    numbers = [value for value in values if isinstance(value, int)]
    if template.combine in ("larger", "smaller"):
        if template.tier == 2 and not can_be_compared_at_a_glance(numbers):
            return None
        winner = template.winner(numbers)
        slot = None if winner is None else template.paths[winner][0]
        return None if slot is None else _name_aliases(world.name(entities[slot]), template.start_kind(slot))
    first, second = numbers
    if first == second:
        return None
    if template.combine == "difference":
        return _aliases(abs(first - second), "" if template.id == "difference-age" else last)
    return _aliases(first + second, last)


def _follow(world: Encyclopedia, index: int, attributes: Sequence[str]) -> int | str:
    for attribute in attributes[:-1]:
        index = world.related(index, attribute)
    return world.value(index, attributes[-1])


def _supports(world: Encyclopedia, template: Template, entities: Mapping[str, int]) -> tuple[str, ...]:
    ids = []
    for slot, *attributes in template.paths:
        index = entities[slot]
        ids.append(world.document_id(index))
        for attribute in attributes[:-1]:
            index = world.related(index, attribute)
            ids.append(world.document_id(index))
    # Two paths may start in the same document.
    return tuple(dict.fromkeys(ids))


def _aliases(value: int | str, attribute: str) -> tuple[str, ...]:
    if attribute in RELATIONS:
        return _name_aliases(str(value), RELATIONS[attribute])
    spellings = [str(value)]
    if isinstance(value, int) and attribute in UNITS:
        spellings += [f"{value:,}", f"{value} {UNITS[attribute]}"]
    return tuple(dict.fromkeys(spellings))


def _name_aliases(name: str, kind: EntityKind) -> tuple[str, ...]:
    return (name, TITLES[kind].format(name)) if kind in TITLES else (name,)
