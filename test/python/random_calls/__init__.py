"""Random calls of every operator, compared with the formula in float64.

`cases` draws what a call is to be like, `operators` makes the call and says what is right, `checking` compares and
counts. test_random_calls.py lets hypothesis draw for some seconds, fuzz.py draws for as long as wanted.
"""
