"""The engine `warpgroup`: producers and consumers with matrix products of warpgroups on sm_90a."""
