"""`python -m understudy`: the command line where the console script is not on the path."""

from understudy.cli import main

if __name__ == "__main__":
    main()
