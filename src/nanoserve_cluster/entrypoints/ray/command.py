"""`nanoserve ray-config` and `nanoserve ray-status`: the file that Ray Serve deploys, and what has become of it."""

from __future__ import annotations

import os

import rich_click as click

from nanoserve.entrypoints.cli.options import Command
from nanoserve_cluster.entrypoints import HELP


@click.command("ray-config", cls=Command, pages=HELP)
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
def ray_config(arguments: tuple[str, ...]) -> None:
    """Print the file for `serve deploy`, with the arguments that `serve run nanoserve_cluster.entrypoints.ray:app` takes.

    Among them are model, replicas, max_replicas, router_policy, direct_port, and the settings of nanoserve serve. Needs no Ray.
    """
    from nanoserve_cluster.entrypoints.ray.arguments import deploy_file, split_arguments  # noqa: PLC0415 - not needed for --help

    click.echo(deploy_file(split_arguments(arguments), os.environ), nl=False)


@click.command("ray-status", cls=Command, pages=HELP)
@click.option(
    "--app", "name", metavar="NAME", default="nanoserve", help="The application. [default: nanoserve]"
)
@click.option(
    "--address", metavar="ADDRESS", default="auto", help="The Ray cluster. [default: the one on this machine]"
)
def ray_status(name: str, address: str) -> None:
    """Print where an application's replicas and routers listen, a line for each: what it is, and its URL."""
    from nanoserve_cluster.entrypoints.ray import check_installed  # noqa: PLC0415 - not needed for --help

    check_installed()
    from nanoserve_cluster.entrypoints.ray.application import listed  # noqa: PLC0415 - imports an extra

    for entry in listed(name, address):
        click.echo(f"{entry.role:<8} {entry.address}")
