"""`mirage farm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirage_cli.commands import common


@click.group(
    cls=common.Group,
    short_help="Workers, certificates and lists of models for a farm.",
    examples=(
        "mirage farm local --workers 8",
        "mirage farm certificates",
        "mirage farm worker tls://host:8786 --gpu 0",
        "mirage farm run list.yaml --scheduler tls://host:8786",
    ),
)
def farm() -> None:
    """A farm: many machines that search, prove, compile, check and measure for `mirage optimize --scheduler ADDRESS`. They are
    workers of a Dask scheduler (pip install 'mirage-cli[farm]')."""


@farm.command(
    cls=common.Command,
    short_help="Work for a scheduler.",
    examples=("mirage farm worker tls://host:8786", "mirage farm worker tls://host:8786 --gpu 1 --jobs 16"),
)
@click.argument("address", required=False, metavar="ADDRESS")
@click.option("--gpu", type=int, metavar="N", help="Measure on this GPU, and do nothing else [a worker of CPUs].")
@common.settings_options(
    "certificates", "max_memory", jobs="Jobs at a time; with --gpu compilations [number of cores]."
)
def worker(address: str | None, gpu: int | None, **given: Any) -> None:
    """Work for the scheduler at ADDRESS (or $MIRAGE_SCHEDULER) until it ends, or until Ctrl-C: jobs that have begun are
    finished first, a second Ctrl-C ends them."""
    from mirage_cli.inspection import workers
    from mirage_cli.options import settings

    options = settings.options({**common.given_values(given), **({"scheduler": address} if address else {})})
    workers.serve(options, gpu)


@farm.command(
    cls=common.Command,
    short_help="A scheduler with workers on this machine.",
    examples=("mirage farm local --workers 8", "mirage farm local --gpus all", "mirage farm local --host 0.0.0.0"),
)
@click.option("--workers", type=int, metavar="N", help="Workers of CPUs, each for one job at a time [number of cores].")
@click.option("--gpus", metavar="all|N,N", help="Workers for these GPUs too, one each [none].")
@click.option(
    "--host", metavar="HOST", default="127.0.0.1", help="Where to listen; beyond this machine with certificates."
)
@click.option("--port", type=int, default=8786, metavar="N", help="Of the scheduler, 0: any [8786].")
@common.settings_options(
    "certificates", "max_memory", jobs="Compilations at a time of a GPU's worker [its share of cores]."
)
def local(workers: int | None, gpus: str | None, host: str, port: int, **given: Any) -> None:
    """Run a scheduler and workers on this machine until Ctrl-C. The first line on standard output is the scheduler's
    address, a second one that of Dask's page on what goes on, where its packages are there."""
    from mirage_cli.inspection import workers as module
    from mirage_cli.options import settings

    module.local(settings.options(common.given_values(given)), workers, gpus, host, port, click.echo)


@farm.command(cls=common.Command, short_help="Make the certificates of a farm.", examples=("mirage farm certificates",))
@click.argument("folder", required=False, type=click.Path(), metavar="[DIR]")
def certificates(folder: str | None) -> None:
    """Make a certificate and its key in DIR [the user's folder]. Copy both to every machine of the farm: who has the key
    can run programs there."""
    from mirage_cli.farm import certificates

    for path in certificates.make(certificates.folder(folder)):
        click.echo(path)


@farm.command(
    cls=common.Command,
    short_help="Optimize the models of a list.",
    examples=("mirage farm run list.yaml --scheduler tls://host:8786",),
)
@click.argument("path", type=click.Path(), metavar="LIST.yaml")
@common.settings_options("scheduler", "certificates", "jobs")
@common.speaking
def run(voice: common.Voice, path: str, **given: Any) -> int:
    """Optimize the models of a list, each into a folder of its own; what earlier runs have found is not found again. The
    list has `output`, a folder, `options` as in --config, and `models`: paths, or mappings with `model`, `output` and
    options."""
    from mirage_cli.options import orders

    return optimize_all(voice, orders.read(Path(path), common.given_values(given)))


def optimize_all(voice: common.Voice, asked: Any) -> int:
    """Optimize several models and say what became of them; the exit code is that of the first that failed, or 0."""
    from mirage_cli.optimization import several

    with voice.progress() as progress:
        outcomes = several.optimize(asked, progress)
    voice.result(lambda: several.document(outcomes), lambda: several.text(outcomes))
    return next((o.error.exit_code for o in outcomes if o.error is not None), 0)
