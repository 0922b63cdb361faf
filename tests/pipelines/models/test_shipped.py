"""trinat models: what is there, and what is not yet."""

from __future__ import annotations

import json

from pipelines.cli.models import models
from segmentation.models.zoo import NOT_YET, shipped_models


def test_every_shipped_model_and_every_promise_is_listed(capsys) -> None:
    models(json_=True)
    told = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in told["available"]] == list(shipped_models())
    assert set(told["not_yet"]) == set(NOT_YET) - set(shipped_models())
