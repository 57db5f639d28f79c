"""What pages show against what is printed: lines left out, figures that are brought up to date."""

from __future__ import annotations

from pages import as_printed, missing

PRINTED = "head\n│ a │ 12MiB │ 3.0 s │\n│ b │ 7B │ 1 ms │\n\ntail 5\n"


def test_times_may_differ_and_bytes_may_not() -> None:
    assert missing(["head", "…", "│ b │ 7B │ 9.5 ms │", "…"], PRINTED) == []
    assert missing(["│ a │ 13MiB │ 3.0 s │"], PRINTED) == ["│ a │ 13MiB │ # │"]
    assert missing(["tail 5", "head"], PRINTED) == ["head"]  # in this order


def test_figures_of_now() -> None:
    old = ["…", "│ a │ 9MiB │ 3.0 s │", "│ b │ 6B │ 1 ms │", "…", "tail 4", "…"]
    assert as_printed(old, PRINTED) == ["…", "│ a │ 12MiB │ 3.0 s │", "│ b │ 7B │ 1 ms │", "…", "tail 5", "…"]
    assert as_printed(["no such line 4"], PRINTED) == ["no such line 4"]
    assert as_printed(["head", "tail 4"], PRINTED) == PRINTED.splitlines()  # nothing is left out between them
