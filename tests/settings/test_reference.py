"""The documentation and the code agree on every setting."""

import re
from pathlib import Path

import pytest

from shared.settings_load import PROFILES, load
from shared.settings_reference import reference, rewrite
from shared.settings_schema import leaves

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewrite(page), "run: python -m shared.settings_reference docs/configuration.md"


def test_every_setting_is_in_the_tables_with_a_sentence():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .* \| (.+) \|$", reference(), re.MULTILINE)
    settings = load(None, {"EVENFLOW_CONFIG": ""}, {"models": [{"name": "m"}]}).settings
    assert sorted(name for name, _ in rows) == sorted(path.split(".")[-1] for path, _, _ in leaves(settings))
    assert all(text.endswith(".") for _, text in rows)


def test_units_and_defaults_are_told():
    assert "| `queue_s` | `30.0` | a number above 0 | seconds | Longest wait for a worker. |" in reference()
    assert "| `body_bytes` | `4194304` | an integer, at least 1 | bytes |" in reference()
    assert "| `name` | (must be set) |" in reference()


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="lacks"):
        rewrite("# Configuration\n")


def test_the_example_file_of_the_page_works(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "example.toml"
    file.write_text(example)
    assert load(str(file), {}).settings.workers[0].slots == 8


def test_the_page_tells_what_the_profiles_change():
    page = PAGE.read_text(encoding="utf-8")
    for changes in PROFILES.values():
        for path in changes:
            assert f"`{path}`" in page
