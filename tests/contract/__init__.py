"""What a user, a script and a program may rely on, checked from outside: by commands and programs that know nothing else."""
