"""The command line. `main` reads it; there is one module for each command."""
