"""CSF: label maps have one name and one number (24) for two different things.

- `region`: a small region outside the ventricles, as FreeSurfer's aseg and manual labels have it;
- `intracranial`: all fluid inside the skull around the brain, as label maps for synthesis have it.

The two are never compared with each other. A model's own is `csf` in its model.yaml.
"""

from __future__ import annotations

from typing import Literal

Csf = Literal["region", "intracranial"]
# The group of such structures in a label scheme.
CSF_GROUP = "csf"
