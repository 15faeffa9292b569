"""How far programs can go wrong or grow: the error bounds of the tests over prime fields, powers of huge inputs."""
