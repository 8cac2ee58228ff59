# SPDX-License-Identifier: Apache-2.0
"""Counts golden cases by component and prints the table after the run.

A golden test takes part by having a parameter ``case`` (one case of a JSON file), and a
test that calls the fixture `account_for_all_cases`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.golden._cases import load


@pytest.fixture(autouse=True)
def _count_case(
    request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]
) -> None:
    callspec = getattr(request.node, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    if case is not None:
        record_property("golden_case", [case["component"], case["id"]])


@pytest.fixture
def account_for_all_cases(
    record_property: Callable[[str, Any], None],
) -> Callable[[str, Iterable[str], dict[str, str]], None]:
    """Give ``check(name, ids_run, not_applicable)``: together they are all cases."""

    def check(
        name: str, ids_run: Iterable[str], not_applicable: dict[str, str]
    ) -> None:
        components = {case["id"]: case["component"] for case in load(name)}
        run = set(ids_run)
        assert not run & set(not_applicable)
        assert run | set(not_applicable) == set(components)
        assert all(not_applicable.values()), "every listed case needs its reason"
        for id_ in not_applicable:
            record_property("golden_listed", [components[id_], id_])

    return check


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "golden_case":
                    outcomes[value[0]][outcome].add(value[1])
                elif name == "golden_listed":
                    outcomes[value[0]]["listed"].add(value[1])
    if not outcomes:
        return
    terminalreporter.section("golden cases")
    terminalreporter.line(f"{'component':<28} passed failed listed")
    total: Counter[str] = Counter()
    for component, ids in sorted(outcomes.items()):
        bad = ids["failed"] | ids["error"]
        counts = {
            "passed": len(ids["passed"] - bad),
            "failed": len(bad),
            "listed": len(ids["listed"]),
        }
        total.update(counts)
        terminalreporter.line(_row(component, counts))
    terminalreporter.line(_row("all", total))


def _row(name: str, counts: dict[str, int]) -> str:
    return f"{name:<28} {counts['passed']:6} {counts['failed']:6} {counts['listed']:6}"
