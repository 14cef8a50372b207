"""`python -m leadline` is the `leadline` command."""

from leadline.apps.cli import main

if __name__ == "__main__":
    main()
