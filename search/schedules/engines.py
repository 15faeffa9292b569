"""The names of the engines: without imports, so that options can be read fast."""

BLOCK = "block"  #: the engine that suits most graphs, and the only one of a CPU
ENGINES = ("rows", "warpgroup", "strip")  #: the engines beside it
