"""mirage: a superoptimizer for exported models.

The public Python interface is re-exported lazily so that `mirage --help` starts fast.
"""

__version__ = "0.1.0"
