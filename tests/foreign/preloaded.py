"""What processes of a run are forked from: everything that they need is imported here, once."""

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _name in (
        "onnxruntime",
        "mirage_cli.main",
        "mirage_cli.optimization.story",
        "mirage_cli.optimization.pipeline",
        "mirage_cli.verification.recheck",
        "mirage_cli.commands.optimize",
        "mirage_cli.commands.verify",
        "tests.foreign.calls",
    ):
        importlib.import_module(_name)
