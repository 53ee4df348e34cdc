r"""Split units from answers: percent, degrees, currency and units of measurement after a value.

A letter is read as a unit only if it cannot be a variable: in `\text{…}` or `\mathrm{…}`, as one of the known words
of more than one letter after a number, or as a known single letter with a space between it and a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from treadle.core.answers.math_number import Number, parse_number

Dimensions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit as dimensions and a factor; `dimensions` is None for unknown words, such as apples."""

    dimensions: Dimensions | None
    factor: Fraction = Fraction(1)
    words: str = ""
    """The words as written if they are not a known unit; else empty."""
    endings: frozenset[str] = frozenset()
    """Words that relate the number to its problem: `left` of `8 eggs left`, `more` of `5 more apples`."""

    @property
    def is_empty(self) -> bool:
        """True if the unit consists of endings alone, as in `8 left`."""
        return self.dimensions is None and not self.words and bool(self.endings)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Value as written, and its unit."""

    value: str
    unit: Unit | None


PERCENT = Unit((("percent", 1),))
DEGREE = Unit((("degree", 1),))

_KNOWN: dict[str, tuple[str, Fraction]] = {}


def _define(dimension: str, **factors: str) -> None:
    for names, factor in factors.items():
        for name in names.split("_"):
            _KNOWN[name] = (dimension, Fraction(factor))


_define("length", mm_millimeter_millimetre="1/1000", cm_centimeter_centimetre="1/100", dm="1/10")
_define("length", m_meter_metre="1", km_kilometer_kilometre="1000", in_inch_inche="127/5000")
_define("length", ft_foot_feet="381/1250", yd_yard="1143/1250", mi_mile="201168/125")
_define("mass", mg_milligram="1/1000", g_gram="1", kg_kilogram="1000")
_define("weight", oz_ounce="1/16", lb_pound="1")
_define("time", ms="1/1000", s_sec_second="1", min_minute="60", h_hr_hour="3600", day="86400", week="604800")
_define("month", month="1", yr_year="12")
_define("dollar", cent="1/100", dollar_usd="1")
_define("euro", euro_eur="1")
_define("sterling", gbp="1")
_define("yen", yen_jpy="1")
_define("rupee", rupee_inr="1")
_define("force", N_newton="1", kN="1000")
_define("energy", J_joule="1", kJ_kilojoule="1000", MJ="1000000")
_define("electron energy", eV="1", keV="1000", MeV="1000000", GeV="1000000000")
_define("power", W_watt="1", mW="1/1000", kW_kilowatt="1000", MW_megawatt="1000000")
_define("pressure", Pa_pascal="1", kPa="1000", MPa="1000000", atm="101325")
_define("voltage", V_volt="1", mV="1/1000", kV="1000")
_define("current", A_amp_ampere="1", mA="1/1000")
_define("charge", C_coulomb="1")
_define("resistance", ohm="1")
_define("frequency", Hz_hertz="1", kHz="1000", MHz="1000000", GHz="1000000000")
_define("temperature", K_kelvin="1")
_define("amount", mol_mole="1", mmol="1/1000")
_define("volume", ml_milliliter_millilitre="1/1000", l_liter_litre="1")
_define("radian", rad_radian="1")
_define("degree", degree_deg="1")
_define("percent", percent_percentage_pct="1")
_define("celsius", celsius="1")
_define("fahrenheit", fahrenheit="1")

_LETTERS = frozenset("mgshlL")
"""Single letters that are units after a number and a space."""

_CONSTANTS = frozenset("eid")
r"""Upright letters that are not units: `\mathrm{e}`, `\mathrm{i}`, `\mathrm{d}`."""

_BARE = (
    r"mm|cm|km|ft|in|yd|mi|kg|lbs?|oz|ml|mph|km/hr?|m/s|hrs?|mins?|secs?|usd|eur|percent|pct"
    r"|(?:centi|milli|kilo)?met(?:er|re)s?|inch(?:es)?|f(?:ee|oo)t|yards?|miles?|(?:milli|kilo)?grams?|ounces?|pounds?"
    r"|seconds?|minutes?|hours?|days?|weeks?|months?|years?|dollars?|cents?|euros?|(?:milli)?lit(?:er|re)s?|degrees?"
    r"|percentage|radians?|units?|people"
)
_POWER = r"(?:\^(?:\{-?\d\}|-?\d))?"
_COMMAND = rf"\\(?:text|mathrm|textrm|textbf|mbox|operatorname)\s?\{{[^{{}}]{{0,60}}\}}{_POWER}"
_IN_COMMANDS = re.compile(rf"{_COMMAND}(?:\s?(?:/|\\cdot)?\s?{_COMMAND}){{0,4}}$")
_IN_WORDS = re.compile(
    rf"(?:(?<=[\d)}}])\s?|(?<=\\pi)\s)((?:square|sq\.?|cubic)\s)?((?:{_BARE})(?:\s?(?:/|per)\s?(?:{_BARE}))?{_POWER})$",
    re.IGNORECASE,
)
_LETTER = re.compile(rf"(?<=\d)\s([{''.join(sorted(_LETTERS))}]{_POWER})$")
_OTHER_WORDS = re.compile(
    r"(?<=\d)\s(?:[A-Za-z]{3,20}(?:\s[A-Za-z]{2,20}){0,3}|in\s(?:total|all)|per\s[A-Za-z]{3,20})$", re.IGNORECASE
)
_RELATED = "more|fewer|less|additional|extra"
_ENDING = re.compile(
    r"(?:^|\s)(left(?:\sover)?|leftover|remaining|remain|in\stotal|total|in\sall|overall|altogether|combined|each|apiece"
    rf"|later|earlier|ago|of\sprofit|in\sprofit|profit|{_RELATED})\.?\s*$",
    re.IGNORECASE,
)
_RELATED_IN_FRONT = re.compile(rf"\s*({_RELATED})\s+(?!than\b)", re.IGNORECASE)
_MAX_ENDINGS = 3
_SAME_ENDING = {
    "left over": "left", "leftover": "left", "remaining": "left", "remain": "left", "total": "in total",
    "in all": "in total", "overall": "in total", "altogether": "in total", "combined": "in total", "apiece": "each",
    "additional": "more", "extra": "more", "less": "fewer", "of profit": "profit", "in profit": "profit",
}  # fmt: skip
_PERCENT = re.compile(r"\s?\\?%$")
_CIRCLE = re.compile(r"\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?(?:\\(?:text|mathrm)\{\s?([CF])\s?\}|([CFcf])(?![a-z]))?$")
_MODULUS = re.compile(r"\s?\(?\s?\\(?:pmod|bmod|mod)\s?\{?\s?(\d{1,20}|[a-z])\s?\}?\s?\)?$")
_CURRENCY = re.compile(
    r"(-?)\s?(\\\$|Rs\.?(?![A-Za-z])|\N{EURO SIGN}|\N{POUND SIGN}|\N{YEN SIGN}|\N{INDIAN RUPEE SIGN})\s?(?=[\d.\\(])"
)
_CURRENCIES = {
    r"\$": Unit((("dollar", 1),)),
    "\N{EURO SIGN}": Unit((("euro", 1),)),
    "\N{POUND SIGN}": Unit((("sterling", 1),)),
    "\N{YEN SIGN}": Unit((("yen", 1),)),
}
_RUPEE = Unit((("rupee", 1),))
_POUNDS = ((("sterling", 1),), (("weight", 1),))
"""Units that `pounds` may mean: money or weight."""

_NUMBER_WORDS = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_NUMBER_WORD = re.compile(
    r"(?P<number>(?<![\d.,^_/}])(?:\d{1,40}(?:\.\d{1,40})?|\.\d{1,40}|(?:\d{1,9}\s?)?\\frac\s?\{\d{1,9}\}\s?\{\d{1,9}\}"
    r"|(?:\d{1,9} )?\d{1,9}/\d{1,9}))\s?(?P<open>\\(?:text|mathrm|textrm|mbox)\s?\{\s?)?"
    rf"(?P<word>{'|'.join(_NUMBER_WORDS)})s?(?![A-Za-z])(?(open)(?:\s?(?P<close>\}}))?)",
    re.IGNORECASE,
)
MAX_NUMBER_WORDS = 3

_NO_COUNT = frozenset(
    """
    am pm noon midnight bc ad bce ce january february march april may june july august september october november
    december jan feb mar apr jun jul aug sep sept oct nov dec monday tuesday wednesday thursday friday saturday
    sunday north south east west northeast northwest southeast southwest northern southern eastern western up down
    upward downward upwards downwards above below before after ago earlier later clockwise counterclockwise
    anticlockwise forward backward forwards backwards or and more fewer less least most than only not no non at over
    under to is are was were has have if when where unless for any true false plus minus divided by choose mod
    modulo remainder half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh
    eighth eighths ninth ninths tenth tenths twelfths sixteenths hundredth hundredths thousandth thousandths
    millionth millionths squared cubed factorial hundred hundreds thousand thousands million millions billion
    billions trillion trillions dozen dozens gain loss profit deficit surplus increase decrease radical root
    """.split()  # noqa: SIM905 - a list of 150 words in quotes each is hard to read
)
"""Words that do not name counted things, so a unit with one of them may not be left out: words for times of day, dates,
directions, fractions, comparisons and statements."""

_ADJECTIVES = frozenset(
    {"odd", "even", "prime", "composite", "rational", "irrational", "real", "imaginary", "positive", "negative"}
    | {"left", "right"}
)
"""Words that need a noun to count something: 4 odd numbers, but not `n odd`."""

_FILLERS = frozenset({"old", "long", "tall", "wide", "deep", "the", "of", "total"})
"""Words that change nothing next to a unit: 20 years old are 20 years."""

_ANY_UNIT = frozenset({"unit", "square", "cubic", "sq"})
_IRREGULAR = {"people": "person", "men": "man", "women": "woman", "children": "child", "feet": "foot", "mice": "mouse"}
_OPEN_END = re.compile(r"(?:[-+*/=^_(,<>&|\[{]|\\(?:cdot|times|div|pm|le|ge|ne|in|cup|cap|frac))\s*$")
_WORD = re.compile(r"(/|per\b)|(square|sq\b\.?|cubic)|([A-Za-z]+)\s?(?:\^\s?\{?(-?\d)\}?)?")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])(?!\s?\^\s?\{\s?-)")
_TAIL_CHARS = 160


def split_unit(text: str) -> Quantity:
    """Split a cleaned answer into value and unit; the unit is None if there is none."""
    if match := _CURRENCY.match(text):
        return Quantity(match[1] + text[match.end() :], _CURRENCIES.get(match[2], _RUPEE))
    # A unit is short and at the end: searching the tail alone keeps this linear.
    start = max(0, len(text) - _TAIL_CHARS)
    for pattern, read in _ENDINGS:
        match = pattern.search(text, start)
        if match is None:
            continue
        unit, value = read(match), text[: match.start()].rstrip()
        if unit is not None and value and not _OPEN_END.search(value[-12:]):
            return Quantity(value, unit)
    return Quantity(text, None)


def with_number_words(text: str) -> str:
    """Replace `5 million` by 5000000, `2 dozen` by 24; only numbers that are exact stay exact."""
    for _ in range(MAX_NUMBER_WORDS):
        replaced = _NUMBER_WORD.sub(_multiplied, text)
        if replaced == text:
            break
        text = replaced
    return text


def _multiplied(match: re.Match[str]) -> str:
    number = parse_number(match["number"])
    if number is None:
        return match[0]
    value = number.value * _NUMBER_WORDS[match["word"].lower()]
    rest = match["open"] if match["open"] and not match["close"] else ""
    if value.denominator != 1:
        return f"{value.numerator}/{value.denominator}{rest}"
    return f"{value.numerator}{rest}"


def units_match(left: Unit, right: Unit) -> bool:
    """Return whether two units measure the same: equal dimensions, or one's unknown words are all among the other's."""
    if not (left.endings <= right.endings or right.endings <= left.endings):
        return False
    if left.is_empty or right.is_empty:
        return counts_only(left) and counts_only(right)
    if left.dimensions is not None and right.dimensions is not None:
        return left.dimensions == right.dimensions or {left.dimensions, right.dimensions} == set(_POUNDS)
    words = _stems(left.words), _stems(right.words)
    for unit, stems, other in ((left, words[0], right), (right, words[1], left)):
        if unit.dimensions is None and stems and stems <= _ANY_UNIT:
            return words[0] == words[1] or counts_only(other)
    if left.dimensions is not None or right.dimensions is not None:
        return False
    if words[0] == words[1]:
        return True
    return (
        counts_only(left)
        and counts_only(right)
        and bool(words[0] and words[1])
        and (words[0] <= words[1] or words[1] <= words[0])
    )


def counts_only(unit: Unit) -> bool:
    """Return whether a unit may be left out: known ones, and nouns that name the things counted."""
    if unit.dimensions is not None or unit.is_empty:
        return True
    words = _LETTERS_ONLY.findall(unit.words.replace(".", ""))
    if not words or words[-1].lower() in _ADJECTIVES:
        return False
    return all(_NOUN.fullmatch(word) and word.lower() not in _NO_COUNT for word in words)


_NOUN = re.compile(r"[a-z]+|[A-Z][a-z]{3,}")
_LETTERS_ONLY = re.compile(r"[^\W\d_]+")


def _stems(words: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _LETTERS_ONLY.findall(words.lower().replace(".", "")))


def _stem(word: str) -> str:
    """Return a word without the ending of its plural."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 3:
        return word
    return re.sub(r"(ies|y)$|(?<=[shxz])es$|(?<!s)s$", lambda match: "y" if match[1] else "", word)


def in_base_units(quantity: Quantity) -> Number | None:
    """Return the value in metres, seconds, dollars and the like; None without a plain number or known unit."""
    number = parse_number(quantity.value)
    if number is None or quantity.unit is None or quantity.unit.dimensions is None:
        return None
    return Number(number.value * quantity.unit.factor, number.approximate)


def _angle(match: re.Match[str]) -> Unit | None:
    if _TRIGONOMETRY.search(match.string):
        return None
    letter = (match[1] or match[2] or "").upper()
    return {"C": Unit((("celsius", 1),)), "F": Unit((("fahrenheit", 1),))}.get(letter, DEGREE)


def _upright(match: re.Match[str]) -> Unit | None:
    plain = re.sub(r"\\[a-z]+\s?\{([^{}]*)\}", r" \1 ", match[0].replace(r"\cdot", " ").replace("~", " "))
    return None if plain.strip() in _CONSTANTS else _unit(plain)


def _other_words(match: re.Match[str]) -> Unit | None:
    return _unit(match[0]) if parse_number(match.string[: match.start()]) is not None else None


_ENDINGS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Unit | None]], ...] = (
    (_MODULUS, lambda match: Unit(((f"mod {match[1]}", 1),))),
    (_PERCENT, lambda match: PERCENT),
    (_CIRCLE, _angle),
    (_IN_COMMANDS, _upright),
    (_IN_WORDS, lambda match: _unit((match[1] or "") + match[2])),
    (_LETTER, lambda match: _unit(match[1])),
    (_OTHER_WORDS, _other_words),
)


def _unit(text: str) -> Unit:
    """Parse a unit, and split off words that relate it to its problem: `eggs left`, `more apples`."""
    endings: set[str] = set()
    for _ in range(_MAX_ENDINGS):
        match = _ENDING.search(text) or _RELATED_IN_FRONT.match(text)
        if match is None:
            break
        text = text[: match.start()] + text[match.end() :]
        ending = " ".join(match[1].lower().split())
        endings.add(_SAME_ENDING.get(ending, ending))
    if not endings:
        return _bare_unit(text)
    return replace(_bare_unit(text) if text.strip() else Unit(None), endings=frozenset(endings))


def _bare_unit(text: str) -> Unit:
    """Parse `m`, `km/h`, `square feet`, `kg m^2 / s^2`; an unknown word makes the unit unknown."""
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    sign, power = 1, 1
    text = {"mph": "mile/hour", "kmph": "km/hour"}.get(text.strip().lower(), text)
    for divided, raised, word, exponent in _WORD.findall(text.replace("\\", " ")):
        if divided:
            sign = -1
        elif raised:
            power = 3 if raised == "cubic" else 2
        elif word not in _FILLERS:
            known = _known(word)
            if known is None:
                return Unit(None, words=text.strip())
            count = sign * power * int(exponent or 1)
            power = 1
            dimensions[known[0]] = dimensions.get(known[0], 0) + count
            factor *= known[1] ** count
    if not dimensions or power != 1:
        return Unit(None, words=text.strip())
    return Unit(tuple(sorted((name, count) for name, count in dimensions.items() if count)), factor)


def _known(word: str) -> tuple[str, Fraction] | None:
    if word in _KNOWN:
        return _KNOWN[word]
    lowered = word.lower() if len(word) > 1 or word == "L" else word
    return _KNOWN.get(lowered) or (_KNOWN.get(lowered[:-1]) if lowered.endswith("s") and len(lowered) > 2 else None)
