"""A worker as `mirage farm worker` is one, with offers and versions that a test says: ADDRESS NAME [gpu] [version=TEXT]."""

import sys
from unittest import mock

from mirage_cli.farm import offers
from mirage_cli.farm.worker import Place, serve

GPU = "gpu Test, driver 1, capability 9.0"

if __name__ == "__main__":
    address, name, *words = sys.argv[1:]
    told = dict(offers.versions())
    told["mirage"] = next((w.removeprefix("version=") for w in words if w.startswith("version=")), told["mirage"])
    gpu = "GPU-test" if "gpu" in words else None
    with mock.patch.object(offers, "versions", lambda: told):
        serve(Place(address, None, 1, offered=(GPU,) if gpu is not None else (), gpu=gpu, name=name))
