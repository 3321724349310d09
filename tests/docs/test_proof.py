"""docs/proof.md says what the runs said."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("proof", ROOT / "infra" / "docs" / "proof.py")
proof = importlib.util.module_from_spec(spec)
spec.loader.exec_module(proof)

REPORT = f"""<testsuites><testsuite>
<testcase classname="tests.chaos.test_kills" name="test_kills[null]" time="61.25">
<system-out>--------------------------------- Captured Out ---------------------------------
500 blows in {ROOT}/x
</system-out></testcase>
<testcase classname="tests.chaos.test_soak" name="test_soak" time="3"><failure message="no"/></testcase>
</testsuite></testsuites>"""


def test_the_page_is_made_from_the_results():
    if proof.RESULTS.exists():
        assert proof.DOCUMENT.read_text() == proof.document(proof.read()), "run infra/docs/proof.py"


def test_a_run_replaces_the_lines_of_its_tests_and_no_others(tmp_path):
    report = tmp_path / "prove.xml"
    report.write_text(REPORT)
    old = [
        {"test": "tests/chaos/test_soak.py::test_soak", "outcome": "passed", "said": "old"},
        {"test": "tests/chaos/test_other.py::test_it", "outcome": "passed", "said": "kept"},
    ]
    results = proof.merged(old, proof.taken(report, "abc"))
    assert [(one["test"].rpartition(":")[2], one["outcome"], one["said"]) for one in results] == [
        ("test_kills[null]", "passed", "500 blows in …/x"),
        ("test_it", "passed", "kept"),
        ("test_soak", "failed", ""),
    ]
    assert results[0]["seconds"] == 61.2
    page = proof.document([result for result in results if "day" in result])
    assert "| `chaos/test_kills.py::test_kills[null]` | passed | 61.2 |" in page
    assert "500 blows in …/x" in page
