"""The command line: `picasso-tf convert SRC DST` and `picasso-tf explain PATH`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 2 for a user's error."""
    arguments = _parser().parse_args(argv)
    # TensorFlow greets with a page of its own; errors still come through.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return arguments.run(arguments)
    except (FileNotFoundError, FileExistsError, ValueError) as error:
        print(f"picasso-tf: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="picasso-tf", description="Packs the lookups of recommender graphs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    convert = commands.add_parser(
        "convert", help="write a copy of a SavedModel with packed lookups"
    )
    convert.add_argument("src", help="directory of a SavedModel")
    convert.add_argument("dst", help="directory to make")
    convert.add_argument("--tags", help="comma-separated tags of the one to convert")
    convert.set_defaults(run=_convert)

    explain = commands.add_parser(
        "explain", help="show what would be packed, and what not and why"
    )
    explain.add_argument("path", help="a SavedModel, or a GraphDef (.pb, .pbtxt)")
    explain.set_defaults(run=_explain)

    for command in (convert, explain):
        command.add_argument(
            "--exclude",
            action="append",
            default=[],
            metavar="REGEX",
            help="leave variables alone whose name matches; may be repeated",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _convert(arguments) -> int:
    from picasso_tf.options import Options
    from picasso_tf.saved_model import convert_saved_model

    options = Options(exclude=tuple(arguments.exclude))
    tags = None if arguments.tags is None else arguments.tags.split(",")
    report = convert_saved_model(arguments.src, arguments.dst, options, tags)
    _print(report, arguments.json)
    return 0


def _explain(arguments) -> int:
    from picasso_tf.options import Options
    from picasso_tf.saved_model import explain

    _print(
        explain(arguments.path, Options(exclude=tuple(arguments.exclude))),
        arguments.json,
    )
    return 0


def _print(report, as_json: bool) -> None:
    if as_json:
        print(report.to_json())
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    before, after = sum(report.ops_before.values()), sum(report.ops_after.values())
    console.print(f"[bold]{report.graph}[/]: {before} ops become {after}")
    packs = Table("pack", "kind", "members", "tables", "bytes a step", title="Packed")
    for pack in report.packs:
        packs.add_row(
            pack.name,
            pack.kind,
            str(len(pack.members)),
            str(pack.tables),
            f"{pack.volume:,}",
        )
    if report.packs:
        console.print(packs)
    else:
        console.print("Nothing to pack.")
    ops = Table("op", "before", "after", title="Ops whose number changes")
    for op, count_before, count_after in report.changed_ops():
        ops.add_row(op, str(count_before), str(count_after))
    if ops.row_count:
        console.print(ops)
    left = Table("left alone", "number", "for example", title="Left alone")
    for reason, nodes in report.reasons().items():
        left.add_row(reason, str(len(nodes)), nodes[0])
    if left.row_count:
        console.print(left)
    for failure in report.failures:
        console.print(f"[red]failed:[/] {failure}")


if __name__ == "__main__":
    sys.exit(main())
