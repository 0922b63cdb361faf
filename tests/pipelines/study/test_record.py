"""The result of a scan: one schema for ledger, tables, pages and their JavaScript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import trinat
from trinat.pipelines.study.record import ParcelResult, ScanResult

# JSON keys have underscores.
_HEAD = (
    "// Made from pipelines/study/record.py by tests/pipelines/study/test_record.py.\n"
    "// deno-lint-ignore-file camelcase\n"
)
_TYPES = Path(trinat.__file__).parent / "pipelines/view/page/record.d.ts"


def test_only_what_was_set_is_written_and_comes_back() -> None:
    result = ScanResult(grade="look", volumes_mm3={"Brain-Stem": 2e4})
    result.mean_agreement = None
    content = {
        "grade": "look",
        "volumes_mm3": {"Brain-Stem": 2e4},
        "mean_agreement": None,
    }
    assert result.as_json() == content
    assert ScanResult(**content) == result


@pytest.mark.parametrize(
    "content", [{"volume_mm3": {}}, {"total_brain_mm3": float("inf")}, {"grade": 1}]
)
def test_unknown_fields_and_wrong_values_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScanResult(**content)


def test_rejected_scans_structures_and_parcels_are_in_no_group() -> None:
    parcel = ParcelResult(
        freesurfer=1035,
        side="left",
        lobe="insula",
        mm3=10,
        share=None,
        asymmetry=None,
        agreement=None,
        grade="reject",
    )
    result = ScanResult(
        grade="pass",
        structure_grades={"A": "reject", "B": "look"},
        volumes_mm3={"A": 1, "B": 2},
        parcels={"p": parcel},
    )
    assert result.counted_volumes(layers=True) == {"B": 2}
    assert result.structures_left_out(("reject",)) == {"A": "reject", "p": "reject"}
    result.grade = "reject"
    assert result.counted_volumes() == {}
    # The grade does not apply to structures that a person has corrected.
    assert result.corrected().counted_volumes() == {"A": 1, "B": 2}


def test_the_pages_have_the_types_of_the_record() -> None:
    assert _TYPES.read_text() == typescript_of(ScanResult.model_json_schema())


def typescript_of(schema: dict[str, Any]) -> str:
    """Return TypeScript declarations of a schema's objects; every field may be absent."""
    blocks = [_HEAD]
    for name, model in {**schema["$defs"], schema["title"]: schema}.items():
        fields = [
            f"  {field}?: {_type_of(of_field)};\n"
            for field, of_field in model["properties"].items()
        ]
        blocks.append(f"export interface {name} {{\n{''.join(fields)}}}\n")
    return "\n".join(blocks)


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(_type_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if schema["type"] == "array":
        return f"{_type_of(schema['items'])}[]"
    if schema["type"] == "object":
        return f"Record<string, {_type_of(schema['additionalProperties'])}>"
    return {"integer": "number"}.get(schema["type"], schema["type"])


if __name__ == "__main__":
    # After a change of the record: .venv/bin/python tests/pipelines/study/test_record.py
    _TYPES.write_text(typescript_of(ScanResult.model_json_schema()))
