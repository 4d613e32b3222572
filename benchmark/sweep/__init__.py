"""Random shapes: how far the cell is ahead of the best baseline over all that a user may choose."""
