"""`python -m mirage_cli` is `mirage`."""

from mirage_cli.main import main

if __name__ == "__main__":
    main()
