"""The equipment of this machine: processors, optional packages, the user's own folders."""
