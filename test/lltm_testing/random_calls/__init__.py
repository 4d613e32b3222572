"""Random calls of every operator, compared with the formula in float64.

`cases` draws the properties of a call, `operators` makes the call and computes the expected results, and `checking`
compares and counts. test_random_calls.py draws with hypothesis for some seconds, fuzz.py for any length of time.
"""
