"""What this machine has: processors, optional packages, the user's own folders."""
