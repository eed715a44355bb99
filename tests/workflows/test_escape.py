"""Argo never takes a user's text for a template, and passes it on unchanged."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from diflow.workflows.escape import has_template, patch_json

TAG = re.compile(r"\{\{")
# Everything that may stand in a Kubernetes object: no lone surrogates (invalid in UTF-8) and no NUL.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
BRACED = st.builds(
    "".join, st.lists(st.sampled_from(["{", "{{", "{{{", "}}", "{{x}}", "{{=1+1}}", '"', "\\", "\\u007b", "a"]) | TEXT)
)


@pytest.mark.slow
@given(st.recursive(BRACED, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", min_size=1), inner)))
def test_no_two_braces_remain_and_the_text_comes_back(value: object) -> None:
    patch = patch_json({}, {"field": value})
    assert not TAG.search(patch)
    assert json.loads(patch) == {"field": value}


@given(BRACED)
def test_the_patch_reads_alike_as_yaml_which_is_how_argo_reads_it(text: str) -> None:
    assert yaml.safe_load(patch_json({}, {"field": text})) == {"field": text}


def test_our_own_templates_stay_templates() -> None:
    patch = patch_json({"hostname": "{{workflow.name}}-0"}, {"containers": [{"name": "main", "args": ["{{x}}"]}]})
    assert TAG.findall(patch) == ["{{"]
    assert json.loads(patch)["hostname"] == "{{workflow.name}}-0"
    assert json.loads(patch)["containers"] == [{"name": "main", "args": ["{{x}}"]}]


@pytest.mark.parametrize("value", ["{{x}}", "a {{", ["{{"], {"a": [{"b": "{{=1}}"}]}, {"{{key": 1}, "'\"{{"])
def test_braces_are_found_wherever_they_are(value: object) -> None:
    assert has_template(value)


@pytest.mark.parametrize(
    "value", ["{x}", "{ {", "}}", {"a": {"b": {"c": "{"}}}, [{"a": "{"}, {"b": "{"}], 3, None, ({"a": 1},)]
)
def test_nested_data_is_no_template(value: object) -> None:
    assert not has_template(value)
