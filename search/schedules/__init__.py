"""The numbers with which muGraphs become kernels: targets, costs, schedules of the engines, choices for ranges of sizes."""
