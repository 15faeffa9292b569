"""The engine `block`: tiles of a block in shared memory, all warps in step."""
