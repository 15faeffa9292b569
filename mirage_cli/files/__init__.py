"""Files and folders: opened once and hashed, written beside their place and put there complete, results kept under keys.
Knows bytes, not what they mean."""
