"""The command line: `main` parses it, and each command has a module."""
