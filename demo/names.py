"""Generate invented names and seeded draws by index, without global state and for any size of the sample world.

A name has three syllables, each of which is one or more consonants and a vowel: Ta-zme-ro. A name can be split into
its syllables in only one way, so different combinations of syllables give different names. The consonants in the
middle are pairs that are rare in real languages, so that the names do not occur on maps. Names end in a, o or u, which
English stemmers leave unchanged.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_ONSETS = "B Br D Dr F G Gr H K Kr L M N P Pr R S T Tr V"
_MIDDLES = "rz zm kv dv vl zd mz lz gv vn zg zv tv bz kz dz vr zr zn vd gz pz vg zl zb zk vz mv nv bv"
_LASTS = "b d f g k l m n p r s t v z br dr gr kr pr tr nd nt mp mb rk rt rd lt lk ld"
_HEADS = [onset + vowel for onset in _ONSETS.split() for vowel in "aeiou"]
_CENTRES = [group + vowel for group in _MIDDLES.split() for vowel in "aeiou"]
_TAILS = [group + vowel for group in _LASTS.split() for vowel in "aou"]

_LEFT, _RIGHT = 1350, 1000
NUM_NAMES = _LEFT * _RIGHT
"""Number of different names: 1,350,000."""
assert len(_HEADS) * len(_CENTRES) * len(_TAILS) == NUM_NAMES


def mix(seed: int, index: int, salt: int) -> int:
    """Return 64 pseudo-random bits that depend only on the three integers.

    The integers are combined linearly and hashed by the finalizer of splitmix64; different `salt` values give
    independent draws for the same seed and index.
    """
    x = (
        seed * 0x9E3779B97F4A7C15 + index * 0xD1342543DE82EF95 + salt * 0xA24BAED4963EE407 + 0x632BE59BD9B4E019
    ) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def name_parts(seed: int, index: int) -> tuple[str, str, str]:
    """Return the three syllables of the `index`-th name of a world, 0 <= index < NUM_NAMES.

    Different indices give different names, and names of consecutive indices do not resemble each other. For this, a
    permutation that depends on the seed (a Feistel network over index // 1000 and index % 1000) maps the index to the
    number of a combination of syllables. Raises ValueError for an index out of range.
    """
    if not 0 <= index < NUM_NAMES:
        raise ValueError(f"index {index} is outside 0..{NUM_NAMES - 1}")
    left, right = divmod(index, _RIGHT)
    for turn in range(3):
        left = (left + mix(seed, right, 2 * turn + 1)) % _LEFT
        right = (right + mix(seed, left, 2 * turn + 2)) % _RIGHT
    rest, tail = divmod(left * _RIGHT + right, len(_TAILS))
    head, centre = divmod(rest, len(_CENTRES))
    return _HEADS[head], _CENTRES[centre], _TAILS[tail]


def name(seed: int, index: int) -> str:
    """Return the `index`-th name of a world, such as Tazmero."""
    return "".join(name_parts(seed, index))
