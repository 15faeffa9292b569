"""The engine `rows`: threads that hold whole rows in registers."""
