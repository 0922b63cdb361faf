"""Options of trinat serve and view.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# trinat serve

Queue = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the waiting scans, their results and the token. Default: trinat/queue in "
        "$XDG_STATE_HOME or ~/.local/state."
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
ServePort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
]
Name = Annotated[
    list[str] | None,
    typer.Option(help="Host name of a proxy in front of this server; repeatable."),
]
Keep = Annotated[
    float,
    typer.Option(
        min=0, help="Hours after which a finished scan is deleted with its results."
    ),
]
MaxUpload = Annotated[float, typer.Option(min=1, help="Largest upload, in MB.")]
MaxQueue = Annotated[int, typer.Option(min=1, help="Number of scans that may wait.")]
MaxClient = Annotated[
    int, typer.Option(min=1, help="Number of scans that one address may have.")
]
# trinat view

Results = Annotated[Path, typer.Argument(help="Output folder of trinat predict.")]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against", help="True label maps, or a second result, to switch to."
    ),
]
Images = Annotated[
    Path | None,
    typer.Option("--images", help="T1 scans. Default: where trinat predict read them."),
]
Labels = Annotated[
    str, typer.Option("--labels", help="Label scheme of folders without a label table.")
]
Rater = Annotated[
    str,
    typer.Option(
        "--rater",
        envvar="TRINAT_RATER",
        help="Name in ratings.tsv. Default: your user name.",
    ),
]
ViewPort = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port. Default: any free one.")
]
NoBrowser = Annotated[
    bool, typer.Option("--no-browser", help="Print the address only.")
]
