"""The meaning of the nodes of an ONNX file, in float64, by a path of its own: the reference that results are held
against. Imports nothing of the rest."""
