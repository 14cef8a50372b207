"""The statements in the text of the paper, as data, and what a run says about each.

``bench/paper/claims.toml`` has one table per statement: its `text`, `where` it stands, the `line` of the paper's
source, and a `kind`, which is one of the classes below. Each kind has its own keys and its own rule.

A number *holds* if the run's number differs from the printed one by at most `TOLERANCE`: the paper leaves details open,
so equal digits cannot be expected even of a correct run. Counts must be equal. A comparison holds if it is true for all
subsets and priors that it names, does not hold if it is false for one of them, and cannot be decided if no comparison
is false but a number is missing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from itertools import product
from typing import Literal

import msgspec

from leadline.bench.published.numbers import PAPER_PRIOR, PAPER_SUBSETS
from leadline.bench.records import Record, RecordStatus
from leadline.bench.results import GEOMETRY_FILE, MACRO, Results
from leadline.bench.tables import RESPONSE, Block, Column, Row, Table

TOLERANCE = 0.05  # of the printed number
SEVERAL = 2  # the fewest subsets that the word "several" stands for
SWEEP = ("1e-4", "1e-3", "1e-2")  # weights of the published sweep


class State(str, Enum):
    """What a run says about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "cannot be decided"


@dataclass(frozen=True)
class Verdict:
    state: State
    found: str  # the run's numbers, or what is missing


@dataclass(frozen=True)
class Evidence:
    """What claims are compared with: a run, or the published tables."""

    results: Results
    records: Sequence[Record] = ()
    geometry: Sequence[Mapping[str, str]] | None = None  # the rows of reference_geometry.csv, if they are known


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One percentile of a metric."""

    method: str
    subset: str
    metric: str
    percentile: int = 50
    prior: str = PAPER_PRIOR

    def value(self, results: Results) -> float:
        if self.subset == MACRO and not _has_papers_macro(results, self.metric):
            return math.nan
        return results.value(self.prior, self.method, self.subset, self.metric, self.percentile)

    def __str__(self) -> str:
        return f"{self.method} with {self.prior} on {self.subset}"


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """A statement of the paper."""

    text: str
    where: str
    line: int

    def judge(self, evidence: Evidence) -> Verdict:
        """Whether the statement holds for a run; each kind of claim has its own rule."""
        raise TypeError(f"{type(self).__name__} has no rule to judge by.")


class Number(Claim, frozen=True, kw_only=True, tag="number"):
    """`of` is `value`."""

    value: float
    of: Quantity

    def judge(self, evidence: Evidence) -> Verdict:
        return _near(self.of.value(evidence.results), self.value, f"no score of {self.of}")


class Difference(Claim, frozen=True, kw_only=True, tag="difference"):
    """`of` minus `minus` is `value`."""

    value: float
    of: Quantity
    minus: Quantity

    def judge(self, evidence: Evidence) -> Verdict:
        first, second = (quantity.value(evidence.results) for quantity in (self.of, self.minus))
        return _near(first - second, self.value, f"no score of {self.of} or of {self.minus}")


class Lower(Claim, frozen=True, kw_only=True, tag="lower"):
    """`method` has a lower score than each of `than`, on each of `subsets` (default: all nine) and with each prior."""

    metric: str
    method: str
    than: tuple[str, ...]
    subsets: tuple[str, ...] = PAPER_SUBSETS
    priors: tuple[str, ...] = (PAPER_PRIOR,)
    percentile: int = 50

    def judge(self, evidence: Evidence) -> Verdict:
        outcomes: dict[str, bool | None] = {}
        for prior, subset in product(self.priors, self.subsets):
            place = f"{subset} with {prior}" if len(self.priors) > 1 else subset
            own, *others = (
                Quantity(method=name, subset=subset, metric=self.metric, percentile=self.percentile, prior=prior).value(
                    evidence.results
                )
                for name in (self.method, *self.than)
            )
            outcomes[place] = _all(None if math.isnan(own) or math.isnan(other) else own < other for other in others)
        return _summarise(outcomes)


class Lowest(Claim, frozen=True, kw_only=True, tag="lowest"):
    """Of itself and the methods in `among`, `method` has the lowest score on exactly these of the nine subsets."""

    metric: str
    method: str
    among: tuple[str, ...]
    subsets: tuple[str, ...]

    def judge(self, evidence: Evidence) -> Verdict:
        outcomes: dict[str, bool | None] = {}
        for subset in PAPER_SUBSETS:
            own, *others = (
                Quantity(method=name, subset=subset, metric=self.metric).value(evidence.results)
                for name in (self.method, *self.among)
            )
            known = not any(map(math.isnan, (own, *others)))
            outcomes[subset] = (own < min(others)) is (subset in self.subsets) if known else None
        return _summarise(outcomes)


class Several(Claim, frozen=True, kw_only=True, tag="several"):
    """On several subsets one of `methods` has a lower score than the method `than`."""

    metric: str
    prior: str
    methods: tuple[str, ...]
    than: str

    def judge(self, evidence: Evidence) -> Verdict:
        lower, missing = 0, []
        for subset in PAPER_SUBSETS:
            base, *others = (
                Quantity(method=name, subset=subset, metric=self.metric, prior=self.prior).value(evidence.results)
                for name in (self.than, *self.methods)
            )
            if math.isnan(base) or all(map(math.isnan, others)):
                missing.append(subset)
            lower += any(other < base for other in others)
        if lower < SEVERAL and missing:
            return Verdict(State.UNKNOWN, f"no score on {', '.join(missing)}")
        return Verdict(State.HOLDS if lower >= SEVERAL else State.FAILS, f"on {lower} of {len(PAPER_SUBSETS)} subsets")


class Weights(Claim, frozen=True, kw_only=True, tag="weights"):
    """How Macro of a metric changes with the data weight, from the smallest to the largest of the sweep."""

    metric: str
    change: Literal["raises", "lowers", "depends less on the Laplacian weight"]

    def judge(self, evidence: Evidence) -> Verdict:
        values = {
            (data, laplacian): Quantity(
                method=f"data {data}, laplacian {laplacian}", subset=MACRO, metric=self.metric
            ).value(evidence.results)
            for data, laplacian in product(SWEEP, SWEEP)
        }
        if any(map(math.isnan, values.values())):
            return Verdict(State.UNKNOWN, "no Macro of the nine weights; the protocols 'paper' and 'weights' have them")
        changes = [values[SWEEP[-1], laplacian] - values[SWEEP[0], laplacian] for laplacian in SWEEP]
        found = f"changes by {min(changes):+.4f} to {max(changes):+.4f}"
        if self.change == "depends less on the Laplacian weight":
            rows = [[values[data, laplacian] for laplacian in SWEEP] for data in SWEEP]
            spread = max(max(row) - min(row) for row in rows)
            holds = spread < min(map(abs, changes))
            found = f"{found} with the data weight, by up to {spread:.4f} with the Laplacian weight"
        else:
            holds = all(change > 0 if self.change == "raises" else change < 0 for change in changes)
        return Verdict(State.HOLDS if holds else State.FAILS, found)


class Failures(Claim, frozen=True, kw_only=True, tag="failures"):
    """`of` has so many records without a score. The percentile of `of` has no meaning here."""

    value: int
    of: Quantity

    def judge(self, evidence: Evidence) -> Verdict:
        place = (self.of.prior, self.of.method, self.of.subset, self.of.metric)
        failures, count = evidence.results.failures(*place), evidence.results.count(*place)
        return _equal(failures, self.value, f"no records of {self.of}" if not failures + count else "")


class Images(Claim, frozen=True, kw_only=True, tag="images"):
    """The nine subsets have so many images."""

    value: int

    def judge(self, evidence: Evidence) -> Verdict:
        found = {(record.dataset, record.image) for record in _of_paper(evidence)}
        return _equal(len(found), self.value, _lacking(evidence))


class Entries(Claim, frozen=True, kw_only=True, tag="entries"):
    """The nine subsets have so many combinations of image and case."""

    value: int

    def judge(self, evidence: Evidence) -> Verdict:
        found = {(record.dataset, record.image, record.case) for record in _of_paper(evidence)}
        return _equal(len(found), self.value, _lacking(evidence))


class GeometryNumber(Claim, frozen=True, kw_only=True, tag="geometry"):
    """A statistic of the reference depth is `value`."""

    value: float
    subset: str
    percentile: int
    column: str

    def judge(self, evidence: Evidence) -> Verdict:
        return _near(_statistic(evidence, self.subset, self.percentile, self.column), self.value, _NO_GEOMETRY)


class Coverage(Claim, frozen=True, kw_only=True, tag="coverage"):
    """The median coverage of the reference is `low` on the subset `lowest`, `high` on `highest`, else between them."""

    lowest: str
    highest: str
    low: float
    high: float

    def judge(self, evidence: Evidence) -> Verdict:
        medians = {subset: _statistic(evidence, subset, 50, "valid_fraction") for subset in PAPER_SUBSETS}
        if any(map(math.isnan, medians.values())):
            return Verdict(State.UNKNOWN, _NO_GEOMETRY)
        ends = _near(medians[self.lowest], self.low, ""), _near(medians[self.highest], self.high, "")
        is_range = medians[self.lowest] == min(medians.values()) and medians[self.highest] == max(medians.values())
        holds = is_range and all(end.state is State.HOLDS for end in ends)
        found = f"{min(medians.values()):.4f} to {max(medians.values()):.4f}"
        return Verdict(State.HOLDS if holds else State.FAILS, found)


class Exponent(Claim, frozen=True, kw_only=True, tag="exponent"):
    """The fitted exponent of an image is `value`. The paper does not name the case, so the closest one counts."""

    value: float
    subset: str
    image: str

    def judge(self, evidence: Evidence) -> Verdict:
        found = [
            float(msgspec.json.decode(record.parameters)["exponent"])
            for record in evidence.records
            if (record.dataset, record.image, record.prior) == (self.subset, self.image, PAPER_PRIOR)
            and record.method == RESPONSE
            and record.status is RecordStatus.OK
        ]
        closest = min(found, key=lambda exponent: abs(exponent - self.value), default=math.nan)
        return _near(closest, self.value, f"no record of {RESPONSE} with {PAPER_PRIOR} on {self.image}")


class Unknown(Claim, frozen=True, kw_only=True, tag="unknown"):
    """No run can decide it, for a reason that the paper or the benchmark gives."""

    reason: str

    def judge(self, evidence: Evidence) -> Verdict:
        return Verdict(State.UNKNOWN, self.reason)


AnyClaim = (
    Number
    | Difference
    | Lower
    | Lowest
    | Several
    | Weights
    | Failures
    | Images
    | Entries
    | GeometryNumber
    | Coverage
    | Exponent
    | Unknown
)
_NO_GEOMETRY = f"{GEOMETRY_FILE} of the run lacks it; 'leadline bench report RUN' with the table 'geometry' writes it"


def read_claims() -> list[Claim]:
    """All claims, in the order of the paper."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = (files("leadline.bench") / "paper" / "claims.toml").read_text(encoding="utf-8")
    claims: list[Claim] = msgspec.convert(tomllib.loads(text)["claims"], list[AnyClaim])
    return claims


def claims_table(evidence: Evidence) -> Table:
    """Each claim with what the evidence says about it."""
    verdicts = [(claim, claim.judge(evidence)) for claim in read_claims()]
    rows = tuple(
        Row(claim.text, (f"{claim.where}, line {claim.line}", verdict.state.value, verdict.found))
        for claim, verdict in verdicts
    )
    counts = (f"{sum(verdict.state is state for _, verdict in verdicts)} {state.value}" for state in State)
    columns = tuple(Column("", head, is_text=True) for head in ("in the paper", "state", "found"))
    note = f"{', '.join(counts)}. A number holds within {TOLERANCE:.0%} of the printed one."
    return Table("claims", "Statements in the text of the paper", "claim", columns, (Block("", rows),), notes=(note,))


def _has_papers_macro(results: Results, metric: str) -> bool:
    """Whether Macro is the mean over the paper's nine subsets."""
    return set(results.macro_subsets(metric)) == set(results.subsets) == set(PAPER_SUBSETS)


def _near(found: float, printed: float, missing: str) -> Verdict:
    if math.isnan(found):
        return Verdict(State.UNKNOWN, missing)
    holds = abs(found - printed) <= TOLERANCE * abs(printed)
    return Verdict(State.HOLDS if holds else State.FAILS, f"{found:.4f}")


def _equal(found: int, printed: int, missing: str) -> Verdict:
    if missing:
        return Verdict(State.UNKNOWN, missing)
    return Verdict(State.HOLDS if found == printed else State.FAILS, f"{found:,}")


def _all(outcomes: Iterable[bool | None]) -> bool | None:
    """False if one is false, else None (not known) if one is None, else True."""
    found = list(outcomes)
    return False if False in found else None if None in found else True


def _summarise(outcomes: Mapping[str, bool | None]) -> Verdict:
    """The verdict on a statement that is true if all outcomes are; None is one that is not known."""
    wrong = [place for place, outcome in outcomes.items() if outcome is False]
    missing = [place for place, outcome in outcomes.items() if outcome is None]
    if wrong:
        return Verdict(State.FAILS, f"not on {', '.join(wrong)}")
    if missing:
        listed = ", ".join(missing) if len(missing) <= len(PAPER_SUBSETS) else f"{len(missing)} of {len(outcomes)}"
        return Verdict(State.UNKNOWN, f"a score is missing on {listed}")
    return Verdict(State.HOLDS, f"{len(outcomes)} of {len(outcomes)}")


def _of_paper(evidence: Evidence) -> list[Record]:
    return [record for record in evidence.records if record.dataset in PAPER_SUBSETS]


def _lacking(evidence: Evidence) -> str:
    """Which subsets have no record; empty if all have some."""
    found = {record.dataset for record in evidence.records}
    absent = [subset for subset in PAPER_SUBSETS if subset not in found]
    return f"no records of {', '.join(absent)}" if absent else ""


def _statistic(evidence: Evidence, subset: str, percentile: int, column: str) -> float:
    for row in evidence.geometry or ():
        if row["subset"] == subset and row["percentile"] == str(percentile):
            return float(row[column])
    return math.nan
