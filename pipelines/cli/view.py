"""trinat view: results looked at and judged in the browser."""

from __future__ import annotations

import getpass
from pathlib import Path

import typer


def view(
    results: Path = typer.Argument(..., help="Output folder of trinat predict."),
    against: Path | None = typer.Option(
        None, "--against", help="True label maps, or a second result, to switch to."
    ),
    images: Path | None = typer.Option(
        None, "--images", help="T1 scans. Default: where trinat predict read them."
    ),
    labels: str = typer.Option(
        "quicknat33", "--labels", help="Label scheme of folders without a label table."
    ),
    rater: str = typer.Option(
        "", "--rater", envvar="TRINAT_RATER", help="Name in ratings.tsv. Default: your user name."
    ),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Port. Default: any free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address only."),
) -> int:
    """Look at results in the browser and judge them; ratings are saved in RESULTS/ratings.tsv.

    Example: trinat view out/ --against manual/
    """
    import webbrowser

    from pipelines.common.exits import Exit
    from segmentation.errors import ConfigError

    try:
        from pipelines.view.app import make_app
        from pipelines.web.guard import new_token
        from pipelines.web.start import answer
    except ModuleNotFoundError as error:
        remedy = "pip install 'trinat[serve]'"
        raise ConfigError(f"needs the package {error.name}", remedy=remedy) from None
    from pipelines.view.study import Study

    study = Study(results, rater or _user(), images, against, labels)
    typer.echo(f"{len(study.items)} scans in {results}", err=True)

    def say(address: str) -> None:
        typer.echo(address)
        if not no_browser:
            webbrowser.open(address)

    answer(make_app(study), new_token(), port=port, say=say)
    return Exit.OK


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "rater"
