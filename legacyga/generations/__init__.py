"""One file a generation of optimizer classes, the same names inside each; none imports another.

`accumulating(cls, home)` makes a subclass of the optimizer class `cls` that accumulates; its instances are told how by
`start_accumulating(steps, reduction)` right after they are made.
"""
