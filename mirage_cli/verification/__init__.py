"""An output folder verified: everything that it claims is found out again, and where models differ the operator is found."""
